"""Step for any number of images from a few replays, and the largest number that fits.

If the events are the same for all numbers of images, the size of each storage is a linear function
of the number. Two replays give the functions, a third confirms them, and one more confirms the
largest number. Otherwise each number is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from ...core.memory_model import last_true
from ...core.units import format_bytes
from ...tuning.garbage_collection import quick_collections
from .caching_allocator import LARGE_SEGMENT_BYTES, AllocatorRequest, CachingAllocator, least_limit
from .trace import Trace, steady
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
        Both numbers.

    Raises
    ------
    ValueError
        If the traces differ in their events, or a size is not a linear function with integer
        coefficients.
    """

    def __init__(self, first: Trace, second: Trace, at: tuple[int, int]) -> None:
        if not _alike(first, second):
            raise ValueError("the events of the two steps differ")
        run = at[1] - at[0]
        self._trace = second
        self._lines = [
            _line(a.n_bytes, b.n_bytes, at[0], run)
            for a, b in zip(first.storages, second.storages, strict=True)
        ]
        # Most calls occur repeatedly: the workspaces of a kind are looked up once.
        calls: dict[tuple[OperatorCall, tuple[tuple[_Line, ...], ...]], int] = {}
        self._which = [
            calls.setdefault(_scaled_call(a, b, at[0], run), len(calls))
            for a, b in zip(first.calls, second.calls, strict=True)
        ]
        self._calls = list(calls)
        # A number is simulated within several limits, one after the other.
        self._by_event = lru_cache(maxsize=1)(self._requests_by_event)

    def sizes(self, n: int) -> list[int]:
        """Bytes of every storage for n images."""
        return [constant + slope * n for constant, slope in self._lines]

    def shapes(self, n: int) -> list[tuple[tuple[int, ...], ...]]:
        """Shapes of all calls of operators for n images."""
        shapes = [call.shapes for call in self.calls(n)]
        return [shapes[which] for which in self._which]

    def call_workspaces(self, n: int) -> list[tuple[Workspace, ...]]:
        """Workspaces of all calls for n images."""
        by_kind = [self._trace.workspaces.for_call(call) for call in self.calls(n)]
        return [by_kind[which] for which in self._which]

    def calls(self, n: int) -> list[OperatorCall]:
        """One call of each kind of operator call for n images."""
        return [
            call._replace(shapes=tuple(tuple(a + b * n for a, b in shape) for shape in shapes))
            for call, shapes in self._calls
        ]

    def requests(self, n: int) -> list[tuple[int, int]]:
        """Requests to the allocator for n images."""
        return [request for requests in self._by_event(n) for request in requests]

    def _requests_by_event(self, n: int) -> list[Sequence[AllocatorRequest]]:
        return list(self._trace.requests_by_event(self.sizes(n), self.call_workspaces(n)))

    def is_steady(self, n: int, allocator: CachingAllocator) -> bool:
        """True if steps of n images run repeatedly with an allocator."""
        return steady(self._trace, allocator, self._by_event(n)).runs

    def matches_replay(self, trace: Trace, n: int) -> bool:
        """True if a replay for n images has the computed events and sizes."""
        return (
            _alike(self._trace, trace)
            and self.sizes(n) == [storage.n_bytes for storage in trace.storages]
            and self.shapes(n) == [call.shapes for call in trace.calls]
        )


def largest_path(trace: Trace, paths: Sequence[Trace]) -> Trace:
    """Largest trace of a step whose path depends on random numbers drawn on the host.

    Parameters
    ----------
    trace : Trace
        Replay with the current states of the generators.
    paths : sequence of Trace
        Replays with other numbers. If all equal the first, the path does not depend on them.
    """
    sizes = [storage.n_bytes for storage in trace.storages]
    if all(_alike(trace, path) and sizes == [s.n_bytes for s in path.storages] for path in paths):
        return trace
    peaks = [path.allocated_bytes for path in paths]
    largest = paths[peaks.index(max(peaks))]
    note = (
        f"the step draws random numbers on the host ({', '.join(trace.drawn_from)}), which decide "
        f"its memory. This is the largest of {len(paths)} paths, which take "
        f"{format_bytes(min(peaks))} to {format_bytes(max(peaks))}. Other paths are assumed to be "
        "smaller"
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
    """Constant and slope of the linear function through two sizes."""
    slope, rest = divmod(at_second - at_first, run)
    if rest:
        raise ValueError(f"{at_first} and {at_second} bytes do not have an integer slope")
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
"""Numbers of images whose traces are cached. A search by bisection needs fewer."""
GAP_STEPS = 64
"""Numbers up to 1.5 times the first answer are tried in steps of 1 / 64 of it."""
PARTS = (0.0, 0.5)
"""Parts of the workspaces of convolutions with which the largest number must run too. If a
workspace does not fit, cuDNN uses another kernel, whose workspace is only known to be smaller."""
MARGIN_BYTES = LARGE_SEGMENT_BYTES
"""Part of the limit that `StepFamily.largest` leaves free: one segment, or 1 % of a small limit,
for memory of libraries that a replay does not see. Batches that were predicted to leave 3 to 18 MiB
of some GB failed."""


class StepFamily:
    """Step for any number of images or slices.

    Parameters
    ----------
    make : callable
        ``make(n)`` returns the `Trace` for n images.
    at : tuple of int
        Numbers that are replayed: two for the linear functions and one to confirm them. Not 1,
        since operators treat a batch of one differently.
    most : int
        Largest number that is replayed, since a model may refuse larger ones.
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
        traces = [self.trace(n) for n in at if n <= most] or [self.trace(1)]
        self.notes = traces[0].notes
        """Remarks on what the replay assumes."""
        self.workspaces = traces[0].workspaces
        """Workspaces of all replays."""
        self._confirmed = max(at)
        """Largest number for which a replay confirmed the linear functions."""
        self.scaled: Scaled | None = None
        """Linear functions of all sizes, or None if each number must be replayed."""
        if len(traces) < len(at):
            return
        try:
            scaled = Scaled(traces[0], traces[1], at[:2])
        except ValueError:
            return
        if scaled.matches_replay(traces[2], at[2]):
            self.scaled = scaled

    @property
    def is_linear(self) -> bool:
        """Whether sizes are linear functions of the number of images."""
        return self.scaled is not None

    def with_workspaces(self, workspaces: Workspaces) -> StepFamily:
        """Family with other workspaces, without new replays."""
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
        self._settle(n, allocator)
        return allocator.peak_allocated_bytes

    def needed_bytes(self, n: int) -> int:
        """Smallest limit, to 2 MiB, within which n images run."""
        return self._needed(n)

    def _find_needed(self, n: int) -> int:
        requests = self.requests(n)
        allocator = CachingAllocator()
        allocator.run(requests)
        return least_limit(requests, allocator.peak_allocated_bytes, allocator.peak_reserved_bytes)

    def fits(self, n: int, limit_bytes: int) -> bool:
        """True if n images run when the allocator may hold at most `limit_bytes`.

        A convolution whose workspace does not fit uses another kernel.
        """
        return CachingAllocator(limit_bytes).run(self.requests(n))

    def is_steady(self, n: int, limit_bytes: int) -> bool:
        """True if steps of n images run repeatedly within a limit, beyond the replayed steps."""
        return self._settle(n, CachingAllocator(limit_bytes))

    def _settle(self, n: int, allocator: CachingAllocator) -> bool:
        if self.scaled is None or n == 1:
            return steady(self.trace(n), allocator).runs
        return self.scaled.is_steady(n, allocator)

    @quick_collections()
    def largest(self, limit_bytes: int, at_most: int = 2**20) -> int:
        """Largest number that runs within a limit, or 0.

        It must run within the limit and within `MARGIN_BYTES` less, in all later steps too. If
        blocks happen to have the same size, a number may run although smaller ones do not. So
        larger numbers are tried too if sizes are linear. These must run with full workspaces of
        convolutions, with half of each, and without them.
        """
        limits = _limits(limit_bytes)

        def runs(n: int) -> bool:
            return all(self.is_steady(n, limit) for limit in limits)

        def runs_always(n: int) -> bool:
            # the quickest check first
            return (
                self.fits(n, limits[0]) and runs(n) and _fit_any_workspace(self.requests(n), limits)
            )

        if at_most < 2 or not runs(2):
            # A single image needs its own replay, which runs only if no larger number fits.
            return int(at_most >= 1 and runs(1))
        low, high = 2, 4
        while high <= at_most and runs(high):
            low, high = high, 2 * high
        largest = last_true(runs, low, min(high, at_most + 1))
        if self.scaled is None:
            return largest
        step = max(1, largest // GAP_STEPS)
        top = min(at_most, largest + largest // 2)
        above = next((n for n in range(top, largest, -step) if runs_always(n)), 0)
        if above:
            largest = last_true(runs_always, above, min(above + step, top + 1))
        if largest > self._confirmed:
            # A model may take another path from some number of images on.
            if not self.scaled.matches_replay(self.trace(largest), largest):
                self.scaled = None
                self._needed.cache_clear()
                return self.largest(limit_bytes, at_most)
            self._confirmed = largest
        return largest


def fits_any_workspace(trace: Trace, limit_bytes: int) -> bool:
    """True if a step runs within a limit by the criteria of `StepFamily.largest`."""
    limits = _limits(limit_bytes)
    is_steady = all(steady(trace, CachingAllocator(limit)).runs for limit in limits)
    return is_steady and _fit_any_workspace(trace.requests(), limits)


def _limits(limit_bytes: int) -> tuple[int, int]:
    """Limits within which a step must run: without and with a margin."""
    return limit_bytes - min(MARGIN_BYTES, limit_bytes // 100), limit_bytes


def _fit_any_workspace(requests: Sequence[AllocatorRequest], limits: Sequence[int]) -> bool:
    """True if requests fit with each of `PARTS` of the optional workspaces."""
    reduced = [
        [(key, int(part * n) if key < 0 < n else n) for key, n in requests] for part in PARTS
    ]
    return all(CachingAllocator(limit).run(each) for limit in limits for each in reduced)
