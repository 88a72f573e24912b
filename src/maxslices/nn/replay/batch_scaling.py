"""Scaling of a trace: its sizes as straight lines in the number of images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from .caching_allocator import AllocatorRequest, CachingAllocator
from .steady_state import steady
from .trace import Trace
from .workspaces import OperatorCall, Workspace

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
