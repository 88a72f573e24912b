"""Which slice counts to measure next, and what may be concluded from those measured.

Arithmetic alone: nothing is run here. The rules rest on what methods do with memory. Most
peaks are the largest of several costs of the form ``fixed + n * per_slice``, so a cost that
is hidden now behind a fixed one can grow faster later, but never above the line from the
origin through the last point; that line is what a rung has to fit in before it is run.
Below the last point the memory never decreases, so that a stretch where it is not known to
be straight is taken to cost what its end costs.
"""

from __future__ import annotations

import math
from bisect import insort
from itertools import pairwise

from .envelope import envelope
from .steps import Steps, find_steps

_AT_ANSWER = 0.004
"""Part of the memory that a difference between slopes may cost at the answer, if the slopes
are to count as equal."""
_PASSED = 0.02
"""Part of the memory up to which a step may have gone unnoticed among the last points."""
_HIDDEN = 0.01
"""Part of the memory by which a hidden cost may exceed the estimate where nothing is done
about it."""
_NEXT_TO = 0.004
"""Part of a slice count below which the next one is not worth a rung."""
_LONGEST = 5.0
"""Times the limit that a probe may take where that is little beside what the scan takes."""
_OF_SCAN = 0.05
"""Part of the time of the whole scan that is little."""
_SLACK = 1.1
"""Times the memory that one slice more may take at worst, if the device has it."""
_NEAR = 1.25
"""Times the slices run up to which an answer is approached in single slices, if nothing else
is known to fit."""
_MOST_RUNGS = 64


class Ladder:
    """Points (slices, bytes), what follows from them, and the next rung.

    Parameters
    ----------
    available_bytes : int
        The memory for which the answer is wanted.
    total_slices : int
        More slices than these are never asked for.
    run_bytes : int
        What may really be used while measuring, if that is less.
    noise_bytes : int
        Differences below this mean nothing.
    rounding_bytes : int
        What rounding of allocations makes of a line: no more is counted beyond the last rung.
    floor_bytes : int
        Least bytes that a slice more can take: those of the input.
    limit_s, quick_s : float
        Time for all rungs; and time within which even a confirmation is worth while that
        nothing calls for.
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
        limit_s: float,
        quick_s: float,
    ) -> None:
        self.available_bytes, self.total_slices = available_bytes, total_slices
        self.run_bytes = min(run_bytes, available_bytes)
        self.at_worst_bytes = min(run_bytes, int(available_bytes * _SLACK))
        self.noise_bytes, self.floor_bytes = noise_bytes, floor_bytes
        self.rounding_bytes = rounding_bytes
        self.limit_s, self.quick_s = limit_s, quick_s
        self.stopped_by_time = False
        self.is_rough = False
        """Whether drivers and C libraries have a part in it, which pad what they allocate."""
        self._points: list[tuple[int, int]] = []
        self._above: tuple[int, int] | None = None
        self._expected = 0
        self._durations_s: dict[int, float] = {}
        self._steps_of: list[tuple[int, int]] = []
        self._steps: Steps | None = None

    def add(self, n_slices: int, n_bytes: int, duration_s: float) -> None:
        """Enter what was measured; more than there is bounds the rungs from above."""
        if n_slices == self._expected:
            self._points = [(n, size) for n, size in self._points if n != n_slices]
        if n_bytes > self.run_bytes:
            if self._above is None or n_slices < self._above[0]:
                self._above = n_slices, n_bytes
                self._points = [(n, size) for n, size in self._points if n < n_slices]
            return
        self._durations_s[n_slices] = duration_s
        insort(self._points, (n_slices, n_bytes))

    def expect(self, n_slices: int, n_bytes: int) -> None:
        """Enter a point for the time being, to judge the first rungs by; `add` replaces it."""
        self.add(n_slices, n_bytes, 0.0)
        self._expected = n_slices

    def failed(self, n_slices: int) -> None:
        """Enter that the memory ran out."""
        self.add(n_slices, max(self.available_bytes, self.upper_bytes(n_slices)) + 1, 0.0)

    def lift(self, n_bytes: int, n_slices: int | None = None) -> None:
        """Add bytes to what was measured: to all of it, or with one number of slices."""
        self._points = [(n, size + n_bytes * (n_slices in (None, n))) for n, size in self._points]

    @property
    def has_points(self) -> bool:
        """Whether anything fitted."""
        return bool(self._points)

    def is_at_top(self) -> bool:
        """Tell whether what was run is next to the answer."""
        n = self.last[0] if self._points else 0
        if self._above is not None:
            return self._above[0] - 1 <= n * (1 + _NEXT_TO) + 1
        return bool(n) and (n >= self.total_slices or self.answer() <= n * 1.02)

    @property
    def last(self) -> tuple[int, int]:
        """The largest number of slices that fitted, and its bytes."""
        return self.rising()[-1]

    def lifted(self) -> list[tuple[int, int]]:
        """Return the points that fitted, each at least as high as those before."""
        highest, found = 0, []
        for n, size in self._points:
            highest = max(highest, size)
            found.append((n, highest))
        return found

    def rising(self) -> list[tuple[int, int]]:
        """Return the points since the memory last fell, from which it is judged how it goes on."""
        start = 0
        for i, ((_, a), (_, b)) in enumerate(pairwise(self._points), start=1):
            if b < a - self.noise_bytes:
                start = i
        highest, found = 0, []
        for n, size in self._points[start:]:
            highest = max(highest, size)
            found.append((n, highest))
        return found

    def slopes(self) -> list[float]:
        """Return the bytes per slice between neighbouring points."""
        points = self.rising()
        return [(b - a) / (n - m) for (m, a), (n, b) in pairwise(points)]

    def established(self) -> bool:
        """Tell whether the last four points lie on a line, as far as it matters at the answer."""
        slopes = self.slopes()[-3:]
        if len(slopes) < 3:
            return False
        n, size = self.last
        steepest = max(*slopes, self.floor_bytes, 1)
        answer = min(self.total_slices, n + (self.available_bytes - size) / steepest)
        spread = max(slopes) - min(slopes)
        allowed = _AT_ANSWER * self.available_bytes + 2 * self.noise_bytes
        # Where little is left to extrapolate, a line still has to be one.
        return spread * max(answer - n, n / 4) <= allowed

    def is_exact(self) -> bool:
        """Tell whether all points, up to 33 slices or more, lie on one line."""
        points = self.rising()
        if len(points) < 6 or len(points) < len(self._points) or points[-1][0] < 33:
            return False
        (m, a), (n, b) = points[0], points[-1]
        slope = (b - a) / (n - m)
        return all(abs(size - a - slope * (k - m)) <= self.noise_bytes for k, size in points)

    def steps(self) -> Steps | None:
        """Return the steps that all points lie on, if there are such."""
        points = self.rising()
        if points != self._steps_of:
            self._steps_of = points
            self._steps = None if self.established() else find_steps(points, self.noise_bytes)
        return self._steps

    def answer(self) -> int:
        """Return how many slices fit if the last slope, or the steps, go on."""
        steps = self.steps()
        if steps is not None:
            return steps.last_below(self.available_bytes, self.last[0], self.total_slices)
        n, size = self.last
        slope = max(*self.slopes()[-2:], self.floor_bytes, 1)
        return int(min(self.total_slices, n + (self.available_bytes - size) // slope))

    def is_sure(self) -> bool:
        """Tell whether it is safe to go on with the last slope: a line, up to a quarter."""
        known = self.established() or self.steps() is not None
        return known and 4 * self.last[0] >= self.answer()

    def hidden_bytes(self) -> int:
        """Return by how much a cost not seen yet could exceed the last slope at the answer."""
        if self.steps() is not None:  # rare enough to be confirmed
            return self.available_bytes
        n, size = self.last
        slope = max(*self.slopes()[-2:], self.floor_bytes)
        return int(max(0.0, size / n - slope) * (self.answer() - n))

    def upper_bytes(self, n_slices: int) -> int:
        """Return what more slices than measured so far take at most."""
        if not self._points:
            return self.floor_bytes * n_slices
        n, size = self.last
        steps = self.steps()
        if steps is not None:
            most = steps(n_slices) * (1 + _AT_ANSWER / 2) + self.noise_bytes
            if n_slices > 4 * n:
                most = max(most, steps.at_most(n_slices), size * n_slices / n)
            return max(size, math.ceil(most))
        most = size * (n_slices / n) ** self._order() + self._step_bytes()
        if self.is_rough:  # they may pad to a power of two, which one step shows at its steepest
            most = max(most, max(self.slopes(), default=0.0) * n_slices)
        return math.ceil(most)

    def _order(self) -> int:
        """Return the power of n with which the bytes grow: 1 unless worse than a line."""
        points = self.rising()[-3:]
        if len(points) < 3 or points[0][1] <= 0:
            return 1
        (m, a), _, (n, b) = points
        if b * m - a * n <= self.noise_bytes * n:  # the line through both passes above 0
            return 1
        return max(1, math.ceil(math.log(b / a) / math.log(n / m) - 0.02))

    def _step_bytes(self) -> int:
        """Return how far points lie above the line through the last, if slopes go up and down.

        Rungs are now multiples of 16, now one more, so that memory taken in steps of 2, 4,
        8, 16... slices shows at every second rung.
        """
        slopes, points = self.slopes()[-3:], self.rising()[-4:]
        turns = [
            (b - a) * (c - b) < 0
            and min(abs(b - a), abs(c - b)) > 0.1 * max(abs(b - a), abs(c - b))
            for a, b, c in zip(slopes, slopes[1:], slopes[2:], strict=False)
        ]
        if self.established() or not any(turns[-1:]):
            return 0
        slope = self._pairwise_slope()
        n, size = points[-1]
        return max(0, *(math.ceil(y - (size - slope * (n - x))) for x, y in points))

    def _passed_step_bytes(self) -> int:
        """Return the height of steps that the last points pass over, so that they make a line.

        A step shows where few slices are run: there memory grows steeply, then less so.
        """
        if not self.established() or self.is_exact():
            return 0
        points, slopes = self.rising(), self.slopes()
        heights = [
            (slope - before) * (points[i + 2][0] - points[i + 1][0])
            for i, (before, slope, after) in enumerate(
                zip(slopes, slopes[1:], slopes[2:], strict=False)
            )
            if slope > 1.1 * after > 1.12 * before  # a step that is made but once is measured
        ]
        height = math.ceil(max(heights, default=0.0))
        return height if height <= _PASSED * self.available_bytes else 0

    def _pairwise_slope(self) -> float:
        """Return the largest slope over two intervals, which steps do not disturb."""
        points = self.rising()[-5:]
        pairs = zip(points, points[2:], strict=False)
        return max(((b - a) / (n - m) for (m, a), (n, b) in pairs), default=0.0)

    def next_rung(self, elapsed_s: float) -> int | None:
        """Return the number of slices to measure next; None where it is time to stop."""
        if len(self._points) >= _MOST_RUNGS:
            return None
        fall = self._inside_a_fall()
        if fall is not None:
            return self._in_time(fall, elapsed_s)
        rung = self._upwards(elapsed_s)
        if rung is None and not self.stopped_by_time:
            rung = self._beside(elapsed_s)
        return rung

    def _upwards(self, elapsed_s: float) -> int | None:
        n, _ = self.last
        top = self.total_slices if self._above is None else self._above[0] - 1
        if n >= top:
            return None
        fits = self._most_that_fits(top)
        if self._above is not None:
            fits = max(fits, 0)
            rung = min(fits, (n + top + 1) // 2)
            return self._in_time(rung, elapsed_s) if rung > n * (1 + _NEXT_TO) else None
        steps = self.steps()
        parting = steps and steps.parting(self.run_bytes, n, top)
        if (
            parting
            and parting <= fits
            and elapsed_s + self._predicted_s(parting) <= self._allowed_s()
        ):
            return parting
        if self.is_sure():
            rung = fits
            if rung <= n * (1 + _NEXT_TO):
                return None
            quick = elapsed_s + self._predicted_s(rung) <= self.quick_s
            wanted = self.hidden_bytes() > _HIDDEN * self.available_bytes
            if not quick and not wanted:
                return None
            return rung if elapsed_s + self._predicted_s(rung) <= self.limit_s else None
        rung = min(_after(n), fits)
        if rung <= n or (n >= 64 and rung <= n * (1 + _NEXT_TO)):
            return None
        if self.is_exact():  # what lies between says little
            quarter = min(16 * -(-self.answer() // 64) + 1, fits)
            if quarter > rung and elapsed_s + self._predicted_s(quarter) <= self._allowed_s():
                return quarter
        return self._in_time(rung, elapsed_s)

    def _beside(self, elapsed_s: float) -> int | None:
        """Return a neighbour of the last rung worth a call, where the answer is next to it.

        One slice more may fit where memory grows in steps, and one or two fewer may take more.
        """
        n, size = self.last
        top = self.total_slices if self._above is None else self._above[0] - 1
        straight = self.established() and self._passed_step_bytes() == 0
        if straight or elapsed_s + self._predicted_s(n + 1) > self.limit_s:
            return None
        if n < top and size + self.floor_bytes <= self.run_bytes:
            more = size + max(self.slopes(), default=self.floor_bytes)
            near = self.answer() <= n * _NEAR + 1
            return n + 1 if near and more <= self.at_worst_bytes else None
        tried = {k for k, _ in self._points}
        return next((k for k in (n - 1, n - 2) if k > 0 and k not in tried), None)

    def _inside_a_fall(self) -> int | None:
        """Return a number of slices between two where the memory falls: it may rise before."""
        for (m, a), (n, b) in pairwise(self._points):
            if b < a - self.noise_bytes and n - m > max(1, m // 20):
                return (m + n) // 2
        return None

    def _in_time(self, rung: int, elapsed_s: float) -> int | None:
        if elapsed_s + self._predicted_s(rung) <= self._allowed_s():
            return rung
        self.stopped_by_time = True
        return None

    def _allowed_s(self) -> float:
        """Return the time limit, or more where the scan will take far longer."""
        n, first = self.last[0], self._points[0][0]
        if n == first:
            return self.limit_s
        per_slice_s = max(0.0, (self._durations_s[n] - self._durations_s[first]) / (n - first))
        scan_s = per_slice_s * self.total_slices
        return max(self.limit_s, min(_OF_SCAN * scan_s, _LONGEST * self.limit_s))

    def _predicted_s(self, rung: int) -> float:
        """Return how long a rung takes at most.

        As long per slice as the last; less where the rungs show that most of the time does not
        depend on the slices.
        """
        n, first = self.last[0], self._points[0][0]
        if rung < n:
            return self._durations_s[n]
        last_s = self._durations_s[n]
        if len(self._points) < 3:
            return last_s * rung / n
        per_slice_s = max(0.0, (last_s - self._durations_s[first]) / (n - first))
        return min(last_s * rung / n, 1.2 * last_s + 2 * per_slice_s * (rung - n))

    def may_run(self, n_slices: int) -> bool:
        """Tell whether a rung is predicted to fit.

        It may go on from the last point four times as steeply as anything seen (twice, for
        one slice), but not at once to more than twice the slices; or else stay below the
        line from the origin.
        """
        if not self._points:
            return False
        n, size = self.last
        if self.upper_bytes(n_slices) <= self.run_bytes:
            return True
        if n_slices > max(2 * n, n + 2) or self._order() > 1:
            return False
        steepest = max([self.floor_bytes, *self.slopes()])
        if len(self._points) == 1:  # input, output and twice as much again
            steepest = 4 * self.floor_bytes
        times = 2 if n_slices == n + 1 else 4
        return size + times * steepest * (n_slices - n) + self._step_bytes() <= self.run_bytes

    def _most_that_fits(self, top: int) -> int:
        low, high = self.last[0], top + 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.may_run(middle):
                low = middle
            else:
                high = middle
        return low

    def curve(self) -> tuple[tuple[int, int], ...]:
        """Return points between which straight lines are never below the memory, nor beyond."""
        points = self.lifted()
        if not points:  # not even the fewest slices fit
            return (self._above or (1, self.available_bytes + 1),)
        found = envelope(points, self.noise_bytes)
        n, size = self.last
        passed = self._passed_step_bytes()
        if passed:  # no more than what the last point was seen to take
            found = [(k, min(each + passed, size)) for k, each in found]
        steps = self.steps() if self._above is None and len(points) == len(self.rising()) else None
        if steps is not None and self.is_sure():
            return steps.between(points, self.total_slices)
        if self._above is not None:
            found += [(n + 1, max(self._above[1], size))] if self._above[0] > n + 1 else []
            found.append((self._above[0], max(self._above[1], size)))
            n, size = self._above[0], max(self._above[1], size)
            slope: float = max(size / n, *self.slopes()[-1:], 0.0)
        elif self.is_sure():
            slope = max(*self.slopes()[-2:], self.floor_bytes)
            # Small steps may pass for a line: as much above it as any of the last points.
            off = max(math.ceil(y - (size - slope * (n - x))) for x, y in self.rising()[-4:])
            off = max(off, passed)
            if off > self.noise_bytes:
                n, size = n + 1, size + off + math.ceil(slope)
                found.append((n, size))
        else:
            further = max(n + 1, self.answer())
            slope = max(
                (self.upper_bytes(further) - self._step_bytes() - size) / (further - n),
                self._pairwise_slope(),
                *self.slopes()[-1:],
                self.floor_bytes,
            )
            step = self._step_bytes()
            if step:
                n, size = n + 1, size + step + math.ceil(slope)
                found.append((n, size))
        # A byte too many would cost a slice where memory is what a number of slices takes.
        beyond = max(size, size + math.ceil(slope) - self.rounding_bytes)
        found.append((n + 1, beyond))
        found.append((2 * n + 1, beyond + math.ceil(slope * n)))
        return tuple(found)


def _after(n: int) -> int:
    """Return the rung after n: 1, 2, 3, 5, 8, 16, 33, 64, 129, 256, 513...

    They are in turn multiples of 16 and one more (of 3: one more, and multiples), which parts
    steps from slopes.
    """
    for rung in (1, 2, 3, 5, 8):
        if rung > 1.2 * n:
            return rung
    power = 4
    while (rung := 2**power + (power % 2)) <= 1.4 * n:
        power += 1
    return rung
