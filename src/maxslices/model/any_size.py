"""What recorded peaks tell about other sizes of the detector.

Formulas to the byte where there are some, else a bound; for all sizes, or for even and odd dims
apart, which real FFTs treat differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .memory_model import MemoryModel
from .peak_model import PeakModel
from .size_bound import SizeBound
from .size_model import LEAST_SIZES, Dims, SizeModel

FOLLOWED = (1, 2, 3, 5, 8, 16, 33, 64, 100, 1000)
"""Slices at which formulas in the dims must give what was recorded."""
SLICES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)
"""Slices at which bounds are found: single ones, where chunks begin, and the blocks of plans."""
Parity = tuple[int | None, int | None]
_PARITIES: tuple[tuple[Parity, ...], ...] = (
    ((None, None),),
    ((None, 0), (None, 1)),
    ((0, None), (1, None)),
    ((0, 0), (0, 1), (1, 0), (1, 1)),
)
"""Ways to divide dims: not at all, by the second, by the first, by both."""


@dataclass(frozen=True, slots=True)
class SizeClass:
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

    def as_plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        kind = "bound" if isinstance(self.peaks, SizeBound) else "formulas"
        return {"parity": list(self.parity), kind: self.peaks.as_plain()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> SizeClass:
        """Read what `as_plain` wrote.

        Raises
        ------
        ValueError, KeyError, TypeError
            If the values are not those of a class.
        """
        rows, columns = (None if each is None else int(each) % 2 for each in plain["parity"])
        if "bound" in plain:
            return cls((rows, columns), SizeBound.from_plain(plain["bound"]))
        return cls((rows, columns), SizeModel.from_plain(plain["formulas"]))


def fit_sizes(
    models: Mapping[Dims, MemoryModel], peaks: Mapping[Dims, PeakModel]
) -> tuple[SizeClass, ...]:
    """Find what recorded peaks tell about other dims.

    Parameters
    ----------
    models : mapping
        Memory models by their dims.
    peaks : mapping
        Their allocations, of those that each call followed from those with fewer slices.

    Returns
    -------
    tuple of SizeClass
        Of the ways in `_PARITIES` the first that leaves the fewest recorded dims without an answer,
        and of these the fewest with a bound in place of formulas. Empty if there is none.
    """
    best: tuple[SizeClass, ...] = ()
    lowest = len(models), 0
    for parities in _PARITIES:
        found, unknown, bounds = [], 0, 0
        for parity in parities:
            dims = [each for each in models if _is_of(parity, each)]
            told = _fit(dims, models, peaks) if dims else None
            if told is not None:
                found.append(SizeClass(parity, told))
            unknown += len(dims) - (0 if told is None else len(told.recorded))
            bounds += len(told.recorded) if isinstance(told, SizeBound) else 0
        if (unknown, bounds) < lowest:
            best, lowest = tuple(found), (unknown, bounds)
        if lowest == (0, 0):
            break
    return best


def _fit(
    dims: Sequence[Dims], models: Mapping[Dims, MemoryModel], peaks: Mapping[Dims, PeakModel]
) -> SizeModel | SizeBound | None:
    """Formulas or a bound, of as many of these dims as they hold for, the smallest left out first.

    What does not grow with the dims may be the highest in small slices alone.
    """
    ordered = sorted(dims, key=lambda each: each[0] * each[1])
    for first in range(max(1, len(dims) - LEAST_SIZES)):
        kept = ordered[first:]
        if all(each in peaks for each in kept):
            exact = SizeModel.fit({each: peaks[each] for each in kept}, FOLLOWED)
            if exact is not None:
                return exact
        whole = {each: {n: models[each].bytes(n) for n in SLICES} for each in kept}
        bound = SizeBound.fit(whole) or SizeBound.fit(whole, _moments(kept, peaks))
        if bound is not None:
            return bound
    return None


def _moments(
    dims: Sequence[Dims], peaks: Mapping[Dims, PeakModel]
) -> list[dict[Dims, dict[int, int]]]:
    """Bytes alive at each moment, as never falling, at the dims that have it."""
    found: dict[str, dict[Dims, dict[int, int]]] = {}
    for each in dims:
        if each not in peaks:
            continue
        for label in peaks[each].moments:
            sizes, most = {}, 0
            for n in SLICES:
                most = sizes[n] = max(most, peaks[each].moment_bytes(label, n))
            found.setdefault(label, {})[each] = sizes
    return [series for series in found.values() if len(series) >= LEAST_SIZES]


def _is_of(parity: Parity, dims: Dims) -> bool:
    return all(want is None or dim % 2 == want for want, dim in zip(parity, dims, strict=True))
