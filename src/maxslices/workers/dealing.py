"""Distribute shares of a section's slices to workers, one share at a time to each."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import fmean
from typing import Any

from ..errors import DeviceError, MethodError, PlanError
from .worker_calls import MOST_TRIES, EndedCall, WorkerAnswer, WorkerCalls

NO_WORKER_S = 120.0
"""Seconds without any worker after which the run ends, and can be resumed. A killed worker is back
after 2 s, or after 20 s if its nanny gave up (see `local_client`)."""
MOST_BLOCKS = 16
"""Most blocks of a share, which is lost if its worker ends. Reading, computing and writing overlap
within a share. Of 16 blocks, about the time of one is lost at the ends."""
UNKNOWN_PART = 0.5
"""Part of its blocks that each worker gets before the first answer. The rest makes up for slower
workers. In a simulation with 16 blocks for each worker, of which the slowest takes five times as
long, 5 % of the time is lost, and 58 % if all blocks are distributed at once."""
MARGIN = 1.05
"""Shares are smaller by this ratio than shares with which all workers would end together. In the
simulation (8 to 128 blocks for each of 2 to 16 workers, which differ by up to a factor of five, and
by up to 10 % from share to share) 1 and 1.05 lose the least time: 1 with equal workers, 1.05 with
differences of about 30 %. 1.2 loses up to twice as much, because there are more shares."""
_LEAST_S = 1e-6
"""Shortest time of a share, as a clock may not have moved."""


@dataclass(slots=True)
class ShareSizes:
    """Sizes of shares with which all workers end at nearly the same time.

    The size follows from the speed of each worker in its last share, from the running shares, and
    from the remaining blocks. Equally fast workers get two or three shares each. Small shares occur
    only when workers become slower.
    """

    _block_s: dict[Hashable, float] = field(default_factory=dict)
    """Seconds that a worker took for a block of its last share."""
    _begun: dict[Hashable, tuple[int, float]] = field(default_factory=dict)
    """Worker -> blocks of its running share, and the time of its start."""

    def next_blocks(
        self, n_left: int, worker: Hashable, workers: Sequence[Hashable], now_s: float
    ) -> int:
        """Blocks of the next share.

        Parameters
        ----------
        n_left : int
            Blocks that are not yet in a share.
        worker : hashable
            The worker that gets it.
        workers : sequence of hashable
            All workers.
        now_s : float
            Seconds of any clock.
        """
        count = max(1, len(workers))
        block_s = {each: self._block_s[each] for each in workers if each in self._block_s}
        if not block_s:
            n_all = n_left + sum(n_blocks for n_blocks, _ in self._begun.values())
            return self._within(UNKNOWN_PART * n_all / count, n_left)
        usual_s = fmean(block_s.values())
        n_to_do = float(n_left)
        for each, (n_blocks, began_s) in self._begun.items():
            n_to_do += max(0.0, n_blocks - (now_s - began_s) / block_s.get(each, usual_s))
        blocks_per_s = sum(1 / each for each in block_s.values())
        blocks_per_s += (count - len(block_s)) / usual_s
        end_s = n_to_do / blocks_per_s
        return self._within(end_s / block_s.get(worker, usual_s) / MARGIN, n_left)

    def _within(self, n_blocks: float, n_left: int) -> int:
        return max(1, min(ceil(n_blocks), MOST_BLOCKS, n_left))

    def begin(self, worker: Hashable, n_blocks: int, now_s: float) -> None:
        """Note the start of a worker's share."""
        self._begun[worker] = n_blocks, now_s

    def end(self, worker: Hashable, took_s: float | None) -> None:
        """Note the end of a worker's share, and its time if it succeeded."""
        n_blocks, _ = self._begun.pop(worker)
        if took_s is not None:
            self._block_s[worker] = max(took_s, _LEAST_S) / n_blocks


@dataclass(slots=True)
class Dealer:
    """Distributes shares to the workers of a cluster, and collects their answers.

    A share that fails, or whose worker ends, goes to another worker if there is one.
    """

    calls: WorkerCalls
    """Calls on the workers."""
    resources: Mapping[str, float]
    """Resources that a worker must have, such as ``{"GPU": 1}``."""
    unit: str = "slice"
    """Name of a slice, for messages."""
    _again: deque[range] = field(default_factory=deque)
    """Shares to be tried again."""
    _failed: dict[range, list[EndedCall]] = field(default_factory=dict)
    """Share -> its failed calls."""

    def once(self, work: Callable[[Any, range], Any], job: Any, share: range) -> Any:
        """Run one share on any worker; its value."""
        ((_, _, answer),) = self.deal(work, job, [share], len(share))
        return answer.value

    def deal(
        self, work: Callable[[Any, range], Any], job: Any, parts: Sequence[range], block: int
    ) -> Generator[tuple[range, str, WorkerAnswer], None, None]:
        """Distribute slices, and yield each finished share with its worker's address and answer.

        Parameters
        ----------
        work : callable
            Called on a worker with the job and a share. It may be called again for a finished share
            whose answer was lost.
        job : object
            First argument of `work`.
        parts : sequence of range
            Intervals of slices, in order.
        block : int
            Slices in a block. Shares consist of whole blocks.

        Raises
        ------
        MethodError
            If a share failed, or its worker ended, `MOST_TRIES` times.
        PlanError
            If a worker differs from those that the plan was made for.
        DeviceError
            If there is no worker, or the scheduler is lost.
        """
        sizes, left, seen_s = ShareSizes(), deque(parts), time.monotonic()
        try:
            while left or self._again or self.calls.running:
                workers, now_s = self._workers(), time.monotonic()
                seen_s = now_s if workers else seen_s
                if now_s - seen_s > NO_WORKER_S:
                    wanted = ", ".join(self.resources)
                    raise DeviceError(
                        f"there has been no worker{f' with the resource {wanted}' * bool(wanted)} "
                        f"for {NO_WORKER_S:.0f} s"
                    )
                for worker in workers:
                    if worker in self.calls.running:
                        continue
                    share = self._share_again(worker, workers)
                    if share is None and left:
                        n_left = sum(-(-len(each) // block) for each in left)
                        n = sizes.next_blocks(n_left, worker, workers, now_s) * block
                        part = left.popleft()
                        share = part[:n]
                        if part[n:]:
                            left.appendleft(part[n:])
                    if share is not None:
                        # Each share carries the job (10 kB), which so cannot be lost alone.
                        self.calls.begin(worker, share, work, job, share)
                        sizes.begin(worker, -(-len(share) // block), now_s)
                for ended in self.calls.ended():
                    answer = ended.answer
                    if answer is None or answer.error is not None:
                        sizes.end(ended.worker, None)
                        self._fail(ended)
                    else:
                        sizes.end(ended.worker, answer.took_s)
                        yield ended.name, ended.worker, answer
        except BaseException:
            if self.calls.running:
                self.calls.give_up()
            raise

    def _workers(self) -> list[str]:
        """Addresses of the workers with the required resources."""
        return [
            address
            for address, each in self.calls.workers().items()
            if all(each["resources"].get(name, 0) >= n for name, n in self.resources.items())
        ]

    def _share_again(self, worker: str, workers: list[str]) -> range | None:
        """A share to try again that this worker has not tried, or that all have tried."""
        for share in self._again:
            tried = {each.worker for each in self._failed[share]}
            if worker not in tried or tried.issuperset(workers):
                self._again.remove(share)
                return share
        return None

    def _fail(self, ended: EndedCall) -> None:
        """Queue a failed share again, or end the run."""
        share, answer = ended.name, ended.answer
        if answer is not None and isinstance(answer.error, PlanError):
            raise answer.error
        calls = self._failed.setdefault(share, [])
        calls.append(ended)
        if len(calls) < MOST_TRIES:
            self._again.append(share)
            return
        named = f"{self.unit} {share.start}"
        if len(share) > 1:
            named = f"{self.unit}s {share.start} to {share.stop - 1}"
        if answer is None:
            raise MethodError(
                f"{named}: each of {len(calls)} attempts failed, the last as its worker "
                f"{ended.worker} ended. Either memory ran out, or a library crashed"
            )
        where = ", ".join(
            f"{each.worker} on {each.answer.host}" if each.answer else f"{each.worker}, which ended"
            for each in calls
        )
        raise MethodError(
            f"{named} failed {len(calls)} times, on {where}: {answer.error}"
        ) from answer.error
