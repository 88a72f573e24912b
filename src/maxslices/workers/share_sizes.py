"""How many blocks a worker is given at a time, by how fast each was so far."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import fmean

MOST_BLOCKS = 16
"""Most blocks of a share, which is what the end of a worker costs. Within a share reading,
computing and writing overlap: of 16 blocks about one is lost at its ends."""
UNKNOWN_PART = 0.5
"""Part of its blocks that each worker is given before anyone has answered, so that there is as much
left to make up for those that are slower. In a simulation with 16 blocks for each worker, of which
the slowest takes five times as long, 5 % of the time is lost, and 58 % if all is given at once."""
MARGIN = 1.05
"""Ratio by which shares are smaller than those with which all workers would end together. In the
simulation (8 to 128 blocks for each of 2 to 16 workers, which differ by up to a factor of five, and
by up to 10 % from share to share) 1 and 1.05 lose the least: 1 less where workers are alike, 1.05
where they differ by some 30 %. 1.2 loses up to twice as much, by more shares."""
_LEAST_S = 1e-6
"""Least seconds of a share: a clock may not have moved."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A share that a worker has begun."""

    worker: str | None
    n_blocks: int
    began_s: float


@dataclass(slots=True)
class ShareSizes:
    """Sizes of shares with which all workers end at nearly the same time.

    A worker that is free is given what it does until then, as far as is known: by how fast each
    worker was with its last share, by what the others are at, and by what is left. So there are
    few shares, two or three for each of workers that are equally fast, and small ones only where
    some are slower than they were.
    """

    most_blocks: int = MOST_BLOCKS
    """Most blocks of a share."""
    _block_s: dict[str, float] = field(default_factory=dict)
    """Seconds that a worker took for a block of its last share."""
    _begun: dict[Hashable, _Begun] = field(default_factory=dict)

    def next_blocks(
        self, n_left: int, worker: str | None, workers: Sequence[str], now_s: float
    ) -> int:
        """Blocks of the next share.

        Parameters
        ----------
        n_left : int
            Blocks that are in no share.
        worker : str or None
            The worker that will have it, where that is known.
        workers : sequence of str
            All workers.
        now_s : float
            Seconds of any clock.
        """
        count = max(1, len(workers))
        known = {each: self._block_s[each] for each in workers if each in self._block_s}
        if not known:
            n_all = n_left + sum(each.n_blocks for each in self._begun.values())
            return self._within(UNKNOWN_PART * n_all / count, n_left)
        usual_s = fmean(known.values())
        n_to_do = float(n_left)
        for each in self._begun.values():
            n_done = (now_s - each.began_s) / known.get(each.worker or "", usual_s)
            n_to_do += max(0.0, each.n_blocks - n_done)
        blocks_per_s = sum(1 / each for each in known.values()) + (count - len(known)) / usual_s
        end_s = n_to_do / blocks_per_s
        return self._within(end_s / known.get(worker or "", usual_s) / MARGIN, n_left)

    def _within(self, n_blocks: float, n_left: int) -> int:
        return max(1, min(ceil(n_blocks), self.most_blocks, n_left))

    def begin(self, key: Hashable, worker: str | None, n_blocks: int, now_s: float) -> None:
        """Note that a share is given to a worker."""
        self._begun[key] = _Begun(worker, n_blocks, now_s)

    def end(self, key: Hashable, worker: str | None, took_s: float) -> None:
        """Note that a share has ended; no worker is named if it was not done."""
        share = self._begun.pop(key, None)
        if share is not None and worker is not None:
            self._block_s[worker] = max(took_s, _LEAST_S) / share.n_blocks
