"""Whether larger blocks would be faster, found out on the first ones."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..backends import Link, Mark
from .blocks import Block

TRIED_BLOCKS = 4
"""Blocks of a size that are tried. The first two are not timed: one finds no plans or memory
made, and one may be measured, which takes longer."""
GAIN = 0.05
"""By how much a larger block must be faster to be kept."""
BUSY = 0.8
"""Share of the time that computing must take for the size of a block to matter."""


class Clock:
    """Times one block's computing: by the device's own clock, or on the CPU by the host's."""

    def __init__(self, link: Link | None, block: Block) -> None:
        self.block = block
        self._link = link
        self._began: Mark | float = 0.0
        self._ended: Mark | float = 0.0

    def start(self) -> None:
        """Set the begin before all that is begun from here on."""
        self._began = time.perf_counter() if self._link is None else self._link.mark()

    def stop(self) -> None:
        """Set the end behind all that was begun."""
        self._ended = time.perf_counter() if self._link is None else self._link.mark()

    def times_s(self) -> tuple[float, float]:
        """Return begin and end, seconds of `time.perf_counter`; waits for the end."""
        return _reached_s(self._began), _reached_s(self._ended)


def _reached_s(mark: Mark | float) -> float:
    if isinstance(mark, float):
        return mark
    mark.synchronize()
    return mark.time_s()


class Pace:
    """The block that a section goes on with.

    A few blocks are timed as planned, then a few of twice the size, and so on, as long as
    slices are computed faster that way and computing is what takes the time.

    Parameters
    ----------
    block : int
        Slices to begin with.
    larger : sequence of int
        What may be tried after it, increasing.

    Attributes
    ----------
    why : str
        Why the block is another one than before.
    """

    def __init__(self, block: int, larger: Sequence[int] = ()) -> None:
        self._sizes = [block, *larger]
        self._at = 0
        self._per_slice_s: float | None = None
        self._is_settled = not larger
        self.why = ""

    @property
    def block(self) -> int:
        """Return the slices in a block from here on."""
        return self._sizes[self._at]

    def wants(self, n_timed: int) -> bool:
        """Tell whether so many blocks of one size are what there is to decide by."""
        return not self._is_settled and n_timed >= TRIED_BLOCKS

    def learn(self, times: Sequence[tuple[float, float, Block]]) -> bool:
        """Decide by the blocks that were run; return whether the block is another one now.

        Parameters
        ----------
        times : sequence of (float, float, Block)
            Begin and end of their computing in seconds, of one size.
        """
        timed = times[2:]
        computed_s = sum(stop - start for start, stop, _ in timed)
        per_slice_s = computed_s / max(1, sum(block.n_given for _, _, block in timed))
        taken_s = timed[-1][1] - timed[0][0] if timed else 0.0
        is_bound = computed_s >= BUSY * taken_s > 0
        before, self._per_slice_s = self._per_slice_s, per_slice_s
        if before is not None and per_slice_s > (1 - GAIN) * before:
            self._is_settled = True
            self._at -= 1
            self.why = f"blocks of {self._sizes[self._at + 1]} were no faster"
            return True
        if not is_bound or self._at + 1 == len(self._sizes):
            self._is_settled = True
            return False
        self._at += 1
        self.why = "to see whether larger blocks are faster"
        return True
