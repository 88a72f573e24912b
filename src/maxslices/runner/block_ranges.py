"""Which slices each block has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_SPARE = 8
"""A last block is filled up with slices before it if these are fewer than a part in so many."""


@dataclass(frozen=True, slots=True)
class Block:
    """Slices that are worked on at one time."""

    start: int
    """The first slice that counts."""
    stop: int
    """One past the last of them."""
    first: int
    """The first slice that methods are given: `start` less the halo."""
    last: int
    """One past the last of these."""

    @property
    def n_given(self) -> int:
        """Return the slices that methods are given."""
        return self.last - self.first

    @property
    def core(self) -> slice:
        """Return where in what methods are given the slices are that count."""
        return slice(self.start - self.first, self.stop - self.first)

    @property
    def is_bare(self) -> bool:
        """Tell whether all slices count that methods are given."""
        return (self.start, self.stop) == (self.first, self.last)


def blocks_of(
    start: int, total: int, size: int, halo: tuple[int, int], firsts: Sequence[int] = ()
) -> list[Block]:
    """Return blocks of `size` slices from `start` on, after the first ones of other sizes.

    The last one has fewer, as a rule. Where it lacks little, it is given slices of the one
    before as well: blocks of one size are dear to make once only, be it FFT plans or the
    pool's memory.
    """
    found: list[Block] = []
    begins = [start + sum(firsts[:number]) for number in range(len(firsts))]
    begins += range(start + sum(firsts), total, size)
    for begin, stop in pairwise([*begins, total]):
        first, last = max(0, begin - halo[0]), min(total, stop + halo[1])
        lacks = size - (stop - begin)
        if found and stop == total and 0 < lacks <= size // _SPARE:
            first = max(0, first - lacks)
        found.append(Block(begin, stop, first, last))
    return found
