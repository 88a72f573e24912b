"""Extrapolate memory measured with a few numbers of slices.

Most peaks are the largest of several costs of the form ``fixed + n * per_slice``. A cost that is
still hidden behind another one with a larger fixed part may grow faster and take over later, but
stays below the line from the origin through the last point.
"""

from __future__ import annotations

import math
from bisect import insort
from itertools import pairwise

from .step_rounding import Steps, find_steps

_AT_ANSWER = 0.004
"""Slopes count as equal if their difference makes less than 0.4 % of the memory at the answer: less
than one slice in 250."""
_PASSED = 0.02
"""Part of the memory up to which a step may have gone unnoticed among the last points. Higher ones
bend the line."""
_FALLEN = 0.9
"""A slope below 0.9 of the one before it may be an accident of steps: both are reckoned with."""
_FEWEST = 3
"""With more than 3 points, the first may lie off the line: a single slice is often handled in
another way."""
NEXT_TO = 0.004
"""Slice counts within 0.4 % of each other are neighbours: up to 250, single slices."""


class Trend:
    """Measured points (slices, bytes) and their extrapolation.

    Parameters
    ----------
    available_bytes : int
        The memory for which the number of slices is wanted.
    total_slices : int
        Most slices that one call is ever given.
    run_bytes : int
        Memory that measuring may use; `available_bytes` if that is less.
    noise_bytes : int
        Differences below this are ignored.
    rounding_bytes : int
        How far rounding of allocations takes points off a line.
    floor_bytes : int
        Least bytes of one slice more: those of the input.
    """

    def __init__(
        self,
        available_bytes: int,
        total_slices: int,
        *,
        run_bytes: int,
        noise_bytes: int,
        floor_bytes: int,
        rounding_bytes: int = 0,
    ) -> None:
        self.available_bytes, self.total_slices = available_bytes, total_slices
        self.run_bytes = min(run_bytes, available_bytes)
        self.noise_bytes, self.floor_bytes = noise_bytes, floor_bytes
        self.rounding_bytes = rounding_bytes
        self.is_rough = False
        """Whether memory outside the pool counts, which drivers and C libraries pad."""
        self.outside_of_slice = 0.0
        """Most bytes of a slice outside the pool, over all rungs."""
        self.above: tuple[int, int] | None = None
        """The fewest slices that did not fit, and their bytes."""
        self._points: list[tuple[int, int]] = []
        self._rising: list[tuple[int, int]] | None = None
        self._slopes: list[float] = []
        self._steps_of: list[tuple[int, int]] = []
        self._steps: Steps | None = None

    def enter(self, n_slices: int, n_bytes: int) -> bool:
        """Enter a point; True if it fits. One that does not becomes `above`."""
        if n_bytes <= self.run_bytes:
            insort(self._points, (n_slices, n_bytes))
            self._rising = None
            return True
        if self.above is None or n_slices < self.above[0]:
            self.above = n_slices, n_bytes
            self._points = [(n, size) for n, size in self._points if n < n_slices]
            self._rising = None
        return False

    def forget(self, n_slices: int) -> None:
        """Remove a point."""
        self._points = [(n, size) for n, size in self._points if n != n_slices]
        self._rising = None

    @property
    def top(self) -> int:
        """Most slices that may fit by what was measured."""
        return self.total_slices if self.above is None else self.above[0] - 1

    def lift(self, n_bytes: int, n_slices: int | None = None) -> None:
        """Add bytes to all points, or to the one with `n_slices`."""
        self._points = [(n, size + n_bytes * (n_slices in (None, n))) for n, size in self._points]
        self._rising = None

    @property
    def has_points(self) -> bool:
        """True once a point fitted."""
        return bool(self._points)

    def is_at_top(self) -> bool:
        """True if the last point is next to the answer."""
        n = self.last[0] if self._points else 0
        if self.above is not None:
            return self.above[0] - 1 <= n * (1 + NEXT_TO) + 1
        return bool(n) and (n >= self.total_slices or self.answer() <= n * 1.02)

    @property
    def last(self) -> tuple[int, int]:
        """The point with the most slices that fitted."""
        return self.rising()[-1]

    def lifted(self) -> list[tuple[int, int]]:
        """The points that fitted, each raised to the highest before it."""
        highest, found = 0, []
        for n, size in self._points:
            highest = max(highest, size)
            found.append((n, highest))
        return found

    def rising(self) -> list[tuple[int, int]]:
        """The points since memory last fell, which are extrapolated."""
        if self._rising is None:
            start = 0
            for i, ((_, a), (_, b)) in enumerate(pairwise(self._points), start=1):
                if b < a - self.noise_bytes:
                    start = i
            highest, self._rising = 0, []
            for n, size in self._points[start:]:
                highest = max(highest, size)
                self._rising.append((n, highest))
            self._slopes = [(b - a) / (n - m) for (m, a), (n, b) in pairwise(self._rising)]
        return self._rising

    def slopes(self) -> list[float]:
        """Bytes per slice between neighbouring points of `rising`."""
        self.rising()
        return self._slopes

    def established(self) -> bool:
        """True if the last four points lie on a line, as far as it matters at the answer."""
        slopes = self.slopes()[-3:]
        if len(slopes) < 3:
            return False
        n, size = self.last
        steepest = max(*slopes, self.floor_bytes, 1)
        answer = min(self.total_slices, n + (self.available_bytes - size) / steepest)
        spread = max(slopes) - min(slopes)
        allowed = _AT_ANSWER * self.available_bytes + 2 * self.noise_bytes
        # The second argument requires a line even if the answer is next to the last point.
        return spread * max(answer - n, n / 4) <= allowed

    def is_exact(self) -> bool:
        """True if all points, up to 33 slices or more, lie on one line."""
        points = self._points
        return len(points) >= 6 and points[-1][0] >= 33 and self._is_line(points)

    def is_straight(self) -> bool:
        """True if all points, perhaps without the first, lie on one line."""
        return self._is_line(self._points[len(self._points) > _FEWEST :])

    def _is_line(self, points: list[tuple[int, int]]) -> bool:
        (m, a), (n, b) = points[0], points[-1]
        slope = (b - a) / max(1, n - m)
        return all(abs(size - a - slope * (k - m)) <= self.noise_bytes for k, size in points)

    def is_convex(self) -> bool:
        """True if slopes never decrease, as with the largest of several costs."""
        slopes = [(b - a) / (n - m) for (m, a), (n, b) in pairwise(self._points)]
        return all(b >= 0.98 * a for a, b in pairwise(slopes))

    def steps(self) -> Steps | None:
        """The steps that explain all points; None if there are none or a line does."""
        points = self.rising()
        if points != self._steps_of:
            self._steps_of = points
            self._steps = None if self.established() else find_steps(points, self.noise_bytes)
        return self._steps

    def answer(self) -> int:
        """Slices that fit if the last slope, or the steps, continue."""
        steps = self.steps()
        if steps is not None:
            return steps.last_below(self.available_bytes, self.last[0], self.total_slices)
        n, size = self.last
        slope = max(*self.slopes()[-2:], self.floor_bytes, 1)
        return int(min(self.total_slices, n + (self.available_bytes - size) // slope))

    def is_sure(self) -> bool:
        """True if extrapolation is safe: a line or steps, run up to a quarter of the answer."""
        known = self.established() or self.steps() is not None
        return known and 4 * self.last[0] >= self.answer()

    def hidden_bytes(self) -> int:
        """Most bytes by which a cost not seen yet could exceed the extrapolation at the answer."""
        if self.steps() is not None:  # steps are rare, and always confirmed
            return self.available_bytes
        n, size = self.last
        slope = max([*self.slopes()[-2:], self.floor_bytes])
        return int(max(0.0, size / n - slope) * (self.answer() - n))

    def upper_bytes(self, n_slices: int) -> int:
        """Upper bound of the bytes of more slices than were run."""
        if not self._points:
            return self.floor_bytes * n_slices
        n, size = self.last
        steps = self.steps()
        if steps is not None:
            most = steps(n_slices) * (1 + _AT_ANSWER / 2) + self.noise_bytes
            if n_slices > 4 * n:
                most = max(most, steps.at_most(n_slices), size * n_slices / n)
            return max(size, math.ceil(most))
        size = max(size, self.lifted()[-1][1])  # memory that fell may rise again
        most = size * (n_slices / n) ** self.order() + self.step_bytes()
        slopes = self.slopes()[-2:]
        if len(slopes) == 2 and slopes[1] < _FALLEN * slopes[0]:  # the last may be a low one
            m, before = self.rising()[-2]
            more = before * n / m - size
            most = max(most, (before / m + more / n / 8) * n_slices)
        return math.ceil(most + self.outside_of_slice * n_slices)  # padding may double it

    def likely_bytes(self, n_slices: int) -> int:
        """Likely bytes of more slices: by the steps, or by the last slope."""
        steps = self.steps()
        if steps is not None:
            return math.ceil(steps(n_slices))
        n, size = self.last
        return math.ceil(size + max(*self.slopes()[-2:], self.floor_bytes, 0) * (n_slices - n))

    def order(self) -> int:
        """Power of n with which bytes grow: 1, or more if they grow faster than a line."""
        points = self.rising()[-3:]
        if len(points) < 3 or points[0][1] <= 0:
            return 1
        (m, a), _, (n, b) = points
        if b * m - a * n <= self.noise_bytes * n:  # the intercept is not negative
            return 1
        return max(1, math.ceil(math.log(b / a) / math.log(n / m) - 0.02))

    def step_bytes(self) -> int:
        """Height of points above the line through the last one, if slopes go up and down.

        Rungs are in turn a multiple of 16 and one more, so that memory taken in steps of 2, 4, 8,
        16... slices is high at every second rung.
        """
        slopes, points = self.slopes()[-3:], self.rising()[-4:]
        turns = [
            (b - a) * (c - b) < 0
            and min(abs(b - a), abs(c - b)) > 0.1 * max(abs(b - a), abs(c - b))
            for a, b, c in zip(slopes, slopes[1:], slopes[2:], strict=False)
        ]
        if self.established() or not any(turns[-1:]):
            return 0
        slope = self.pairwise_slope()
        n, size = points[-1]
        return max(0, *(math.ceil(y - (size - slope * (n - x))) for x, y in points))

    def passed_step_bytes(self) -> int:
        """Height of steps that lie between the last points, which look like a line.

        Such a step shows among the first rungs: memory grows steeply there, then less so.
        """
        if not self.established() or self.is_exact():
            return 0
        points, slopes = self.rising(), self.slopes()
        heights = [
            (slope - before) * (points[i + 2][0] - points[i + 1][0])
            for i, (before, slope, after) in enumerate(
                zip(slopes, slopes[1:], slopes[2:], strict=False)
            )
            if slope > 1.1 * after > 1.12 * before  # a single step is part of the points
        ]
        height = math.ceil(max(heights, default=0.0))
        return height if height <= _PASSED * self.available_bytes else 0

    def pairwise_slope(self) -> float:
        """Largest slope over two neighbouring intervals, which evens out steps."""
        points = self.rising()[-5:]
        pairs = zip(points, points[2:], strict=False)
        return max(((b - a) / (n - m) for (m, a), (n, b) in pairs), default=0.0)
