"""Find a method's memory from its peaks alone, where its allocations do not tell it.

The slices are about doubled until no more fit, and then bisected. The model is an upper envelope of
the peaks: it never decreases, and where these do not lie on a line, all of an interval counts as
much as its end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import pairwise

from ..measure.cupy_pool import GRAIN_BYTES
from ..model.bisection import last_true
from ..model.memory_model import MemoryModel
from ..model.peak_model import PERIOD
from .bench import CUSHION_BYTES, NOISE_BYTES, Rung
from .data_kinds import with_other_data
from .method_calls import REACH, MethodCalls
from .probe_result import Probe
from .retained_memory import Points, RetainedMemory
from .sequence_probe import LONG_S, PROOF_S, TRUSTED

OF_SCAN, LONGEST_S = 0.05, 40.0
"""A search may take a twentieth of the time of the whole scan, up to 40 s, where that is more than
its limit: calls of a second are few in 2.5 s."""
_LONG_TIMES = 3.2
"""So many times its limit, 8 s, may a search take where every call is long."""
_CLOSE = 0.1
"""One slice more is tried where a tenth of it lacks: predictions are as far off."""
_SAME_SLOPE = 0.004
"""Slopes count as equal if they differ by less than 0.4 % of the memory at the answer: one slice
in 250."""


class PeakSearch:
    """Calls a method with more and more slices.

    Parameters
    ----------
    calls : MethodCalls
        The method.
    retained : RetainedMemory
        Memory that calls leave.
    limit_s : float
        Time for all calls.
    """

    def __init__(self, calls: MethodCalls, retained: RetainedMemory, limit_s: float) -> None:
        self.calls, self.bench, self.retained, self.limit_s = calls, calls.bench, retained, limit_s
        self.rungs: list[Rung] = []
        self.notes: list[str] = []
        self._taken: dict[int, int] = {}
        self._too_many = calls.total_slices + 1
        self._is_stopped = self._ran_out = False
        self._n_halved = 0
        self._began_s = time.perf_counter()

    def run(self, first: Rung, known: Sequence[Rung] = ()) -> None:
        """Make all calls.

        Parameters
        ----------
        first : Rung
            The first call, which compiled and filled caches.
        known : sequence of Rung
            Other calls that were made.
        """
        self._began_s = time.perf_counter()
        again, usual = None, self.bench.kind
        if first.duration_s <= 3 * self.limit_s:  # it may have compiled: time another
            again = self.calls.measured(first.n_slices, self.bench.run)
        least = again or first
        if again is None or 2 * again.duration_s > LONG_S:
            self.limit_s *= _LONG_TIMES
            self.notes.append(f"a call takes {least.duration_s:.1f} s, so that few were made")
            self._enter(least, 0 if again is None else None)
        else:
            self._few(again)
        for rung in known if self.bench.kind == usual else ():
            self._enter(rung)
        while self._points():
            n = self._next()
            if n is None:
                break
            self._call(n)

    def _few(self, again: Rung) -> None:
        """Find what stays, and whether data matter, with one to three slices."""
        n = again.n_slices
        found = {n: again}
        for more in (n + 2, n + 1):
            worst = self.calls.worst_bytes(more, [(n, again.n_bytes)])
            fits = again.n_bytes <= self.calls.run_bytes and self.calls.may_take(worst)
            if fits and more <= self.calls.total_slices:
                rung = self.calls.measured(more, self.bench.run)
                if rung is None:
                    self._fails(more)
                else:
                    found[more] = rung
        most, usual = max(found), self.bench.kind
        other, notes = with_other_data(
            self.bench,
            found[most],
            lambda k: self.calls.measured(k, self.bench.run),
            self._noise_bytes,
        )
        self.notes += notes
        self.retained.judge(again, found.get(n + 1), other or again)
        tried: dict[int, Rung | None] = dict(found)
        if other is None or self.bench.kind != usual:
            tried = {k: self.calls.measured(k, self.bench.run) for k in found}
        for k, rung in sorted(tried.items()):
            if rung is None:
                self._fails(k)
            elif k < self._too_many:
                self._enter(rung)

    def _call(self, n: int) -> None:
        rung = self.calls.measured(n, self.bench.run)
        if rung is None:
            if self._likely_bytes(n) <= self.calls.available_bytes:
                self.notes.append(f"memory ran out with {n} slices, which were predicted to fit")
            self._fails(n)
        else:
            self._enter(rung)

    def _fails(self, n: int) -> None:
        self._ran_out, self._too_many = True, min(self._too_many, n)

    def _enter(self, rung: Rung, before_bytes: int | None = None) -> None:
        """Enter a call, with the memory that earlier calls of a run would have left."""
        if before_bytes is None:
            before_bytes = self.retained.before_bytes(rung)
        self.retained.see_outside(self.bench.stays_bytes)
        self.calls.stays_bytes = self.retained.outside_bytes
        self.rungs.append(rung)
        self.retained.enter(rung, before_bytes)
        taken = rung.n_bytes + before_bytes + CUSHION_BYTES[self.calls.backend.kind]
        self._taken[rung.n_slices] = max(taken, self._taken.get(rung.n_slices, 0))
        over = [n for n, size in self._all_points() if size > self.calls.run_bytes]
        self._too_many = min([self._too_many, *over])

    @property
    def _noise_bytes(self) -> int:
        """Differences between peaks that are ignored."""
        return 2 * GRAIN_BYTES if self.bench.uses_outside else NOISE_BYTES[self.calls.backend.kind]

    def _all_points(self) -> list[tuple[int, int]]:
        """Peaks of all calls, each at least that of fewer slices.

        What seemed to be outside the pool in small calls, but was not clear, was so if it is clear
        in others.
        """
        doubtful = {
            rung.n_slices: rung.doubtful_bytes * self.bench.uses_outside for rung in self.rungs
        }
        highest, found = 0, []
        for n, size in sorted(self._taken.items()):
            highest = max(highest, size + doubtful[n] + self.retained.outside_bytes)
            found.append((n, highest))
        return found

    def _points(self) -> list[tuple[int, int]]:
        """Those that fit."""
        return [point for point in self._all_points() if point[0] < self._too_many]

    def _slopes(self) -> list[float]:
        return [(b - a) / (n - m) for (m, a), (n, b) in pairwise(self._points())]

    def _slope(self) -> float:
        """Last slope, at least that of the input."""
        return max([self.bench.samples.nbytes(1), *self._slopes()[-1:]])

    def _likely_bytes(self, n: int) -> float:
        k, size = self._points()[-1]
        return size + self._slope() * (n - k)

    def _is_line(self) -> bool:
        """True if the last four points lie on a line, as far as it matters at the answer."""
        slopes, (n, size) = self._slopes()[-3:], self._points()[-1]
        if len(slopes) < 3:
            return False
        room = self.calls.available_bytes - size
        further = min(self.calls.total_slices - n, room / self._slope())
        spread = (max(slopes) - min(slopes)) * max(further, n / 4)
        return spread <= _SAME_SLOPE * self.calls.available_bytes + 2 * self._noise_bytes

    def _next(self) -> int | None:
        """Slices of the next call; None if the answer is known, or time is up."""
        n, size = self._points()[-1]
        top = self._too_many - 1
        if n < top:
            wanted = self._wanted(n, size)
            if wanted > n:
                return self._in_time(n, wanted)
        return self._fewer(n)

    def _wanted(self, n: int, size: int) -> int:
        """As many slices as may fit, at most twice as many as before; n if no more do."""
        top, room = self._too_many - 1, self.calls.run_bytes - size
        likely = n + int(room / self._slope() + _CLOSE)
        if self._too_many <= self.calls.total_slices:
            self._n_halved += 1
            likely = top if self._n_halved == 1 and self._is_line() else (n + top + 1) // 2
        elif self._is_line():
            likely = min(likely, REACH * n)
        elif self._slopes()[-1:] == [0.0]:  # it fell
            likely = n + 1
        else:
            if likely <= n:
                likely = n + int(room * n / size)
            likely = min(likely, 2 * n + (n % 2 == 0))
        wanted = min(likely, top)
        if wanted <= n:
            return n
        may_run = last_true(self._may_run, n, wanted + 1)
        is_known = may_run < wanted and self._is_line() and self._answer_of_line() <= REACH * n
        return n if is_known else may_run

    def _may_run(self, n: int) -> bool:
        return self.calls.may_take(self.calls.worst_bytes(n, self._points()))

    def _in_time(self, n: int, wanted: int) -> int | None:
        """As many of the wanted slices as there is time for."""
        if not self._has_time(wanted):
            self._is_stopped = True
            wanted = last_true(self._has_time, n, wanted) if self._has_time(n + 1) else n
        return wanted if wanted > n else None

    def _has_time(self, n: int) -> bool:
        left_s = self._allowed_s() - (time.perf_counter() - self._began_s)
        return self.calls.duration_s(n) <= left_s

    def _allowed_s(self) -> float:
        scan_s = self.calls.duration_s(self.calls.total_slices)
        return max(self.limit_s, min(OF_SCAN * scan_s, LONGEST_S))

    def _fewer(self, n: int) -> int | None:
        """Slices below the last that may take more, where memory is no line."""
        if self._is_line():
            return None
        near = PERIOD if self.calls.duration_s(n) * PERIOD <= PROOF_S else TRUSTED
        has_time = self.calls.duration_s(n) <= PROOF_S or self._has_time(n)
        fewer = range(n - 1, max(0, n - near), -1) if has_time else ()
        return next((k for k in fewer if k not in self._taken), None)

    def _curve(self) -> Points:
        """Points whose lines, between them and beyond, are an upper bound of the memory."""
        points = self._points()
        if not points:  # even the fewest slices do not fit
            (over,) = self._all_points()[:1]
            return (over,)
        found = envelope(points, self._noise_bytes)
        n, size = points[-1]
        if self._too_many <= self.calls.total_slices:
            n, size = n + 1, max(size, self.calls.available_bytes + 1)
            slope = size / n
            found.append((n, size))
        elif self._is_line() and self._answer_of_line() <= REACH * n:
            slope = self._slope()
        else:
            slope = max(self._slope(), *(b / k for k, b in points if REACH * k >= n))
            order = self._order()
            if order > 1:
                found += [(n * times, size * times**order) for times in (2, 4, 8, 16)]
                n, size = found[-1]
                slope = order * size / n
        # One byte too many would cost a slice where the memory is that of a whole number of slices.
        beyond = max(size, size + math.ceil(slope) - self._noise_bytes // 2)
        return (*found, (n + 1, beyond), (2 * n + 1, beyond + math.ceil(slope * n)))

    def _order(self) -> int:
        """Power of n with which the peaks grow: 1, or more if they grow faster than a line."""
        n, size = self._points()[-1]
        m, less = next(((m, a) for m, a in reversed(self._points()) if 2 * m <= n), (n, size))
        if m == n or size * m <= (less + self._noise_bytes) * n:
            return 1
        return math.ceil(math.log(size / less) / math.log(n / m))

    def _answer_of_line(self) -> float:
        n, size = self._points()[-1]
        return n + (self.calls.available_bytes - size) / self._slope()

    def result(self, available_bytes: int, duration_s: float) -> Probe:
        """Result of the probe."""
        calls, points = self.calls, self._curve()
        lost, note = self.retained.lost(points, calls.available_bytes, calls.total_slices)
        points = tuple((n, size + lost) for n, size in points)
        answer = MemoryModel.piecewise(points).max_slices(available_bytes, calls.total_slices)
        if self._is_stopped:
            most = max(self._taken)
            self.notes.append(f"{most} slices were called, more take too long: not proven")
        return Probe(
            points=points,
            kept=tuple((n, size + lost) for n, size in self.retained.kept()),
            persistent_bytes=self.retained.left_bytes,
            rungs=tuple(self.rungs),
            available_bytes=available_bytes,
            total_slices=calls.total_slices,
            answer=answer,
            sure=not (self._is_stopped or self._ran_out),
            duration_s=duration_s,
            notes=(*filter(None, [note]), *self.notes),
            output_dtype=self.bench.output_dtype,
            output_dims=self.bench.output_dims,
        )


def envelope(points: list[tuple[int, int]], noise_bytes: int) -> list[tuple[int, int]]:
    """Points whose lines are an upper bound of the measured function, which never decreases.

    An interval is straight if its slope is that of a neighbour; all of any other costs as much as
    its end.
    """
    slopes = [(b - a) / (n - m) for (m, a), (n, b) in pairwise(points)]
    found = points[:1]
    for i, ((m, _), (n, size)) in enumerate(pairwise(points)):
        beside = slopes[max(0, i - 1) : i] + slopes[i + 1 : i + 2]
        allowed = max(noise_bytes, size // 1000)
        if n > m + 1 and all(abs(slopes[i] - each) * (n - m) > allowed for each in beside):
            found.append((m + 1, size))
        found.append((n, size))
    return found
