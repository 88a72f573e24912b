"""Comparison of a method's estimator with the measured peak."""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import DTypeLike

from ..core.allocators import Device, round_to_granule
from ..core.any_dims import BlockMethod
from ..core.arrays import ArraySpec, as_dtype, block_shape
from ..core.ledger import Allocation, Ledger, LedgerEstimator
from ..core.memory_model import MemoryModel
from ..core.method_meta import MethodMeta
from ..core.named_method import method_named
from ..core.parameters import matches
from ..core.units import format_bytes
from ..devices import select_backend
from ..errors import ParameterError, UsageError
from ..estimate import ModelRequest, declared_model
from ..measure import Alive
from ..measure.host_memory import tracemalloc_on
from ..trial.made_up import DataKind
from ..trial.trial import NOISE_BYTES, MeasuredCall, Trial, check_given, require_slice_dim
from ..tuning.garbage_collection import quick_collections
from .check_result import LOWER, UPPER, CheckResult, EstimateError

BUFFERS_BYTES = 3 * 8192 * 8
"""Bytes of NumPy's buffers for casting, one for each of three operands. NumPy uses them for some
shapes, and they are a large part of the memory of a tiny array. For an input of less than
`NOISE_BYTES`, differences below this are ignored."""
_HEADER_BYTES = 512
"""Difference between an allocation as measured and as entered in a ledger, due to alignment."""
_SAME_PEAK = 0.01
"""Relative difference below which peaks count as equal: less than one of 64 slices."""


def check_max_slices(
    method: Callable[..., Any] | MethodMeta | str,
    shape: Sequence[int],
    dtype: DTypeLike,
    lower: float | None = None,
    upper: float | None = None,
    device: str | None = None,
    **parameters: Any,
) -> CheckResult:
    """Run a method, and check its estimator against the measured peak.

    Parameters
    ----------
    method : callable, MethodMeta or str
        A registered function, its ``.meta``, or its name.
    shape : sequence of int
        Shape of the input (angles, detector_y, detector_x), including the slices. A method with a
        ledger may have any number of dims. The result then shows three: the slices, and the
        products of the dims before and after them.
    dtype : dtype-like
        Input dtype.
    lower, upper : float, optional
        Bounds of estimated slices over slices run; by default 0.80 and 1.00.
    device : str, optional
        "cpu", "cuda", "cuda:N", or "auto", the default: a GPU if present.
    **parameters
        Parameters of the method. ``slice_dim`` is the axis of the slices. By default it is the
        first that the pattern allows, and axis 0 for other than three dims. Missing flats, darks
        and angles are generated.

    Returns
    -------
    CheckResult
        Prints as a table.

    Raises
    ------
    EstimateError
        An `AssertionError`: the estimate is out of bounds, the output does not have the declared
        dims or dtype, no meter attributes part of the memory, or the method modifies its input or
        keeps memory.
    EstimatorError
        If the estimator raises, or does not return a number of slices.
    UsageError
        If shape, dtype or bounds are invalid.

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
    own = {"lower": lower, "upper": upper, "device": device}
    return check_by_options(method, shape, dtype, own, parameters)


def check_by_options(
    method: Callable[..., Any] | MethodMeta | str,
    shape: Sequence[int],
    dtype: DTypeLike,
    own: Mapping[str, Any],
    parameters: dict[str, Any],
    *,
    lower: float = LOWER,
    upper: float = UPPER,
    device: str = "auto",
) -> CheckResult:
    """Check as `check_max_slices`, whose keywords are in `own`, with None for the defaults."""
    __tracebackhide__ = True
    meta = find_method(method)
    options = {name: value for name, value in own.items() if value is not None}
    for name in options:
        if name in meta.parameters:
            raise ParameterError(
                f"{name!r} is a parameter of {meta.full_name}, and of max_slices itself: give it "
                "in the parameters of a Case, to a MethodConformance"
            )
    lower, upper = options.get("lower", lower), options.get("upper", upper)
    device = options.get("device", device)
    for bound in (lower, upper):
        if not matches(float, bound) or math.isnan(bound):  # also for NaN
            raise UsageError(f"lower and upper must be numbers, not {lower!r} and {upper!r}")
    slice_dim = parameters.get("slice_dim")
    if len(shape) != 3 or slice_dim == 2:
        blocks = _of_any_dims(meta, shape, dtype, parameters)
        meta, shape, parameters = blocks.meta, blocks.flat(blocks.shape), {}
        slice_dim = blocks.slice_dim
    elif slice_dim is None:
        slice_dim = meta.slice_dims()[0]
    elif "slice_dim" not in meta.parameters:
        parameters.pop("slice_dim")
    if lower > upper:
        raise UsageError(f"lower, {lower}, is above upper, {upper}")
    spec = ArraySpec(tuple(shape), as_dtype(dtype))
    trial = trial_of(meta, spec, slice_dim, device, parameters)
    trial.detects_changes = True
    result = check_trial(trial, lower, upper)
    if not result.ok:
        raise EstimateError(result)
    return result


def _of_any_dims(
    meta: MethodMeta, shape: Sequence[int], dtype: DTypeLike, parameters: dict[str, Any]
) -> BlockMethod:
    """Method of arrays of these dims as a method of three dims, by `BlockMethod`."""
    if not isinstance(meta.estimator, LedgerEstimator):
        raise UsageError(
            f"{meta.full_name} has no ledger, which is necessary for arrays of {len(shape)} dims: "
            "make its estimator with from_ledger"
        )
    axis = parameters.pop("slice_dim", 0)
    return BlockMethod(meta, shape, dtype, axis, None, parameters)


def find_method(method: Callable[..., Any] | MethodMeta | str) -> MethodMeta:
    """Find the record of a method by function, record or name."""
    if isinstance(method, str):
        return method_named(method)
    meta = method if isinstance(method, MethodMeta) else getattr(method, "meta", None)
    if not isinstance(meta, MethodMeta):
        name = getattr(method, "__name__", repr(method))
        raise UsageError(
            f"{name} is not a registered method: decorate it with maxslices.method, or pass "
            "the MethodMeta that registry.register returned"
        )
    return meta


def trial_of(
    meta: MethodMeta,
    spec: ArraySpec,
    slice_dim: int,
    device: str,
    parameters: Mapping[str, Any],
    make_data: Callable[..., Any] | None = None,
) -> Trial:
    """Make the trial of a method on a block that has all slices of the scan."""
    check_given(meta, parameters)
    require_slice_dim(meta, slice_dim)
    return Trial(
        meta,
        slice_dim,
        spec.other_dims(slice_dim),
        spec.dtype,
        select_backend(device),
        parameters,
        make_data=make_data,
        total_slices=spec.shape[slice_dim],
    )


def check_trial(
    trial: Trial, lower: float = LOWER, upper: float = UPPER, *, trace: bool | None = True
) -> CheckResult:
    """Measure calls and compare, without raising an error for an estimate out of bounds.

    Parameters
    ----------
    trial : Trial
        The method with its data.
    lower, upper : float
        As in `check_max_slices`.
    trace : bool or None
        Whether to find the allocations alive at the peak, which takes another run. None: only if
        the check fails.
    """
    gc.collect()  # a full collection, because `quick_collections` skips earlier objects
    with quick_collections():
        return _check(trial, lower, upper, trace)


def _check(trial: Trial, lower: float, upper: float, trace: bool | None) -> CheckResult:
    runs, cached_bytes, kept_bytes, notes = _measure(trial)
    if cached_bytes:
        notes = (*notes, f"{cached_bytes:,} bytes stay in caches after the first call: counted")
    unseen = tuple(dict.fromkeys(text for run in runs for text in run.unseen))
    if trial.peak is None or trial.peak.counted_bytes is None:
        raise UsageError(
            f"{trial.meta.full_name}: its peak cannot be measured: "
            f"{'; '.join(unseen) or 'no meter is available'}"
        )
    request, device = _request(trial), trial.backend.kind
    bounds = lower, upper
    results = [compare(request, device, _in_arrays(run) + cached_bytes, bounds) for run in runs]
    worst = max(results, key=lambda result: (result.verdict != "ok", abs(result.ratio - 1)))
    worst = replace(
        worst,
        parameters=trial.parameters,
        wrong_output=trial.wrong_output(),
        unseen=unseen,
        kept_bytes=kept_bytes,
        changes_input=trial.changed_input,
        notes=(*notes, *worst.notes),
    )
    if trace or (trace is None and not worst.ok):
        trial.is_recorded = True
        trial.once()
        alive = () if trial.peak is None else trial.peak.alive
        worst = replace(
            worst,
            where=alive[-1].where if alive else None,
            alive=tuple(sorted(alive, key=lambda row: -row.n_bytes)),
            missing=missing_from_ledger(request, device, alive),
        )
    return worst


class _MeteredLedger(Ledger):
    """Ledger that stores the allocations alive at its peak.

    On a CPU it omits the memory of C libraries, which meters do not see.
    """

    __slots__ = ("_alive", "at_peak")

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._alive: Counter[int] = Counter()
        self.at_peak: Counter[int] = Counter()

    def alloc_bytes(self, n_bytes: int) -> Allocation:
        before = self.peak_bytes
        allocation = super().alloc_bytes(n_bytes)
        self._alive[allocation.n_bytes] += 1
        if self.peak_bytes > before:
            self.at_peak = self._alive.copy()
        return allocation

    def free(self, *allocations: Allocation) -> None:
        super().free(*allocations)
        self._alive.subtract(allocation.n_bytes for allocation in allocations)

    def library(self, n_bytes: int, *, kept: bool = False) -> Allocation:
        return super().library(0 if self.device == "cpu" else n_bytes, kept=kept)


def _request(trial: Trial) -> ModelRequest:
    """Request for the memory of a trial's call."""
    axis, parameters = trial.slice_dim, trial.own_parameters
    return ModelRequest(trial.meta, axis, trial.other_dims, trial.dtype, parameters, trial.n_slices)


def _enter(ledger: Ledger, request: ModelRequest) -> bool:
    """Enter the allocations of all slices. Returns False for a method without a ledger."""
    estimator = request.meta.estimator
    if not isinstance(estimator, LedgerEstimator):
        return False
    parameters = request.meta.merged(**request.parameters)
    estimator.entered(*request.slices, **parameters)(ledger, request.total_slices)
    return True


def unmetered_bytes(request: ModelRequest) -> int:
    """Part of a ledger's peak on a CPU from `Ledger.library`, which meters do not see."""
    whole, metered = Ledger("cpu"), _MeteredLedger("cpu")
    for ledger in (whole, metered):
        _enter(ledger, request)
    return whole.peak_bytes - metered.peak_bytes


def missing_from_ledger(
    request: ModelRequest, device: Device, alive: Sequence[Alive]
) -> tuple[str, ...]:
    """Arrays alive at a measured peak without an allocation of that size in the method's ledger.

    Empty for other estimators.
    """
    ledger = _MeteredLedger(device)
    missing = []
    for row in alive if _enter(ledger, request) else ():
        size = round_to_granule(row.n_bytes) if device == "cuda" else row.n_bytes
        near = (k for k, n in ledger.at_peak.items() if n > 0 and abs(k - size) <= _HEADER_BYTES)
        match = next(near, None)
        if match is not None:
            ledger.at_peak[match] -= 1
        elif size > NOISE_BYTES["cpu"]:
            line, code = row.where.line, row.where.code
            missing.append(f"line {line} ({code})" if code else "an array")
    return tuple(missing)


def _in_arrays(call: MeasuredCall) -> int:
    """Peak of the allocators' memory."""
    return call.n_bytes - call.outside_bytes


def compare(
    request: ModelRequest,
    device: Device,
    peak_bytes: int,
    bounds: tuple[float, float] = (LOWER, UPPER),
) -> CheckResult:
    """Compare a method's estimator with a measured peak, without running the method.

    Entries of a ledger for C libraries on a CPU are omitted.

    Parameters
    ----------
    request : ModelRequest
        The method and the block that was measured.
    device : {"cuda", "cpu"}
        Kind of the device of the measurement.
    peak_bytes : int
        Measured peak.
    bounds : (float, float)
        Lower and upper, as in `check_max_slices`.
    """
    meta, n_slices, parameters = request.meta, request.total_slices, request.parameters
    model = declared_model(request, device)
    model_bytes = model.bytes(n_slices)  # first, as its errors name the ledger and its line
    library_bytes = unmetered_bytes(request) if device == "cpu" else 0
    available_bytes = peak_bytes + library_bytes
    estimated, _ = meta.fitting_slices(*request.slices, available_bytes, parameters, device)
    spec = ArraySpec(block_shape(request.slice_dim, n_slices, request.other_dims), request.dtype)
    unseen = f"{format_bytes(library_bytes)} of libraries, which no meter sees: left out"
    return CheckResult(
        method=meta.full_name,
        shape=(spec.shape[0], spec.shape[1], spec.shape[2]),
        dtype=str(spec.dtype),
        parameters=parameters,
        slice_dim=request.slice_dim,
        device=device,
        slices=n_slices,
        estimated_slices=estimated,
        fraction=fractional_slices(model, available_bytes, estimated),
        peak_bytes=peak_bytes,
        estimated_bytes=model_bytes - library_bytes,
        lower=bounds[0],
        upper=bounds[1],
        resolution_bytes=_resolution_bytes(spec.nbytes, device),
        notes=(unseen,) if library_bytes else (),
    )


def _resolution_bytes(input_bytes: int, device: Device) -> int:
    """Largest difference of estimate and peak that is ignored."""
    if input_bytes < NOISE_BYTES["cpu"]:
        return BUFFERS_BYTES
    return NOISE_BYTES["cpu"] if device == "cpu" else 0


def fractional_slices(model: MemoryModel, available_bytes: int, whole: int) -> float:
    """Slices that fit, with the fraction of a slice for the remaining memory."""
    at, following = model.bytes(whole), model.bytes(whole + 1)
    if following <= at:
        return float(whole)
    return whole + min(1.0, max(0.0, (available_bytes - at) / (following - at)))


def _measure(trial: Trial) -> tuple[list[MeasuredCall], int, int, tuple[str, ...]]:
    """Run a method twice or more.

    The first call imports, compiles and fills caches. Its data have other values than those of the
    second call. If both peaks agree, memory does not depend on the data.

    Returns
    -------
    list of MeasuredCall
        One for each distinct peak.
    int
        Bytes that the first call left in caches.
    int
        Bytes that a further call retains.
    tuple of str
        Notes.
    """

    def measured(kind: DataKind) -> tuple[MeasuredCall, int]:
        """Measure one call, and the bytes still alive after its result and FFT plans are freed."""
        trial.kind = kind
        trial.prepare()
        before = trial.alive_bytes()
        call = trial.once()
        return call, max(0, trial.alive_bytes() - before)

    with tracemalloc_on(trial.backend.kind):
        first, cached = measured("dark")
        second, kept = measured("even")
        runs = [second]
        if not _same(first, second):
            again, also_kept = measured("dark")
            kept = min(kept, also_kept)
            if not _same(again, second):  # unless another thread allocated meanwhile
                second = min(second, measured("even")[0], key=_in_arrays)
                runs = [second] if _same(again, second) else [second, again]
        trial.kind = "even"
    notes: tuple[str, ...] = ()
    if len(runs) == 2:
        low, high = sorted(map(_in_arrays, runs))
        notes = (f"memory depends on the data: {low:,} bytes with some, {high:,} with others",)
    return runs, cached, kept, notes


def _same(one: MeasuredCall, other: MeasuredCall) -> bool:
    a, b = _in_arrays(one), _in_arrays(other)
    return abs(a - b) <= max(NOISE_BYTES["cpu"], _SAME_PEAK * b)
