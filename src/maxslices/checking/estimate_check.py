"""Holds a method's estimator against the measured peak."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..errors import UsageError
from ..estimate import Question, declared_model
from ..estimate.bench import traced
from ..model.allocators import Device
from ..model.arrays import ArraySpec, as_dtype
from ..model.memory_model import MemoryModel
from ..registry.method_meta import MethodMeta
from ..registry.method_registry import registry
from ..registry.parameters import SUPPLIED
from ..tuning.garbage_collection import quick_collections
from .check_result import LOWER, UPPER, CheckResult, EstimateError
from .measured_call import HOST_NOISE_BYTES, Run, Trial

_SAME_PEAK = 0.01
"""Peaks that differ by less are the same."""


def check_max_slices(
    method: Callable[..., Any] | MethodMeta | str,
    shape: tuple[int, int, int],
    dtype: DTypeLike,
    lower: float = LOWER,
    upper: float = UPPER,
    device: str = "auto",
    **parameters: Any,
) -> CheckResult:
    """Run a method, and require that its estimator gives about these slices for the peak.

    Parameters
    ----------
    method : callable, MethodMeta or str
        A registered function, its ``.meta``, or its name.
    shape : (int, int, int)
        Input, axes (angles, detector_y, detector_x), slices included.
    dtype : dtype-like
        Input dtype.
    lower, upper : float
        Bounds of estimated slices over slices run.
    device : str
        "cpu", "cuda", "cuda:N", or "auto": a GPU if there is one.
    **parameters
        Of the method. ``slice_dim`` says along which axis the slices are; by default the
        first that the pattern allows. Flats, darks and angles are made up if not given.

    Returns
    -------
    CheckResult
        Prints as a table.

    Raises
    ------
    EstimateError
        An `AssertionError`: out of bounds, or memory was used that no meter attributes, or
        that the method keeps.
    EstimatorError
        If the estimator raises, or returns what is not a number of slices.
    UsageError
        If shape, dtype or bounds are none.

    Examples
    --------
    >>> import numpy as np
    >>> from maxslices import Registry, from_ledger, method
    >>> from maxslices.testing import check_max_slices
    >>> @from_ledger
    ... def needs(m, shape, dtype):
    ...     m.alloc(shape, dtype)
    ...     m.alloc(shape, dtype)
    >>> @method("projection", calc_max_slices=needs, registry=Registry())
    ... def twice(data):
    ...     return data * 2
    >>> result = check_max_slices(twice, (60, 50, 40), "float32", device="cpu")
    >>> result.slices, result.estimated_slices, result.verdict
    (60, 60, 'ok')
    """
    __tracebackhide__ = True  # pytest shows the caller's line
    meta = find_method(method)
    slice_dim = parameters.get("slice_dim")
    if slice_dim is None:
        slice_dim = meta.slice_dims()[0]
    elif "slice_dim" not in meta.parameters:
        parameters.pop("slice_dim")
    if lower > upper:
        raise UsageError(f"lower, {lower}, is above upper, {upper}")
    spec = ArraySpec(shape, as_dtype(dtype))
    angles, rows, columns = spec.shape
    trial = Trial(meta, (angles, rows, columns), spec.dtype, slice_dim, device, parameters)
    result = check_trial(trial, lower, upper)
    if not result.ok:
        raise EstimateError(result)
    return result


def find_method(method: Callable[..., Any] | MethodMeta | str) -> MethodMeta:
    """Return the record of a method given in any way."""
    if isinstance(method, str):
        return registry.get(method)
    meta = method if isinstance(method, MethodMeta) else getattr(method, "meta", None)
    if not isinstance(meta, MethodMeta):
        raise UsageError(
            f"{method!r} is not a registered method: decorate it with maxslices.method, or pass "
            "what registry.register returned"
        )
    return meta


def check_trial(
    trial: Trial, lower: float = LOWER, upper: float = UPPER, *, trace: bool | None = True
) -> CheckResult:
    """Measure a trial and compare; nothing is raised for an estimate out of bounds.

    Parameters
    ----------
    trial : Trial
        What to run.
    lower, upper : float
        As in `check_max_slices`.
    trace : bool or None
        Find out what was alive at the peak, which takes another run; None: if it fails.
    """
    gc.collect()  # of what was before, too: it is left out below
    with quick_collections():
        return _check_trial(trial, lower, upper, trace)


def _check_trial(trial: Trial, lower: float, upper: float, trace: bool | None) -> CheckResult:
    runs, cached_bytes, kept_bytes, notes = _measure(trial)
    if cached_bytes:
        notes = (*notes, f"{cached_bytes:,} bytes stay in caches after the first call: counted")
    results = [
        compare(
            trial.meta,
            trial.shape,
            trial.dtype,
            trial.slice_dim,
            trial.backend.kind,
            trial.parameters,
            run.peak.counted_bytes + cached_bytes,
            (lower, upper),
        )
        for run in runs
        if run.peak.counted_bytes is not None
    ]
    unseen = tuple(dict.fromkeys(text for run in runs for text in run.peak.unseen))
    if not results:
        raise UsageError(
            f"{trial.meta.full_name}: its peak cannot be measured: "
            f"{'; '.join(unseen) or 'no meter is available'}"
        )
    worst = max(results, key=lambda result: (result.verdict != "ok", abs(result.ratio - 1)))
    worst = replace(worst, unseen=unseen, kept_bytes=kept_bytes, notes=notes)
    if trace or (trace is None and not worst.ok):
        peak = trial.run(trace=True).peak
        worst = replace(worst, where=peak.where, alive=peak.alive)
    return worst


def compare(
    meta: MethodMeta,
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    slice_dim: int,
    device: Device,
    parameters: Mapping[str, Any],
    peak_bytes: int,
    bounds: tuple[float, float] = (LOWER, UPPER),
) -> CheckResult:
    """Hand a measured peak to a method's estimator; nothing is run.

    Parameters
    ----------
    meta, shape, dtype, slice_dim, device, parameters
        The method and the block that was measured.
    peak_bytes : int
        What was measured.
    bounds : (float, float)
        Lower and upper, as in `check_max_slices`.
    """
    other_dims = ArraySpec(shape, dtype).other_dims(slice_dim)
    told = {name: value for name, value in parameters.items() if name not in SUPPLIED}
    estimated, _ = meta.calc_max_slices(
        slice_dim, other_dims, dtype, peak_bytes, device=device, **told
    )
    asked = Question(meta, slice_dim, other_dims, dtype, told, shape[slice_dim])
    model = declared_model(asked, device)
    return CheckResult(
        method=meta.full_name,
        shape=shape,
        dtype=str(dtype),
        parameters=parameters,
        slice_dim=slice_dim,
        device=device,
        slices=shape[slice_dim],
        estimated_slices=estimated,
        fraction=fractional_slices(model, peak_bytes, estimated),
        peak_bytes=peak_bytes,
        estimated_bytes=model.bytes(shape[slice_dim]),
        lower=bounds[0],
        upper=bounds[1],
        resolution_bytes=HOST_NOISE_BYTES if device == "cpu" else 0,
    )


def fractional_slices(model: MemoryModel, available_bytes: int, whole: int) -> float:
    """Return how many slices fit, with the part of a slice for which the memory is left."""
    at, following = model.bytes(whole), model.bytes(whole + 1)
    if following <= at:
        return float(whole)
    return whole + min(1.0, max(0.0, (available_bytes - at) / (following - at)))


def _measure(trial: Trial) -> tuple[list[Run], int, int, tuple[str, ...]]:
    """Run a method twice or more.

    The first call imports, compiles and fills caches. It is measured with other values than
    the second: where both peaks agree, memory does not depend on the data.

    Returns
    -------
    list of Run
        One for each distinct peak.
    int
        Bytes that the first call left in caches.
    int
        Bytes that a further call leaves.
    tuple of str
        Notes.
    """
    with traced(trial.backend):
        first = trial.run(seed=1)
        second = trial.run(seed=0)
        kept = second.kept_bytes
        runs = [second]
        if not _same(first, second):
            again = trial.run(seed=1)
            kept = min(kept, again.kept_bytes)
            if not _same(again, second):
                runs.append(again)
    notes: tuple[str, ...] = ()
    if len(runs) == 2:
        peaks = sorted(run.peak.counted_bytes or 0 for run in runs)
        notes = (
            f"memory depends on the data: {peaks[0]:,} bytes with some, {peaks[1]:,} with others",
        )
    return runs, first.kept_bytes, kept, notes


def _same(one: Run, other: Run) -> bool:
    a, b = one.peak.counted_bytes, other.peak.counted_bytes
    if a is None or b is None:
        return a == b
    return abs(a - b) <= max(HOST_NOISE_BYTES, _SAME_PEAK * b)
