"""A slice cut into tiles that overlap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod


@dataclass(frozen=True, slots=True)
class Window:
    """One tile of a slice."""

    given: tuple[slice, slice]
    """Part of the slice that a method is given: the tile with its halo."""
    kept: tuple[slice, slice]
    """Place of the tile within `given`."""
    place: tuple[slice, slice]
    """Place of the tile within the slice."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """Cut of slices into tiles of even size."""

    dims: tuple[int, int]
    """Dims of a slice."""
    tile: tuple[int, int]
    """Dims of a tile, without its halo; those at the end may be smaller."""
    halo: tuple[int, int]
    """Pixels on either side of a tile that a method is given too, within the slice."""

    @classmethod
    def into(cls, dims: tuple[int, int], parts: tuple[int, int], halo: tuple[int, int]) -> Tiling:
        """Cut slices into about `parts` tiles along each dim, of even size."""
        tile = -(-dims[0] // parts[0]), -(-dims[1] // parts[1])
        return cls(dims, tile, halo)

    @property
    def n_tiles(self) -> int:
        """Tiles of a slice."""
        return prod(-(-n // tile) for n, tile in zip(self.dims, self.tile, strict=True))

    @property
    def given_dims(self) -> tuple[int, int]:
        """Dims of the largest tile with its halo."""
        first, second = (
            max(given.stop - given.start for given, _, _ in self._along(axis)) for axis in (0, 1)
        )
        return first, second

    @property
    def factor(self) -> float:
        """Pixels that methods are given, for each pixel of the slice."""
        given = [sum(each.stop - each.start for each, _, _ in self._along(axis)) for axis in (0, 1)]
        return float(prod(given) / prod(self.dims))

    def windows(self) -> Iterator[Window]:
        """All tiles, row by row."""
        for rows, columns in product(self._along(0), self._along(1)):
            yield Window(*zip(rows, columns, strict=True))

    def _along(self, axis: int) -> list[tuple[slice, slice, slice]]:
        total, size, halo = self.dims[axis], self.tile[axis], self.halo[axis]
        found = []
        for start in range(0, total, size):
            stop = min(start + size, total)
            first, last = max(0, start - halo), min(total, stop + halo)
            kept = slice(start - first, stop - first)
            found.append((slice(first, last), kept, slice(start, stop)))
        return found

    def __str__(self) -> str:
        tile = "x".join(map(str, self.tile))
        halo = "x".join(map(str, self.halo))
        margin = f" and {halo} pixels around them" if any(self.halo) else ""
        return f"{self.n_tiles} tiles of {tile}{margin}"
