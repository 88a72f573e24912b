"""A step for any number of images, from a few replays, and the largest number that fits.

Where the same events happen whatever the number, each storage grows along a straight line
in it; two replays give the line, a third confirms it. Where they do not, each number is
replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from ...model.bisection import last_of
from .batch_scaling import Scaled
from .caching_allocator import LARGE_SEGMENT_BYTES, AllocatorRequest, CachingAllocator, least_limit
from .trace import Trace
from .workspaces import OperatorCall, Workspaces

_KEPT = 64
"""Numbers whose traces are remembered."""
_APART = 256
"""Numbers looked at from above are 1 / this of the largest apart; after every `_FINE` of them,
twice as far."""
_FINE = 32
MARGIN_BYTES = LARGE_SEGMENT_BYTES
"""`StepFamily.largest` leaves this of the limit: room for one more segment, of which libraries take
what a replay does not see; of little memory, a hundredth. Batches that were expected to leave
3 to 18 MiB of some GB were seen to fail."""


class StepFamily:
    """A step for any number of images (or slices).

    Parameters
    ----------
    make : callable
        ``make(n)`` returns the `Trace` for n images.
    at : tuple of int
        Numbers that are replayed: two for the lines, one to confirm them. 1 is left out,
        since operators treat a batch of one differently.
    """

    def __init__(self, make: Callable[[int], Trace], at: tuple[int, int, int] = (2, 3, 5)) -> None:
        self._at = at
        self._make = lru_cache(maxsize=_KEPT)(make)
        self._needed = lru_cache(maxsize=4 * _KEPT)(self._find_needed)
        self._fits = lru_cache(maxsize=16 * _KEPT)(self._find_fits)
        traces = [self.trace(n) for n in at]
        self.notes = traces[0].notes
        """What the replays could not follow to the letter."""
        self.scaled: Scaled | None = None
        """The lines; None where each number must be replayed."""
        try:
            scaled = Scaled(traces[0], traces[1], at[:2])
        except ValueError:
            return
        if scaled.agrees(traces[2], at[2]):
            self.scaled = scaled

    @property
    def is_linear(self) -> bool:
        """Whether any number follows without another replay."""
        return self.scaled is not None

    def with_workspaces(self, workspaces: Workspaces) -> StepFamily:
        """Return this family with other workspaces; nothing is replayed again."""
        return StepFamily(lambda n: self.trace(n).with_workspaces(workspaces), self._at)

    def calls(self, n: int) -> Iterable[OperatorCall]:
        """Return the operators for n images that may need a workspace."""
        return self.trace(n).calls if self.scaled is None or n == 1 else self.scaled.calls(n)

    def trace(self, n: int) -> Trace:
        """Return the replay for n images."""
        return self._make(n)

    def steps(self, n: int) -> list[tuple[int, int]]:
        """Return what the allocator is asked for n images."""
        if self.scaled is None or n == 1:
            return self.trace(n).steps()
        return self.scaled.steps(n)

    def allocated_bytes(self, n: int) -> int:
        """Return the most that is handed out for n images."""
        return self._simulated(n).peak_allocated_bytes

    def reserved_bytes(self, n: int) -> int:
        """Return the most that the allocator holds for n images when there is room."""
        return self._simulated(n).peak_reserved_bytes

    def _simulated(self, n: int) -> CachingAllocator:
        allocator = CachingAllocator()
        allocator.run(self.steps(n))
        return allocator

    def needed_bytes(self, n: int) -> int:
        """Return the smallest limit, to 2 MiB, from which on n images run."""
        return self._needed(n)

    def _find_needed(self, n: int) -> int:
        steps = self.steps(n)
        allocator = CachingAllocator()
        allocator.run(steps)
        return least_limit(steps, allocator.peak_allocated_bytes, allocator.peak_reserved_bytes)

    def fits(self, n: int, limit_bytes: int) -> bool:
        """Tell whether n images run when the allocator may hold no more than `limit_bytes`.

        Where there is no room for the workspace of a convolution, another kernel is used.
        """
        return self._fits(n, limit_bytes)

    def _find_fits(self, n: int, limit_bytes: int) -> bool:
        return CachingAllocator(limit_bytes).run(self.steps(n))

    def largest(self, limit_bytes: int, at_most: int = 2**20, *, steady: bool = False) -> int:
        """Return the largest number of images that runs within a limit; 0 if not even one does.

        Where parts happen to be of the same size, a number may fit though some smaller ones do
        not: it is looked for from above, where the tensors alone would take it all, and must fit
        whatever the workspaces of convolutions are: with half of them and without them too.
        What is returned fits within the limit and within a little less. Where each number must
        be replayed, or if it is to be `steady`, one is looked for up to which all fit.
        """
        limits = limit_bytes - min(MARGIN_BYTES, limit_bytes // 100), limit_bytes

        def fits(n: int) -> bool:
            return all(self.fits(n, limit) for limit in limits)

        def surely(n: int) -> bool:
            return fits(n) and all(
                CachingAllocator(limit).run(_with_workspaces(self.steps(n), part))
                for limit in limits
                for part in (0.0, 0.5)
            )

        if self.scaled is None or steady:
            found = self._first_gap(fits, at_most)
        else:
            ceiling = self.scaled.ceiling(limits[0])
            found = self._from_above(fits, at_most if ceiling is None else min(at_most, ceiling))
            if found and not surely(found):
                found = self._from_above(surely, found, self._first_gap(fits, found))
        # One image is a replay of its own, which what more of them say makes needless.
        return found or int(at_most >= 1 and fits(1))

    @staticmethod
    def _from_above(fits: Callable[[int], bool], top: int, known: int = 0) -> int:
        """Return the largest number up to `top` that fits, of those looked at beyond one known."""
        n, apart, looked = top, max(1, top // _APART), 0
        while n > max(1, known) and not fits(n):
            looked += 1
            if looked % _FINE == 0:
                apart *= 2
            n -= apart
        return last_of(fits, n, min(n + apart, top + 1)) if n > max(1, known) else known

    @staticmethod
    def _first_gap(fits: Callable[[int], bool], at_most: int) -> int:
        """Return the last number from 2 on before one that does not fit; or 0."""
        if at_most < 2 or not fits(2):
            return 0
        low, high = 2, 4
        while high <= at_most and fits(high):
            low, high = high, high * 2
        return last_of(fits, low, min(high, at_most + 1))


def _with_workspaces(steps: list[AllocatorRequest], part: float) -> list[AllocatorRequest]:
    """Return steps with a part of the workspaces that can be done without."""
    return [(key, int(part * n) if key < 0 < n else n) for key, n in steps]
