"""Results that are NaN or one value throughout: nothing fails, and nothing is in the picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from .writer import Target

_AT_ONCE = 2**16
"""Pixels that are compared at one time. The first two that differ end the search, so that a
picture costs one such part, and only a result without one is read whole."""


class ConstantCheck:
    """Looks for two different values in a result, block by block."""

    def __init__(self) -> None:
        self._is_varied = self._has_nan = False
        self._value: Any = None

    def look(self, block: NDArray[Any]) -> None:
        """Look at a block of the result."""
        for frame in _from_the_middle(block) if not self._is_varied else ():
            step = max(1, _AT_ONCE // max(1, frame[0].size))
            for row in range(0, len(frame), step):
                self._look_at(frame[row : row + step])
                if self._is_varied:
                    return

    def _look_at(self, part: NDArray[Any]) -> None:
        if part.dtype.kind == "f":
            nan = np.isnan(part)
            if nan.any():
                self._has_nan = True
                part = part[~nan]
        if not part.size:
            return
        if self._value is None:
            self._value = part.flat[0]
        self._is_varied = bool((part != self._value).any())

    def merge(self, other: ConstantCheck) -> None:
        """Add what another check saw of the same result."""
        known = self._value is not None and other._value is not None
        self._is_varied |= other._is_varied or (known and bool(self._value != other._value))
        self._has_nan |= other._has_nan
        if self._value is None:
            self._value = other._value

    @property
    def warning(self) -> str | None:
        """What is wrong with the result, as the end of a sentence; None for a picture."""
        if self._is_varied or (self._value is None and not self._has_nan):
            return None
        if self._value is None:
            what = "NaN"
        else:
            what = f"{self._value:g}" + (" or NaN" if self._has_nan else "")
        return f"is {what} throughout: look at the scan, its flats and darks and the parameters"


def _from_the_middle(block: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Frames of a block from its middle on: outer ones may lie outside of a circular mask."""
    middle = len(block) // 2
    yield from block[middle:]
    yield from block[:middle]


@dataclass(frozen=True, slots=True)
class CheckedTarget:
    """A result with a check of what is written to it."""

    target: Target
    """The result."""
    check: ConstantCheck
    """Sees every block."""

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the whole."""
        return self.target.spec

    def write(self, slice_dim: int, start: int, block: Any) -> None:
        """Write a block, and look at it."""
        self.target.write(slice_dim, start, block)
        self.check.look(block)
