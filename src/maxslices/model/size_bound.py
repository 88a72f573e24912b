"""Peaks for every size of the detector where no formula gives them to the byte.

The memory of a sort is padded, wavelets halve odd lengths, and what is cut into chunks grows in
steps. Such peaks still follow a sum of products of the dims closely. At some numbers of slices, the
sum that lies nearest to all recorded peaks is raised above the highest of them; between these
numbers straight lines join it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from .memory_model import MemoryModel
from .size_model import Dims

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
_SPARE_SIZES = 2
"""Sizes that a bound must have beyond its unknowns, so that leaving one out still tests it."""


@dataclass(frozen=True)
class SizeBound:
    """Upper bound of a method's peaks for any dims."""

    products: tuple[str, ...]
    """Keys of `PRODUCTS`."""
    factors: Mapping[int, tuple[float, ...]]
    """Bytes for each product, by the number of slices."""
    above: float
    """How far it lies above a recorded peak at most, as a part of it."""
    recorded: tuple[Dims, ...]
    """Dims at which peaks were recorded."""

    def is_told(self, dims: Dims) -> bool:
        """True for dims that are not smaller than any recorded."""
        return dims[0] * dims[1] >= min(rows * columns for rows, columns in self.recorded)

    def model_at(self, dims: Dims) -> MemoryModel:
        """Memory model for two dims."""
        values = [PRODUCTS[name](*dims) for name in self.products]
        most, points = 0, []
        for n, factors in sorted(self.factors.items()):
            size = sum(f * value for f, value in zip(factors, values, strict=True))
            most = max(most, int(size) + 1)
            points.append((n, most))
        return MemoryModel.piecewise(points)

    @classmethod
    def fit(cls, peaks: Mapping[Dims, Mapping[int, int]]) -> SizeBound | None:
        """Find the bound that lies nearest to all peaks.

        Each size is left out in turn; where the bound of the others is below its peak, the bound is
        raised by as much.

        Parameters
        ----------
        peaks : mapping
            Bytes by number of slices, the same numbers at all dims.

        Returns
        -------
        SizeBound or None
            None if every bound is more than `MOST_ABOVE` above some peak.
        """
        sizes, best = tuple(peaks), None
        slices = sorted(set.intersection(*(set(each) for each in peaks.values())))
        wanted = np.array([[peaks[dims][n] for n in slices] for dims in sizes], float)
        for products in _subsets(len(sizes) - _SPARE_SIZES):
            values = np.array([[PRODUCTS[name](*dims) for name in products] for dims in sizes])
            found = _raised(values.astype(float), wanted)
            if found is None:
                continue
            above = float((values @ found / wanted).max()) - 1
            if above <= MOST_ABOVE and (best is None or above < best.above):
                factors = {n: tuple(map(float, found[:, i])) for i, n in enumerate(slices)}
                best = cls(products, factors, above, sizes)
        return best

    def as_plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "products": list(self.products),
            "factors": [[n, [_rounded_up(f) for f in each]] for n, each in self.factors.items()],
            "above": round(self.above + 5e-6, 5),
            "recorded": [list(dims) for dims in self.recorded],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> SizeBound:
        """Read what `as_plain` wrote.

        Raises
        ------
        ValueError, KeyError, TypeError
            If the values are not those of a bound.
        """
        products = tuple(map(str, plain["products"]))
        for name in products:
            PRODUCTS[name]  # raises if there is none of that name
        factors = {int(n): tuple(map(float, each)) for n, each in plain["factors"]}
        if not factors or any(len(each) != len(products) for each in factors.values()):
            raise ValueError("a bound without factors")
        recorded = tuple((int(a), int(b)) for a, b in plain["recorded"])
        return cls(products, factors, float(plain["above"]), recorded)


def _subsets(most: int) -> Sequence[tuple[str, ...]]:
    """Sets of up to so many products, an area in each."""
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
    lifts = np.ones(wanted.shape[1])
    for i in range(len(wanted)):
        kept = np.arange(len(wanted)) != i
        others = _nearest(values[kept], wanted[kept])
        others = others * _lift(values[kept], wanted[kept], others)
        lifts = np.maximum(lifts, wanted[i] / np.maximum(values[i] @ others, 1.0))
    found = found * np.maximum(_lift(values, wanted, found), 1.0) * lifts
    return None if (found < 0).any() or not np.isfinite(found).all() else found


def _nearest(values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Factors with the least squared relative distance from what is wanted."""
    columns = []
    for i in range(wanted.shape[1]):
        weighted = values / wanted[:, i : i + 1]
        columns.append(np.linalg.lstsq(weighted, np.ones(len(wanted)), rcond=None)[0])
    return np.stack(columns, axis=1)


def _lift(values: np.ndarray, wanted: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """What raises factors above everything that is wanted."""
    return np.asarray((wanted / np.maximum(values @ factors, 1.0)).max(axis=0))


def _rounded_up(factor: float) -> float:
    """Factor to eight digits, not lower."""
    return float(f"{factor * (1 + 1e-8):.8g}") if factor else 0.0
