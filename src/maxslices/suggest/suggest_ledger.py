"""Suggest a ledger for a method: run it on a few small blocks, and write down what it allocates."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..checking.estimate_check import find_method
from ..core.allocators import Device
from ..core.arrays import as_dtype
from ..core.ledger import Ledger, LedgerEstimator
from ..core.method_meta import MethodMeta
from ..errors import EstimatorError, UsageError
from ..tuning.garbage_collection import quick_collections
from .alloc_call import CLOSE, AllocCall, SizeFinder
from .dim_expressions import Blocks
from .fft_plans import plan_lines
from .ledger_text import LedgerParts, ledger_text
from .peak_parts import peak_parts
from .sequence_parts import fold_runs, sequence_parts, with_other_dtype
from .traced_runs import RunMaker, TracedRun

_NOISE_BYTES = {"cpu": 16 * 1024, "cuda": 0}
"""Peaks that differ by less agree: small objects of Python's own on the CPU."""


_WHOLE_BYTES = 1024
"""A constant is rounded up to this: small objects of Python differ by 100 bytes from call to call
(3,258 and 3,314 for gaussian_filter, 2026-11-27)."""
_BUFFERS_BYTES = {"cpu": 256 * 1024, "cuda": 16 * 512}
"""What is not explained and no more than this is taken for a constant: a ufunc that casts has up to
three buffers of 8192 elements; on a GPU small arrays take granules."""
_SUMMED = "those alive at the peak are listed, and sizes that no formula gives as their sum"
_BY_PEAK = "allocations differ in order between blocks: those alive at the peak are listed"


@dataclass(frozen=True, slots=True)
class SuggestedLedger:
    """A ledger function as text, and how it was found."""

    text: str
    """Python source of the function, with its imports."""
    device: Device
    """Where the method was run."""
    runs: tuple[TracedRun, ...]
    """The runs of which it was made."""
    ratios: tuple[float, ...]
    """Estimated over measured peak in each run."""
    notes: tuple[str, ...] = ()
    """What is not exact, and why."""

    def estimator(self) -> LedgerEstimator:
        """The ledger, ready to be declared as ``calc_max_slices``."""
        return _executed(self.text)

    def __str__(self) -> str:
        low, high = min(self.ratios), max(self.ratios)
        shapes = ", ".join("x".join(map(str, run.shape)) for run in self.runs[:3])
        said = [
            f"# {low:.3f} to {high:.3f} of the peaks measured on {len(self.runs)} blocks "
            f"({shapes} ...).",
            *(f"# Note: {note}." for note in self.notes),
        ]
        return "\n".join([self.text.rstrip(), "", *said])

    def to_dict(self) -> dict[str, Any]:
        """Text and figures as values that JSON knows."""
        return {
            "ledger": self.text,
            "device": self.device,
            "runs": [
                {"shape": list(run.shape), "peak_bytes": run.peak_bytes, "ratio": round(ratio, 6)}
                for run, ratio in zip(self.runs, self.ratios, strict=True)
            ],
            "notes": list(self.notes),
        }


def suggest_ledger(
    method: Callable[..., Any] | MethodMeta | str,
    dtype: DTypeLike = "float32",
    parameters: Mapping[str, Any] | None = None,
    device: str = "auto",
    slice_dim: int | None = None,
) -> SuggestedLedger:
    """Write the ledger of a method from its allocations on a few small blocks.

    Parameters
    ----------
    method : callable, MethodMeta or str
        A registered function, its ``.meta``, or its name; of any other function the name, as in
        ``"scipy.ndimage:gaussian_filter"``.
    dtype : dtype-like
        Of its input.
    parameters : mapping, optional
        Of the method: the ledger is for these.
    device : str
        "auto", "cpu", "cuda" or "cuda:N".
    slice_dim : int, optional
        Axis of the slices; by default the first that the pattern allows.

    Returns
    -------
    SuggestedLedger

    Raises
    ------
    EstimatorError
        If the method runs on too few of the blocks.
    UsageError
        If SciPy is not installed, or the method is none.

    Notes
    -----
    Sizes are fitted to products of dims, of FFT lengths and of padded dims. Where one does not fit,
    the line says that it is a bound. Where the order of allocations differs from block to block (in
    threads, say), the ledger lists what is alive at the peak instead.
    """
    if importlib.util.find_spec("scipy") is None:
        raise UsageError("a ledger is fitted by SciPy, which is not installed: pip install scipy")
    meta = find_method(method)
    axis = meta.slice_dims()[0] if slice_dim is None else slice_dim
    gc.collect()
    with quick_collections():
        return _suggested(meta, as_dtype(dtype), parameters or {}, device, axis)


def _suggested(
    meta: MethodMeta,
    element: np.dtype[Any],
    parameters: Mapping[str, Any],
    device: str,
    axis: int,
) -> SuggestedLedger:
    maker = RunMaker(meta, axis, device, parameters)
    runs = maker.runs(element)
    finder = SizeFinder(Blocks(tuple(run.shape for run in runs), axis))
    folded = fold_runs(runs)
    found: SuggestedLedger | None = None
    if folded is not None:
        other, follows = with_other_dtype(maker, folded, element)
        dtypes = [element] if other is None else [element, other]
        notes: tuple[str, ...] = ()
        own = finder
        if len(folded.runs) < len(runs):
            own = SizeFinder(Blocks(tuple(run.shape for run in folded.runs), axis))
            others = len(runs) - len(folded.runs)
            notes = (f"{others} of {len(runs)} blocks take another way: covered by their peak",)
        parts = sequence_parts(folded, own, element.itemsize, follows)
        found = None if parts is None else _completed(parts, runs, finder, maker, notes, dtypes)
    if found is None:
        parts = peak_parts(runs, finder, element.itemsize)
        found = _completed(parts, runs, finder, maker, (_BY_PEAK,), [element])
    assert found is not None
    if max(found.ratios) > 1 + CLOSE:
        parts = peak_parts(runs, finder, element.itemsize, is_summed=True)
        summed = _completed(parts, runs, finder, maker, (_SUMMED,), [element])
        if summed is not None and max(summed.ratios) < max(found.ratios):
            found = summed
    return found


def _with_plans(parts: LedgerParts, runs: list[TracedRun], finder: SizeFinder) -> LedgerParts:
    return replace(parts, plans=plan_lines([run.plans for run in runs], finder))


def _text(parts: LedgerParts, maker: RunMaker, dtypes: Sequence[np.dtype[Any]]) -> str:
    names = [str(dtype) for dtype in dtypes]
    given = "".join(f", {name}={value!r}" for name, value in maker.parameters.items())
    said = (
        f"Allocations of {maker.meta.name} of {' and '.join(names)} data{given}, as seen on "
        f"{maker.backend_kind}."
    )
    return ledger_text(replace(parts, header=[said]), names)


def _completed(
    parts: LedgerParts,
    runs: list[TracedRun],
    finder: SizeFinder,
    maker: RunMaker,
    notes: tuple[str, ...],
    dtypes: Sequence[np.dtype[Any]],
) -> SuggestedLedger | None:
    """Add what the lines do not explain, and hold the text against the runs; None if it fails.

    What grows with the blocks and is no array (bytes, lists) is known of the first dtype alone.
    """
    kind = maker.backend_kind
    parts = _with_plans(parts, runs, finder)
    text = _text(parts, maker, dtypes)
    try:
        peaks = [_peak(text, run, kind) for run in runs]
    except (ValueError, IndexError, UnboundLocalError):
        return None
    lacking = [max(0, run.peak_bytes - peak) for run, peak in zip(runs, peaks, strict=True)]
    if any(lacking):
        steady = max(lacking) <= max(2 * min(lacking) + _NOISE_BYTES[kind], _BUFFERS_BYTES[kind])
        constant = -(-max(lacking) // _WHOLE_BYTES) * _WHOLE_BYTES
        beside = (
            AllocCall((), "", f"{constant:_}")
            if steady
            else finder.bound(lacking, [run.peak_bytes for run in runs])
        )
        objects = "buffers of ufuncs and small objects" if steady else "objects that are no arrays"
        said = objects if kind == "cpu" else "outside the pool"
        parts = replace(parts, beside=beside, beside_is=said)
        text = _text(parts, maker, dtypes if steady else dtypes[:1])
        peaks = [_peak(text, run, kind) for run in runs]
    bounds = sum(formula.is_bound for formula in parts.formulas.values())
    if bounds:
        notes = (*notes, f"{bounds} sizes are bounds: no formula of the dims gives them")
    ratios = tuple(peak / run.peak_bytes for run, peak in zip(runs, peaks, strict=True))
    return SuggestedLedger(text, kind, tuple(runs), ratios, notes)


def _peak(text: str, run: TracedRun, kind: Device) -> int:
    ledger = Ledger(kind)
    _executed(text).function(ledger, run.shape, run.dtype)
    return ledger.peak_bytes


def _executed(text: str) -> LedgerEstimator:
    scope: dict[str, Any] = {}
    exec(compile(text, "<suggested ledger>", "exec"), scope)
    found = [value for value in scope.values() if isinstance(value, LedgerEstimator)]
    if len(found) != 1:
        raise EstimatorError("the suggested text defines no ledger")
    return found[0]
