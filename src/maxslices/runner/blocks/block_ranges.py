"""Slices of each block, with and without its halo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """Slices that are worked on at one time."""

    start: int
    """First slice whose output is kept."""
    stop: int
    """One past the last of them."""
    first: int
    """First slice that methods are given: `start` minus the halo."""
    last: int
    """One past the last of these."""

    @property
    def n_given(self) -> int:
        """Slices that methods are given."""
        return self.last - self.first

    @property
    def core(self) -> slice:
        """Slices without the halo, as an index into what methods are given."""
        return slice(self.start - self.first, self.stop - self.first)

    @property
    def is_bare(self) -> bool:
        """True if the block has no halo."""
        return (self.start, self.stop) == (self.first, self.last)


def blocks_of(
    parts: Sequence[range], size: int, halo: tuple[int, int], n_slices: int
) -> list[Block]:
    """Divide intervals of slices into blocks of `size`; the last of each may be smaller.

    Parameters
    ----------
    parts : sequence of range
        The intervals, in order.
    size : int
        Slices in a block.
    halo : (int, int)
        Slices before and after a block that methods are given.
    n_slices : int
        Slices in all, beyond which no halo reaches.
    """
    found = []
    for part in parts:
        for begin in range(part.start, part.stop, size):
            stop = min(begin + size, part.stop)
            found.append(Block(begin, stop, max(0, begin - halo[0]), min(n_slices, stop + halo[1])))
    return found
