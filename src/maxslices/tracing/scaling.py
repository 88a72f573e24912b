"""A trace for any number of images, from a few replays.

Where the same events happen whatever the number, each storage grows along a straight line
in it; two replays give the line, a third confirms it. Where they do not, each number is
replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from .allocator import Allocator, least_limit
from .trace import Trace
from .work_areas import Call

_KEPT = 64
"""Numbers whose traces are remembered."""
_LOOKED_AT = 64
"""Numbers below the answer that must fit as well."""
MARGIN = 256
"""`Family.largest` leaves 1 / this of the limit: kernels that cuDNN turns to when there is
little room may want some of it."""


class Scaled:
    """Sizes of a trace as functions of the number of images.

    Parameters
    ----------
    first, second : Trace
        The same step at two numbers.
    at : (int, int)
        The numbers.

    Raises
    ------
    ValueError
        If the two do not have the same events, or sizes that no whole line goes through.
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
        self._calls = [
            _scaled_call(a, b, at[0], run) for a, b in zip(first.calls, second.calls, strict=True)
        ]

    def sizes(self, n: int) -> list[int]:
        """Return the bytes of every storage for n images."""
        return [constant + slope * n for constant, slope in self._lines]

    def calls(self, n: int) -> list[Call]:
        """Return the calls of operators with their shapes for n images."""
        return [
            call._replace(shapes=tuple(tuple(a + b * n for a, b in shape) for shape in shapes))
            for call, shapes in self._calls
        ]

    def steps(self, n: int) -> list[tuple[int, int]]:
        """Return what the allocator is asked for n images."""
        return self._trace.steps(self.sizes(n), self.calls(n))

    def agrees(self, trace: Trace, n: int) -> bool:
        """Tell whether a replay for n images is what the lines say."""
        return (
            _alike(self._trace, trace)
            and self.sizes(n) == [storage.n_bytes for storage in trace.storages]
            and [c.shapes for c in self.calls(n)] == [c.shapes for c in trace.calls]
        )


class Family:
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
        self._make = lru_cache(maxsize=_KEPT)(make)
        self._needed = lru_cache(maxsize=4 * _KEPT)(self._find_needed)
        traces = [self.trace(n) for n in at]
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

    def _simulated(self, n: int) -> Allocator:
        allocator = Allocator()
        allocator.run(self.steps(n))
        return allocator

    def needed_bytes(self, n: int) -> int:
        """Return the smallest limit, to 2 MiB, from which on n images run."""
        return self._needed(n)

    def _find_needed(self, n: int) -> int:
        steps = self.steps(n)
        allocator = Allocator()
        allocator.run(steps)
        return least_limit(steps, allocator.peak_allocated_bytes, allocator.peak_reserved_bytes)

    def fits(self, n: int, limit_bytes: int) -> bool:
        """Tell whether n images run when the allocator may hold no more than `limit_bytes`.

        Where there is no room for the work area of a convolution, another kernel is used.
        """
        return Allocator(limit_bytes).run(self.steps(n))

    def largest(self, limit_bytes: int, at_most: int = 2**20) -> int:
        """Return the largest number of images that runs within a limit; 0 if not even one does.

        Larger numbers may fit again, where parts happen to be of the same size: what is
        returned is the last before the first that does not fit, among those tried, and it
        fits itself, with a small margin.
        """
        limit_bytes -= limit_bytes // MARGIN
        # One image is a replay of its own, which what more of them say makes needless.
        if at_most < 2 or not self.fits(2, limit_bytes):
            return int(at_most >= 1 and self.fits(1, limit_bytes))
        low, high = 2, 4
        while high <= at_most and self.fits(high, limit_bytes):
            low, high = high, high * 2
        high = min(high, at_most + 1)
        while high - low > 1:
            middle = (low + high) // 2
            if self.fits(middle, limit_bytes):
                low = middle
            else:
                high = middle
        start = low - low // 4
        for n in range(start, low, max(1, (low - start) // _LOOKED_AT)):
            if not self.fits(n, limit_bytes):
                return next(m for m in range(n - 1, 0, -1) if self.fits(m, limit_bytes))
        return low


def _alike(first: Trace, second: Trace) -> bool:
    return (
        first.events == second.events
        and len(first.storages) == len(second.storages)
        and [_kind(call) for call in first.calls] == [_kind(call) for call in second.calls]
    )


def _kind(call: Call) -> tuple[object, ...]:
    ranks = tuple(len(shape) for shape in call.shapes)
    return call.kind, call.options, call.dtype, call.channels_last, ranks


def _line(at_first: int, at_second: int, first: int, run: int) -> tuple[int, int]:
    """Return constant and slope of the line through two sizes."""
    slope, rest = divmod(at_second - at_first, run)
    if rest:
        raise ValueError(f"{at_first} and {at_second} bytes are not on a line of whole bytes")
    return at_first - slope * first, slope


def _scaled_call(
    a: Call, b: Call, first: int, run: int
) -> tuple[Call, tuple[tuple[tuple[int, int], ...], ...]]:
    shapes = tuple(
        tuple(_line(x, y, first, run) for x, y in zip(s, t, strict=True))
        for s, t in zip(a.shapes, b.shapes, strict=True)
    )
    return b, shapes
