"""Step for any number of images from a few replays, and the largest number that fits.

Where the events are the same for every number of images, each storage grows along a straight line:
two replays give the lines and a third confirms them, and one more the largest number that is found.
Otherwise each number is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from ...core.memory_model import last_true
from ...core.units import format_bytes
from ...tuning.garbage_collection import quick_collections
from .caching_allocator import LARGE_SEGMENT_BYTES, AllocatorRequest, CachingAllocator, least_limit
from .steady_state import steady
from .trace import Trace
from .workspaces import OperatorCall, Workspace, Workspaces

_Line = tuple[int, int]
"""Constant and slope."""


class Scaled:
    """Trace whose sizes are functions of the number of images.

    Parameters
    ----------
    first, second : Trace
        The same step at two numbers.
    at : (int, int)
        The numbers.

    Raises
    ------
    ValueError
        If the traces differ in their events, or two sizes are not on a line with whole numbers.
    """

    def __init__(self, first: Trace, second: Trace, at: tuple[int, int]) -> None:
        if not _alike(first, second):
            raise ValueError("the two steps are not made of the same events")
        run = at[1] - at[0]
        self._trace = second
        self._lines = [
            _line(a.n_bytes, b.n_bytes, at[0], run)
            for a, b in zip(first.storages, second.storages, strict=True)
        ]
        # Most calls are like others: the workspaces of a kind are looked up once.
        calls: dict[tuple[OperatorCall, tuple[tuple[_Line, ...], ...]], int] = {}
        self._which = [
            calls.setdefault(_scaled_call(a, b, at[0], run), len(calls))
            for a, b in zip(first.calls, second.calls, strict=True)
        ]
        self._calls = list(calls)
        # A number is simulated within several limits in turn.
        self._by_event = lru_cache(maxsize=1)(self._requests_by_event)

    def sizes(self, n: int) -> list[int]:
        """Bytes of every storage for n images."""
        return [constant + slope * n for constant, slope in self._lines]

    def shapes(self, n: int) -> list[tuple[tuple[int, ...], ...]]:
        """Shapes of all calls of operators for n images."""
        made = [call.shapes for call in self.calls(n)]
        return [made[which] for which in self._which]

    def call_workspaces(self, n: int) -> list[tuple[Workspace, ...]]:
        """Workspaces of all calls for n images."""
        workspaces = self._trace.workspaces
        made = [workspaces.for_call(call) for call in self.calls(n)]
        return [made[which] for which in self._which]

    def calls(self, n: int) -> list[OperatorCall]:
        """Calls of operators for n images, one of each kind."""
        return [
            call._replace(shapes=tuple(tuple(a + b * n for a, b in shape) for shape in shapes))
            for call, shapes in self._calls
        ]

    def requests(self, n: int) -> list[tuple[int, int]]:
        """Requests to the allocator for n images."""
        return [each for made in self._by_event(n) for each in made]

    def _requests_by_event(self, n: int) -> list[Sequence[AllocatorRequest]]:
        return list(self._trace.requests_by_event(self.sizes(n), self.call_workspaces(n)))

    def lasts(self, n: int, allocator: CachingAllocator) -> bool:
        """True if n images run with an allocator, step after step."""
        return steady(self._trace, allocator, self._by_event(n)).runs

    def agrees(self, trace: Trace, n: int) -> bool:
        """True if a replay for n images has the events and sizes that the lines give."""
        return (
            _alike(self._trace, trace)
            and self.sizes(n) == [storage.n_bytes for storage in trace.storages]
            and self.shapes(n) == [call.shapes for call in trace.calls]
        )

    def ceiling(self, limit_bytes: int) -> int | None:
        """Upper bound on the images that fit: beyond it the tensors alone exceed the limit.

        None if no size grows with the number.
        """
        constant = slope = 0
        most: int | None = None
        for kind, index in self._trace.events:
            if kind not in ("alloc", "free"):
                continue
            sign = 1 if kind == "alloc" else -1
            constant += sign * self._lines[index][0]
            slope += sign * self._lines[index][1]
            if kind == "alloc" and slope > 0:
                here = (limit_bytes - constant) // slope
                most = here if most is None else min(most, here)
        return most


def largest_path(trace: Trace, paths: Sequence[Trace]) -> Trace:
    """Trace of a step that draws random numbers on the host: the largest of the paths it may take.

    Parameters
    ----------
    trace : Trace
        Replay with the numbers that came.
    paths : sequence of Trace
        Replays with other numbers. If all are like the first, the numbers decide nothing.
    """
    sizes = [storage.n_bytes for storage in trace.storages]
    if all(_alike(trace, path) and sizes == [s.n_bytes for s in path.storages] for path in paths):
        return trace
    peaks = [path.allocated_bytes for path in paths]
    largest = paths[peaks.index(max(peaks))]
    note = (
        f"the step draws random numbers on the host ({', '.join(trace.drawn_from)}) that decide "
        f"what it allocates: of {len(paths)} paths, which take {format_bytes(min(peaks))} to "
        f"{format_bytes(max(peaks))}, this is the largest; others are assumed to take no more"
    )
    return replace(largest, notes=(*largest.notes, note))


def _alike(first: Trace, second: Trace) -> bool:
    return (
        first.events == second.events
        and len(first.storages) == len(second.storages)
        and [_kind(call) for call in first.calls] == [_kind(call) for call in second.calls]
    )


def _kind(call: OperatorCall) -> tuple[object, ...]:
    ranks = tuple(len(shape) for shape in call.shapes)
    return call.kind, call.options, call.dtype, call.channels_last, ranks


def _line(at_first: int, at_second: int, first: int, run: int) -> _Line:
    """Constant and slope of the line through two sizes."""
    slope, rest = divmod(at_second - at_first, run)
    if rest:
        raise ValueError(f"{at_first} and {at_second} bytes are not on a line of whole bytes")
    return at_first - slope * first, slope


def _scaled_call(
    a: OperatorCall, b: OperatorCall, first: int, run: int
) -> tuple[OperatorCall, tuple[tuple[_Line, ...], ...]]:
    shapes = tuple(
        tuple(_line(x, y, first, run) for x, y in zip(s, t, strict=True))
        for s, t in zip(a.shapes, b.shapes, strict=True)
    )
    return b.anywhere(), shapes


_KEPT = 64
"""Numbers of images whose traces are cached; where each number is replayed, a search by bisection
asks for fewer."""
_APART = 256
"""The search from above tries numbers 1 / 256 of the largest apart: 0.4 %."""
_FINE = 32
"""After each 32 numbers that do not fit, the steps of the search from above double: so it tries 100
numbers at most."""
PARTS = (0.0, 0.5)
"""Parts of the workspaces of convolutions with which the largest number must run too: cuDNN takes
another kernel where one finds no room, of which nothing is known but that it takes less."""
MARGIN_BYTES = LARGE_SEGMENT_BYTES
"""Part of the limit that `StepFamily.largest` leaves: one more segment, for memory of libraries
that a replay does not see; of a small limit, a hundredth. Batches that were expected to leave 3 to
18 MiB of some GB were seen to fail."""


class StepFamily:
    """Step for any number of images or slices.

    Parameters
    ----------
    make : callable
        ``make(n)`` returns the `Trace` for n images.
    at : tuple of int
        Numbers that are replayed: two for the lines and one to confirm them. Not 1, since
        operators treat a batch of one differently.
    most : int
        Numbers above are not replayed: a model may refuse them.
    """

    def __init__(
        self,
        make: Callable[[int], Trace],
        at: tuple[int, int, int] = (2, 3, 5),
        most: int = 2**20,
    ) -> None:
        self._at, self._most = at, most
        self._make = lru_cache(maxsize=_KEPT)(make)
        self._needed = lru_cache(maxsize=4 * _KEPT)(self._find_needed)
        self._ample: dict[tuple[str, int], int] = {}
        """Limit that a simulation of a number did not meet: it runs alike within any larger one."""
        traces = [self.trace(n) for n in at if n <= most] or [self.trace(1)]
        self.notes = traces[0].notes
        """What was not replayed exactly."""
        self.workspaces = traces[0].workspaces
        """Workspaces that all numbers are replayed with."""
        self._confirmed = max(at)
        """Largest number of which a replay was as the lines tell."""
        self.scaled: Scaled | None = None
        """Lines of all sizes; None if each number must be replayed."""
        if len(traces) < len(at):
            return
        try:
            scaled = Scaled(traces[0], traces[1], at[:2])
        except ValueError:
            return
        if scaled.agrees(traces[2], at[2]):
            self.scaled = scaled

    @property
    def is_linear(self) -> bool:
        """Whether every number follows from the lines."""
        return self.scaled is not None

    def with_workspaces(self, workspaces: Workspaces) -> StepFamily:
        """Family with other workspaces; nothing is replayed again."""
        return StepFamily(lambda n: self.trace(n).with_workspaces(workspaces), self._at, self._most)

    def calls(self, n: int) -> Iterable[OperatorCall]:
        """Calls of operators for n images that may need a workspace."""
        return self.trace(n).calls if self.scaled is None or n == 1 else self.scaled.calls(n)

    def trace(self, n: int) -> Trace:
        """Trace of a replay for n images."""
        return self._make(n)

    def requests(self, n: int) -> list[tuple[int, int]]:
        """Requests to the allocator for n images."""
        if self.scaled is None or n == 1:
            return self.trace(n).requests()
        return self.scaled.requests(n)

    def allocated_bytes(self, n: int) -> int:
        """Most bytes handed out for n images."""
        allocator = CachingAllocator()
        allocator.run(self.requests(n))
        return allocator.peak_allocated_bytes

    def needed_bytes(self, n: int) -> int:
        """Smallest limit, to 2 MiB, from which on n images run."""
        return self._needed(n)

    def _find_needed(self, n: int) -> int:
        requests = self.requests(n)
        allocator = CachingAllocator()
        allocator.run(requests)
        return least_limit(requests, allocator.peak_allocated_bytes, allocator.peak_reserved_bytes)

    def fits(self, n: int, limit_bytes: int) -> bool:
        """True if n images run when the allocator may hold no more than `limit_bytes`.

        A convolution whose workspace finds no room uses another kernel.
        """
        return self._runs("fits", n, limit_bytes, lambda allocator: allocator.run(self.requests(n)))

    def lasts(self, n: int, limit_bytes: int) -> bool:
        """True if n images run within a limit step after step, not only in the replayed steps."""

        def lasts(allocator: CachingAllocator) -> bool:
            if self.scaled is None or n == 1:
                return steady(self.trace(n), allocator).runs
            return self.scaled.lasts(n, allocator)

        return self._runs("lasts", n, limit_bytes, lasts)

    def _runs(
        self, what: str, n: int, limit_bytes: int, run: Callable[[CachingAllocator], bool]
    ) -> bool:
        """Simulate n images within a limit, if that does not follow from a smaller one."""
        if limit_bytes >= self._ample.get((what, n), limit_bytes + 1):
            return True
        allocator = CachingAllocator(limit_bytes)
        runs = run(allocator)
        if runs and not allocator.retries:
            self._ample[what, n] = limit_bytes
        return runs

    @quick_collections()
    def largest(self, limit_bytes: int, at_most: int = 2**20, *, steady: bool = False) -> int:
        """Largest number of images that runs within a limit; 0 if not even one does.

        Where blocks happen to be of the same size, a number may fit though some smaller ones do
        not. So the search goes down from the number at which the tensors alone exceed the limit.
        The answer must fit within the limit and within `MARGIN_BYTES` less, in all later steps
        too, and whatever the workspaces of convolutions are: in full, by half, and without them.
        If each number must be replayed, or with `steady`, the answer is a number up to which all
        fit.
        """
        limits = _limits(limit_bytes)

        def fits(n: int) -> bool:
            return all(self.fits(n, limit) for limit in limits)

        def lasts(n: int) -> bool:
            return all(self.lasts(n, limit) for limit in limits)

        def with_part(n: int, limit: int, part: float) -> bool:
            return self._runs(
                f"{part} of its workspaces",
                n,
                limit,
                lambda allocator: allocator.run(_with_part_of_workspaces(self.requests(n), part)),
            )

        def surely(n: int) -> bool:
            return lasts(n) and all(with_part(n, limit, part) for limit in limits for part in PARTS)

        if self.scaled is None or steady:
            found = self._first_gap(lasts, at_most)
        else:
            scaled = self.scaled
            ceiling = self.scaled.ceiling(limits[0])
            found = self._from_above(fits, at_most if ceiling is None else min(at_most, ceiling))
            if found and not surely(found):
                start = 1 << max(1, found.bit_length() - 2)  # at least a quarter of it
                found = self._from_above(surely, found, self._first_gap(lasts, found, start))
            if not self._holds(scaled, found):
                self._forget_lines()
                return self.largest(limit_bytes, at_most)
        # One image needs a replay of its own, which is done only if no larger number fits.
        return found or int(at_most >= 1 and lasts(1))

    def _holds(self, scaled: Scaled, n: int) -> bool:
        """True if a replay of n images, or of more, is as the lines tell.

        A model may take another way from some number of images on.
        """
        if n > self._confirmed:
            if not scaled.agrees(self.trace(n), n):
                return False
            self._confirmed = n
        return True

    def _forget_lines(self) -> None:
        """Replay each number from now on."""
        self.scaled = None
        self._needed.cache_clear()
        self._ample.clear()

    @staticmethod
    def _from_above(fits: Callable[[int], bool], top: int, known: int = 0) -> int:
        """Largest number up to `top` that fits, of those tried above a known one."""
        n, apart, looked = top, max(1, top // _APART), 0
        while n > max(1, known) and not fits(n):
            looked += 1
            if looked % _FINE == 0:
                apart *= 2
            n -= apart
        return last_true(fits, n, min(n + apart, top + 1)) if n > max(1, known) else known

    @staticmethod
    def _first_gap(fits: Callable[[int], bool], at_most: int, start: int = 2) -> int:
        """Last number, from 2 on, before one that does not fit; 0 if 2 does not.

        Powers of 2 are tried from `start` on, which is one itself, or from 2 if it does not fit.
        """
        low = start if 2 < start <= at_most and fits(start) else 2
        if at_most < 2 or (low == 2 and not fits(2)):
            return 0
        high = 2 * low
        while high <= at_most and fits(high):
            low, high = high, high * 2
        return last_true(fits, low, min(high, at_most + 1))


def surely_fits(trace: Trace, limit_bytes: int) -> bool:
    """True if a step runs within a limit as `StepFamily.largest` requires it."""
    return all(
        steady(trace, CachingAllocator(limit)).runs
        and all(
            CachingAllocator(limit).run(_with_part_of_workspaces(trace.requests(), part))
            for part in PARTS
        )
        for limit in _limits(limit_bytes)
    )


def _limits(limit_bytes: int) -> tuple[int, int]:
    """Limits within which a step must run: the given one, and one that leaves a margin."""
    return limit_bytes - min(MARGIN_BYTES, limit_bytes // 100), limit_bytes


def _with_part_of_workspaces(
    requests: Sequence[AllocatorRequest], part: float
) -> list[AllocatorRequest]:
    """Requests with the workspaces that may fail reduced to a part of their size."""
    return [(key, int(part * n) if key < 0 < n else n) for key, n in requests]
