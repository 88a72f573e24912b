"""Slices of each block, with and without its halo."""

from __future__ import annotations

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
    start: int, end: int, size: int, halo: tuple[int, int], n_slices: int | None = None
) -> list[Block]:
    """Divide slices `start` to `end` into blocks of `size`; the last one may be smaller.

    Parameters
    ----------
    n_slices : int, optional
        Slices in all, where these are a part, so that the last halo lies beyond `end`.
    """
    total = end if n_slices is None else n_slices
    found = []
    for begin in range(start, end, size):
        stop = min(begin + size, end)
        found.append(Block(begin, stop, max(0, begin - halo[0]), min(total, stop + halo[1])))
    return found
