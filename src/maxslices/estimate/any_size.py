"""What recorded peaks tell about other sizes of the detector.

Formulas to the byte where there are some, else a bound; for all sizes, or for even and odd dims
apart, which real FFTs treat differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ..core.memory_model import MemoryModel
from ..core.plain_records import PlainRecord
from .peak_model import PeakModel
from .size_bound import FEW, MOST_ABOVE, SLICES, SizeBound
from .size_model import LEAST_SIZES, Dims, SizeModel

FOLLOWED = (1, 2, 3, 5, 8, 16, 33, 64, 100, 1000)
"""Slices at which formulas in the dims must give what was recorded."""
_ALL = (*range(1, 129), *range(130, 1025, 7), *SLICES)
"""Slices at which memory is looked at."""
Parity = tuple[int | None, int | None]
_PARITIES: tuple[tuple[Parity, ...], ...] = (
    ((None, None),),
    ((None, 0), (None, 1)),
    ((0, None), (1, None)),
    ((0, 0), (0, 1), (1, 0), (1, 1)),
)
"""Ways to divide dims: not at all, by the second, by the first, by both."""


@dataclass(frozen=True)
class SizeClass(PlainRecord):
    """Peaks for dims of one parity."""

    parity: Parity
    """What is left of rows and columns divided by two; None for both."""
    peaks: SizeModel | SizeBound
    """Formulas, or a bound."""

    def is_told(self, dims: Dims) -> bool:
        """True if it answers for these dims."""
        return _is_of(self.parity, dims) and self.peaks.is_told(dims)

    @property
    def above(self) -> float:
        """How far it lies above a recorded peak at most; 0 for formulas."""
        return self.peaks.above if isinstance(self.peaks, SizeBound) else 0.0

    def as_plain(self) -> Any:
        """Plain values for JSON; the name of the peaks says which they are."""
        kind = "bound" if isinstance(self.peaks, SizeBound) else "formulas"
        return {"parity": list(self.parity), kind: self.peaks.as_plain()}

    @classmethod
    def from_plain(cls, plain: Any) -> SizeClass:
        """Read what `as_plain` wrote."""
        peaks = plain["bound"] if "bound" in plain else plain["formulas"]
        return super().from_plain({"parity": plain["parity"], "peaks": peaks})


@dataclass(frozen=True, slots=True)
class SizeEvidence:
    """What was recorded at one size."""

    model: MemoryModel
    """Memory model."""
    measured: Mapping[int, int]
    """Bytes of the calls that were made, by their slices."""
    peaks: PeakModel | None
    """Allocations, where each call followed from those with fewer slices."""

    @property
    def sizes(self) -> dict[int, int]:
        """Peaks by slices, never falling."""
        found, most = {}, 0
        for n in sorted(set(_ALL)):
            most = found[n] = max(most, self.model.bytes(n))
        return found


def fit_sizes(recorded: Mapping[Dims, SizeEvidence]) -> tuple[SizeClass, ...]:
    """Find what recorded peaks tell about other dims.

    Returns
    -------
    tuple of SizeClass
        Of the ways in `_PARITIES` the first that leaves the fewest recorded dims without an answer,
        and of these the fewest with a bound in place of formulas. Empty if there is none.
    """
    best: tuple[SizeClass, ...] = ()
    lowest = len(recorded), 0
    for parities in _PARITIES:
        found, unknown, bounds = [], 0, 0
        for parity in parities:
            own = {dims: each for dims, each in recorded.items() if _is_of(parity, dims)}
            told = _fit(own) if own else None
            if told is not None:
                found.append(SizeClass(parity, told))
            unknown += sum(told is None or not told.is_told(dims) for dims in own)
            bounds += sum(isinstance(told, SizeBound) and told.is_told(dims) for dims in own)
        if (unknown, bounds) < lowest:
            best, lowest = tuple(found), (unknown, bounds)
        if lowest == (0, 0):
            break
    return best


def _fit(recorded: Mapping[Dims, SizeEvidence]) -> SizeModel | SizeBound | None:
    """Formulas or a bound, of as many sizes as they hold for, the smallest left out first.

    What does not grow with the dims may be the highest in small slices alone.
    """
    ordered = sorted(recorded, key=lambda each: each[0] * each[1])
    for first in range(max(1, len(ordered) - LEAST_SIZES)):
        kept = {dims: recorded[dims] for dims in ordered[first:]}
        peaks = {dims: each.peaks for dims, each in kept.items() if each.peaks is not None}
        exact = SizeModel.fit(peaks, FOLLOWED)
        if exact is not None and _holds(exact, recorded):
            return exact
        whole = {dims: each.sizes for dims, each in kept.items()}
        bound = SizeBound.fit(whole)
        if bound is None and len(peaks) >= LEAST_SIZES:
            bound = SizeBound.fit({dims: whole[dims] for dims in peaks}, _moments(peaks))
        if bound is not None and _holds(bound, recorded):
            return bound
    return None


def _holds(found: SizeModel | SizeBound, recorded: Mapping[Dims, SizeEvidence]) -> bool:
    """True if it is not below any call, nor far above one, at other dims that it tells."""
    for dims, each in recorded.items():
        if dims in found.recorded or not found.is_told(dims):
            continue
        model = found.model_at(dims)
        for n, size in each.measured.items():
            most = MOST_ABOVE if n >= FEW else 1.0
            if not size <= model.bytes(n) <= (1 + most) * size:
                return False
    return True


def _moments(peaks: Mapping[Dims, PeakModel]) -> list[dict[Dims, dict[int, int]]]:
    """Bytes alive at each moment, at the dims that have it."""
    found: dict[str, dict[Dims, dict[int, int]]] = {}
    for dims, model in peaks.items():
        at = {n: model.moments_bytes(n) for n in SLICES}
        for label in model.moments:
            rising = accumulate((at[n][label] for n in SLICES), max)
            found.setdefault(label, {})[dims] = dict(zip(SLICES, rising, strict=True))
    return [series for series in found.values() if len(series) >= LEAST_SIZES]


def _is_of(parity: Parity, dims: Dims) -> bool:
    return all(want is None or dim % 2 == want for want, dim in zip(parity, dims, strict=True))
