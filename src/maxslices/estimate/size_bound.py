"""Peaks for every size of the detector where no formula gives them to the byte.

The memory of a sort is padded, wavelets halve odd lengths, and what is cut into chunks grows in
steps. What is alive at one moment still follows a sum of products of the dims closely. At some
numbers of slices, the sum that lies nearest to what was recorded is raised above all of it. Between
these numbers straight lines join them, raised where memory grows in steps. The peak is the highest
moment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import ceil
from typing import Any

import numpy as np

from ..core.memory_model import MemoryModel
from ..core.plain_records import PlainRecord
from .size_model import LEAST_SIZES, Dims

PRODUCTS: dict[str, Callable[[int, int], int]] = {
    "rows * columns": lambda rows, columns: rows * columns,
    "columns * columns": lambda rows, columns: columns * columns,
    "rows": lambda rows, columns: rows,
    "columns": lambda rows, columns: columns,
    "1": lambda rows, columns: 1,
}
"""Products of dims: of a block, of a reconstruction, of tables along either dim, and constants."""
_AREAS = ("rows * columns", "columns * columns")
MOST_ABOVE = 0.02
"""Bounds lie no further above what was recorded: 98 % of the slices that fit are used, at least."""
FEW = 8
"""With fewer slices a bound may be further off: memory that does not grow with them, such as a
library's, follows no sum of products, and with more it lies below the peak of FBP2d_astra."""
_SPARE_SIZES = 2
"""Sizes that a bound must have beyond its unknowns, so that leaving one out still tests it."""
_CLOSE = 2e-4
"""A sum this near is taken, and longer ones are not tried."""
_MARGIN = 1e-4
"""Added to every bound: at other sizes padding may take a little more than at those recorded."""

SLICES = (*range(1, 65), 96, 128, 256, 1024)
"""Slices at which bounds are found: all up to where half a step, of two slices, is 0.8 %."""

Series = Mapping[Dims, Mapping[int, int]]
"""Bytes by number of slices, by dims."""


@dataclass(frozen=True)
class Surface(PlainRecord):
    """Upper bound of what is alive at one moment."""

    products: tuple[str, ...]
    """Keys of `PRODUCTS`."""
    factors: Mapping[int, tuple[float, ...]]
    """Bytes for each product, by the number of slices."""

    def check(self) -> None:
        """Raise an exception if there is no product of such a name, or are other factors."""
        lengths = {len(each) for each in self.factors.values()}
        if lengths != {len(self.products)} or not PRODUCTS.keys() >= set(self.products):
            raise ValueError("a bound without factors")

    def at(self, dims: Dims) -> dict[int, int]:
        """Bytes for two dims, by the number of slices."""
        values = [PRODUCTS[name](*dims) for name in self.products]
        return {
            n: ceil(sum(f * value for f, value in zip(factors, values, strict=True)))
            for n, factors in self.factors.items()
        }


@dataclass(frozen=True)
class SizeBound(PlainRecord):
    """Upper bound of a method's peaks for any dims."""

    moments: tuple[Surface, ...]
    """Bounds of what is alive at each moment; the peak is the highest."""
    steps: Mapping[int, float]
    """How far memory lies above the line that ends at a number of slices, as a part of its end."""
    above: float
    """How far it lies above a recorded peak at most, as a part of it, from `FEW` slices on."""
    above_few: float
    """The same with fewer slices."""
    recorded: tuple[Dims, ...]
    """Dims at which peaks were recorded."""

    def is_told(self, dims: Dims) -> bool:
        """True for dims that are not smaller than any recorded."""
        return dims[0] * dims[1] >= min(rows * columns for rows, columns in self.recorded)

    def model_at(self, dims: Dims) -> MemoryModel:
        """Memory model for two dims."""
        return MemoryModel(_Lines(_highest(self.moments, dims), self.steps).bytes)

    @classmethod
    def fit(cls, peaks: Series, moments: Sequence[Series] = ()) -> SizeBound | None:
        """Find the bound that lies nearest to all peaks.

        Parameters
        ----------
        peaks : mapping
            Peaks, never falling, at all dims with the same numbers of slices; among these are
            `SLICES`.
        moments : sequence of mapping
            Bytes alive at each moment, at those dims at which they come near the peak; by default
            the peak alone.

        Returns
        -------
        SizeBound or None
            None if every bound is more than `MOST_ABOVE` above some peak of `FEW` slices or more.
        """
        if len(peaks) < LEAST_SIZES:
            return None
        found = [_surface(_at_slices(series)) for series in moments or [peaks]]
        surfaces = tuple(each for each in found if each is not None)
        if not surfaces:
            return None
        made = cls(surfaces, _steps(peaks), 0.0, 0.0, tuple(peaks))
        above, few = 0.0, 0.0
        for dims, sizes in peaks.items():
            model = made.model_at(dims)
            for n, size in sizes.items():
                over = model.bytes(n) / size - 1
                if over < 0:
                    return None
                above, few = (max(above, over), few) if n >= FEW else (above, max(few, over))
        if above > MOST_ABOVE:
            return None
        return replace(made, above=_percent(above), above_few=_percent(few))

    @classmethod
    def of_one(cls, dims: Dims, sizes: Mapping[int, int]) -> SizeBound:
        """Bound for one size alone: its own peaks."""
        factors = {n: (float(size),) for n, size in sizes.items() if n in SLICES}
        return cls((Surface(("1",), factors),), _steps({dims: sizes}), 0.0, 0.0, (dims,))

    def as_plain(self) -> Any:
        """Plain values for JSON."""
        plain = super().as_plain()
        return plain | {"above": [plain["above"], plain.pop("above_few")]}

    @classmethod
    def from_plain(cls, plain: Any) -> SizeBound:
        """Read what `as_plain` wrote."""
        above, few = plain["above"]
        return super().from_plain({**plain, "above": above, "above_few": few})

    def check(self) -> None:
        """Raise an exception if it bounds nothing."""
        if not self.moments:
            raise ValueError("a bound without moments")


class _Lines:
    """Lines through points, raised between them where memory grows in steps."""

    def __init__(self, points: Mapping[int, int], steps: Mapping[int, float]) -> None:
        self.points, self.steps = sorted(points.items()), steps
        self._slices = [n for n, _ in self.points]

    def bytes(self, n: int) -> int:
        """Bytes for n slices; beyond the last point, the last line goes on."""
        i = min(max(bisect_left(self._slices, n), 1), len(self.points) - 1)
        (low, least), (high, most) = self.points[i - 1], self.points[i]
        if n == high:
            return most
        if n <= low:
            return least
        line = least - (least - most) * (n - low) // (high - low) + 1
        raised = line + int(self.steps.get(high, 0.0) * most)
        return min(raised, most) if n < high else raised


def _steps(peaks: Series) -> dict[int, float]:
    """How far peaks lie above lines, by the end of the line."""
    found: dict[int, float] = {}
    for sizes in peaks.values():
        points = {n: size for n, size in sizes.items() if n in SLICES}
        lines = _Lines(points, {})
        ends = sorted(points)
        for n, size in sizes.items():
            end = next((each for each in ends if each >= n), ends[-1])
            over = size - lines.bytes(n)
            if over > 0:
                part = _percent(over / points[end])
                found[end] = max(found.get(end, 0.0), part)
    return dict(sorted(found.items()))


def _at_slices(series: Series) -> Series:
    return {d: {n: size for n, size in each.items() if n in SLICES} for d, each in series.items()}


def _highest(moments: Sequence[Surface], dims: Dims) -> dict[int, int]:
    """Highest moment by number of slices, never falling."""
    each, most, found = [moment.at(dims) for moment in moments], 0, {}
    for n in sorted(each[0]):
        most = found[n] = max(most, *(sizes[n] for sizes in each))
    return found


def _surface(series: Series) -> Surface | None:
    """The sum of products nearest to what was recorded, raised above all of it; None if none is.

    Each size is left out in turn; where the sum found from the others is below it, the bound is
    raised by as much.
    """
    sizes, best, least = tuple(series), None, np.inf
    slices = sorted(set.intersection(*(set(each) for each in series.values())))
    wanted = np.array([[series[dims][n] for n in slices] for dims in sizes], float)
    for products in _subsets(len(sizes) - _SPARE_SIZES):
        values = np.array([[PRODUCTS[name](*dims) for name in products] for dims in sizes], float)
        found = _raised(values, wanted)
        if found is None:
            continue
        above = float((values @ found / wanted).max(axis=0)[-1]) - 1
        if above < least:
            rounded = [[_rounded_up(f) for f in found[:, i]] for i in range(len(slices))]
            best, least = (
                Surface(products, dict(zip(slices, map(tuple, rounded), strict=True))),
                above,
            )
        if least <= _CLOSE:
            break
    return best


def _subsets(most: int) -> Sequence[tuple[str, ...]]:
    """Sets of up to so many products, an area in each, the smallest first."""
    names = tuple(PRODUCTS)
    return [
        chosen
        for number in range(1, min(most, len(names)) + 1)
        for chosen in combinations(names, number)
        if set(chosen) & set(_AREAS)
    ]


def _raised(values: np.ndarray, wanted: np.ndarray) -> np.ndarray | None:
    """Factors of a bound, for each number of slices; None if any is negative.

    With negative factors a bound may fall as dims grow.
    """
    found = _nearest(values, wanted)
    if (found < 0).any() or not np.isfinite(found).all():
        return None
    lifts = np.maximum(_lift(values, wanted, found), 1.0)
    for i in range(len(wanted)):
        kept = np.arange(len(wanted)) != i
        others = _nearest(values[kept], wanted[kept])
        others = others * _lift(values[kept], wanted[kept], others)
        lifts = np.maximum(lifts, wanted[i] / np.maximum(values[i] @ others, 1.0))
    return np.asarray(found * lifts * (1 + _MARGIN))


def _nearest(values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Factors with the least squared distance from what is wanted, relative to the most slices."""
    weights = wanted[:, -1:]
    weighted = values / weights
    scale = np.abs(weighted).max(axis=0)  # products differ by seven orders of magnitude
    found = np.linalg.lstsq(weighted / scale, wanted / weights, rcond=None)[0]
    return np.asarray(found / scale[:, np.newaxis])


def _lift(values: np.ndarray, wanted: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """What raises factors above everything that is wanted."""
    return np.asarray((wanted / np.maximum(values @ factors, 1.0)).max(axis=0))


def _percent(part: float) -> float:
    """Part to a thousandth of a percent, not lower."""
    return round(part + 5e-6, 5)


def _rounded_up(factor: float) -> float:
    """Factor to seven digits, not lower."""
    return float(f"{factor * (1 + 1e-6):.7g}") if factor else 0.0
