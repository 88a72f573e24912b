"""Holds a method's estimator against the measured peak."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..core.allocators import Device
from ..core.arrays import ArraySpec, as_dtype
from ..core.memory_model import MemoryModel
from ..core.method_meta import MethodMeta
from ..core.named_method import method_named
from ..core.parameters import SUPPLIED, matches, nearest
from ..errors import ParameterError, UsageError
from ..estimate import ModelRequest, declared_model
from ..measure.alive import tracemalloc_on
from ..tuning.garbage_collection import quick_collections
from .check_result import LOWER, UPPER, CheckResult, EstimateError
from .measured_call import HOST_NOISE_BYTES, CallResult, MeasuredCall

BUFFERS_BYTES = 3 * 8192 * 8
"""NumPy's buffers for casting, one for each operand of an operation: they come and go with the
shape, and make up much of the memory of a tiny array. For an input of less than `HOST_NOISE_BYTES`
such constants decide, which say nothing about slices: differences below this are no finding then.
"""
_FEW_ITEMS = 16
"""The smallest buffer that NumPy accepts; by default one has 8192 items."""
_SAME_PEAK = 0.01
"""Peaks that differ by less are the same: of 64 slices less than one, and no bound is as close."""


def check_max_slices(
    method: Callable[..., Any] | MethodMeta | str,
    shape: tuple[int, int, int],
    dtype: DTypeLike,
    lower: float | None = None,
    upper: float | None = None,
    device: str | None = None,
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
    lower, upper : float, optional
        Bounds of estimated slices over slices run; by default 0.80 and 1.00.
    device : str, optional
        "cpu", "cuda", "cuda:N", or "auto", the default: a GPU if there is one.
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
        An `AssertionError`: the estimate is out of bounds, the output has not the dims or dtype
        declared, or memory was used that no meter attributes, or that the method keeps.
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
    refuse_shared(method, lower=lower, upper=upper, device=device)
    return check_within(
        method,
        shape,
        dtype,
        LOWER if lower is None else lower,
        UPPER if upper is None else upper,
        "auto" if device is None else device,
        parameters,
    )


def refuse_shared(method: Callable[..., Any] | MethodMeta | str, **given: Any) -> None:
    """Refuse a keyword that is the check's own and the method's as well, where it is given."""
    meta = find_method(method)
    for name, value in given.items():
        if value is not None and name in meta.parameters:
            raise ParameterError(
                f"{name!r} is a parameter of {meta.full_name}, and of max_slices itself: give it "
                "in the parameters of a Case, to a MethodConformance"
            )


def check_within(
    method: Callable[..., Any] | MethodMeta | str,
    shape: tuple[int, int, int],
    dtype: DTypeLike,
    lower: float,
    upper: float,
    device: str,
    parameters: dict[str, Any],
) -> CheckResult:
    """`check_max_slices`, with the method's parameters apart from the check's own."""
    __tracebackhide__ = True
    meta = find_method(method)
    _require_known(meta, parameters)
    for bound in (lower, upper):
        if not matches(float, bound) or math.isnan(bound):  # NaN is never missed
            raise UsageError(f"lower and upper must be numbers, not {lower!r} and {upper!r}")
    slice_dim = parameters.get("slice_dim")
    if slice_dim is None:
        slice_dim = meta.slice_dims()[0]
    elif "slice_dim" not in meta.parameters:
        parameters.pop("slice_dim")
    if lower > upper:
        raise UsageError(f"lower, {lower}, is above upper, {upper}")
    spec = ArraySpec(shape, as_dtype(dtype))
    angles, rows, columns = spec.shape
    call = MeasuredCall(meta, (angles, rows, columns), spec.dtype, slice_dim, device, parameters)
    result = check_call(call, lower, upper)
    if not result.ok:
        raise EstimateError(result)
    return result


def _require_known(meta: MethodMeta, parameters: Mapping[str, Any]) -> None:
    """Require that keywords are parameters of the method, naming those of the check as well."""
    if meta.accepts_any:
        return
    own = ("lower", "upper", "device", "slice_dim")
    known = [name for name in meta.parameters if name not in SUPPLIED]
    for name in parameters:
        if name not in meta.parameters and name != "slice_dim":
            hint = nearest(name, [*known, *own, *meta.parameters]) or ";"
            raise ParameterError(
                f"{meta.full_name} has no parameter {name!r}{hint} it has: "
                f"{', '.join(known) or 'none'}; max_slices itself takes: {', '.join(own)}"
            )


def find_method(method: Callable[..., Any] | MethodMeta | str) -> MethodMeta:
    """Find the record of a method given as function, record or name."""
    if isinstance(method, str):
        return method_named(method)
    meta = method if isinstance(method, MethodMeta) else getattr(method, "meta", None)
    if not isinstance(meta, MethodMeta):
        raise UsageError(
            f"{method!r} is not a registered method: decorate it with maxslices.method, or pass "
            "what registry.register returned"
        )
    return meta


def check_call(
    call: MeasuredCall, lower: float = LOWER, upper: float = UPPER, *, trace: bool | None = True
) -> CheckResult:
    """Measure a call and compare; nothing is raised for an estimate out of bounds.

    Parameters
    ----------
    call : MeasuredCall
        What to run.
    lower, upper : float
        As in `check_max_slices`.
    trace : bool or None
        Find out what was alive at the peak, which takes another run; None: if it fails.
    """
    gc.collect()  # of what was before, too: it is left out below
    with quick_collections():
        return _check_call(call, lower, upper, trace)


def _check_call(call: MeasuredCall, lower: float, upper: float, trace: bool | None) -> CheckResult:
    runs, cached_bytes, kept_bytes, notes = _measure(call)
    if cached_bytes:
        notes = (*notes, f"{cached_bytes:,} bytes stay in caches after the first call: counted")
    peaks = [run.peak.counted_bytes for run in runs if run.peak.counted_bytes is not None]
    unseen = tuple(dict.fromkeys(text for run in runs for text in run.peak.unseen))
    if not peaks:
        raise UsageError(
            f"{call.meta.full_name}: its peak cannot be measured: "
            f"{'; '.join(unseen) or 'no meter is available'}"
        )

    def worst_of(peaks: list[int]) -> CheckResult:
        results = [_compare(call, peak + cached_bytes, (lower, upper)) for peak in peaks]
        return max(results, key=lambda result: (result.verdict != "ok", abs(result.ratio - 1)))

    worst = worst_of(peaks)
    if worst.verdict == "UNDERESTIMATE" and call.backend.kind == "cpu":
        lacking_bytes = worst.peak_bytes - worst.estimated_bytes
        buffers_bytes = _buffers_bytes(call) if lacking_bytes <= BUFFERS_BYTES else 0
        if buffers_bytes:
            worst = worst_of([peak - buffers_bytes for peak in peaks])
            notes = (
                *notes,
                f"NumPy's buffers for casts and broadcasts take {buffers_bytes:,} bytes, however "
                "many slices there are: left out",
            )
    worst = replace(
        worst,
        wrong_output=call.wrong_output(runs[0].output),
        unseen=unseen,
        kept_bytes=kept_bytes,
        notes=notes,
    )
    if trace or (trace is None and not worst.ok):
        peak = call.measure(trace=True).peak
        worst = replace(worst, where=peak.where, alive=peak.alive)
    return worst


def _compare(call: MeasuredCall, peak_bytes: int, bounds: tuple[float, float]) -> CheckResult:
    return compare(
        call.meta,
        call.shape,
        call.dtype,
        call.slice_dim,
        call.backend.kind,
        call.parameters,
        peak_bytes,
        bounds,
    )


def _buffers_bytes(call: MeasuredCall) -> int:
    """Part of the peak that is gone where ufuncs are given the smallest buffers.

    No array of a method depends on their size. A plan counts them with Python's own memory, not
    with methods'. Both calls are made here: what a method keeps from one call to the next lowers
    a peak only while tracemalloc has seen it.
    """
    ordinary = call.measure().peak.counted_bytes
    n_items = np.setbufsize(_FEW_ITEMS)
    try:
        without = call.measure().peak.counted_bytes
    finally:
        np.setbufsize(n_items)
    if ordinary is None or without is None:
        return 0
    return min(BUFFERS_BYTES, max(0, ordinary - without))


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
    """Ask a method's estimator about a measured peak; nothing is run.

    Parameters
    ----------
    meta, shape, dtype, slice_dim, device, parameters
        The method and the block that was measured.
    peak_bytes : int
        Measured peak.
    bounds : (float, float)
        Lower and upper, as in `check_max_slices`.
    """
    other_dims = ArraySpec(shape, dtype).other_dims(slice_dim)
    told = {name: value for name, value in parameters.items() if name not in SUPPLIED}
    estimated, _ = meta.fitting_slices(
        slice_dim, other_dims, dtype, peak_bytes, told, device=device
    )
    request = ModelRequest(meta, slice_dim, other_dims, dtype, told, shape[slice_dim])
    model = declared_model(request, device)
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
        resolution_bytes=_resolution_bytes(ArraySpec(shape, dtype).nbytes, device),
    )


def _resolution_bytes(input_bytes: int, device: Device) -> int:
    """Difference of estimate and peak that is no finding, for an input of a size."""
    if input_bytes < HOST_NOISE_BYTES:
        return BUFFERS_BYTES
    return HOST_NOISE_BYTES if device == "cpu" else 0


def fractional_slices(model: MemoryModel, available_bytes: int, whole: int) -> float:
    """Slices that fit, with the part of one for which memory is left."""
    at, following = model.bytes(whole), model.bytes(whole + 1)
    if following <= at:
        return float(whole)
    return whole + min(1.0, max(0.0, (available_bytes - at) / (following - at)))


def _measure(call: MeasuredCall) -> tuple[list[CallResult], int, int, tuple[str, ...]]:
    """Run a method twice or more.

    The first call imports, compiles and fills caches. It is measured with other values than
    the second: where both peaks agree, memory does not depend on the data.

    Returns
    -------
    list of CallResult
        One for each distinct peak.
    int
        Bytes that the first call left in caches.
    int
        Bytes that a further call leaves.
    tuple of str
        Notes.
    """
    with tracemalloc_on(call.backend.kind):
        first = call.measure(seed=1)
        second = call.measure(seed=0)
        kept = second.kept_bytes
        runs = [second]
        if not _same(first, second):
            again = call.measure(seed=1)
            kept = min(kept, again.kept_bytes)
            if not _same(again, second):  # unless another thread allocated meanwhile
                second = min(
                    second, call.measure(seed=0), key=lambda run: run.peak.counted_bytes or 0
                )
                runs = [second] if _same(again, second) else [second, again]
    notes: tuple[str, ...] = ()
    if len(runs) == 2:
        peaks = sorted(run.peak.counted_bytes or 0 for run in runs)
        notes = (
            f"memory depends on the data: {peaks[0]:,} bytes with some, {peaks[1]:,} with others",
        )
    return runs, first.kept_bytes, kept, notes


def _same(one: CallResult, other: CallResult) -> bool:
    a, b = one.peak.counted_bytes, other.peak.counted_bytes
    if a is None or b is None:
        return a == b
    return abs(a - b) <= max(HOST_NOISE_BYTES, _SAME_PEAK * b)
