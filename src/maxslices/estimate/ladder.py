"""Choose the slice counts to measure. Pure arithmetic: nothing is run here.

A rung is a number of slices that is measured. Each rung must be predicted to fit, at worst on the
line from the origin through the last point. The ladder ends where extrapolation is safe
(`Trend.is_sure`), where the answer was run, or when time is up.

Constants were set on the made-up memory of `tests/estimate` and on httomolibgpu's methods on an
H200 (2026-11-21, `docs/scripts/httomo_table.py`).
"""

from __future__ import annotations

from itertools import pairwise

from ..model.bisection import last_true
from .envelope import curve
from .probe_pace import LONGEST, OF_SCAN, Paced
from .trend import NEXT_TO

_HIDDEN = 0.01
"""Part of the memory by which a cost not seen yet may exceed the estimate at the answer; above it,
the answer itself is run. 1 % is less than a slice up to 100 slices."""
_SLACK = 1.1
"""A rung one above the answer may take 1.1 times the memory at worst, if the device has it and
probing is not strict."""
_NEAR = 1.25
"""Up to 1.25 times the slices run, the answer is approached in single slices if nothing else is
known to fit."""
_MOST_RUNGS = 64
"""Bound of the number of rungs; doubling reaches a million slices in 21."""
_NEXT = 1.1
"""If too many slices are known within 1.1 times the largest success, probe fewer slices next."""
_STEEPER = 1.25
"""A slope that is 1.25 times the steepest before it is not taken for the last: it may grow on."""
_DEAR = 0.04
"""A call is expensive if it takes 4 % of the time limit, 0.1 s: then every second rung far below
the answer is left out."""
_CLOSE = 0.9
"""If there is room for 0.9 of a slice more, it is tried whether one fits after all."""
_MATTERS = 50
"""One slice more matters below 50 slices, where it is 2 % or more."""
_HARDLY = 0.004
"""Part of the memory by which predictions are off where drivers pad what they allocate."""
_PERIOD = 17
"""Slices below the last that are run one by one to find any that take more, while calls are quick:
one more than the commonest period of steps, 16."""
_FEW = 3
"""The same, where calls are slow and nothing points to teeth: two counts below the last."""
_LINEAR = 3
"""Rungs between a success and a failure that are placed by linear interpolation, before the
interval is halved."""


class Ladder(Paced):
    """Measured rungs, and the choice of the next one.

    Parameters
    ----------
    available_bytes, total_slices, run_bytes, **coarseness
        See `Trend`.
    limit_s, quick_s : float
        Time for all rungs, and time within which an answer is confirmed even if nothing calls
        for it.
    """

    def __init__(
        self,
        available_bytes: int,
        total_slices: int,
        *,
        run_bytes: int,
        limit_s: float,
        quick_s: float,
        **coarseness: int,
    ) -> None:
        super().__init__(
            available_bytes, total_slices, run_bytes=run_bytes, limit_s=limit_s, **coarseness
        )
        self.at_worst_bytes = min(run_bytes, int(available_bytes * _SLACK))
        self.quick_s = quick_s
        self.tries_more = True
        """Whether one slice more is run even if it is likely not to fit."""
        self.is_slow = False
        """Whether every call is long, so that few rungs are run and the answer should be one of
        them."""
        self._expected = 0
        self.ran_out = False
        """True if memory ran out, so that the bytes of the failed rung are unknown."""
        self._n_between = self._left_bytes = 0

    def add(self, n_slices: int, n_bytes: int, duration_s: float) -> None:
        """Enter a measured rung; one that takes too much bounds later rungs from above."""
        if n_slices == self._expected:
            self.forget(n_slices)
        if self.enter(n_slices, n_bytes):
            self._durations_s[n_slices] = duration_s

    def expect(self, n_slices: int, n_bytes: int) -> None:
        """Enter a preliminary point, by which the first rungs are judged; `add` replaces it."""
        self.add(n_slices, n_bytes, 0.0)
        self._expected = n_slices

    def failed(self, n_slices: int) -> None:
        """Enter a rung with which memory ran out."""
        self.ran_out = True
        self.add(n_slices, self.available_bytes + self._left_bytes + 1, 0.0)

    def leave(self, n_bytes: int) -> None:
        """Take `n_bytes` off the available memory, for others to use."""
        self._left_bytes += n_bytes
        self.available_bytes -= n_bytes
        self.run_bytes -= n_bytes
        self.at_worst_bytes -= n_bytes

    def next_rung(self, elapsed_s: float) -> int | None:
        """Number of slices to measure next; None when the ladder ends."""
        if len(self._points) >= _MOST_RUNGS:
            return None
        if self.is_uneven():
            rung = self._among_teeth(elapsed_s)
        else:
            rung = self._upwards(elapsed_s)
            if rung is None and not self.stopped_by_time:
                rung = self._beside(elapsed_s)
        if rung is None and not self.stopped_by_time:
            rung = self._below(elapsed_s) or self._near_miss(elapsed_s)
        return rung

    def _upwards(self, elapsed_s: float) -> int | None:
        """Next rung between the last one and the most slices that may fit."""
        n, _ = self.last
        if n >= self.top:
            return None
        fits = self._most_that_fits()
        if self.above is not None:
            if self.top <= n * (1 + NEXT_TO):
                return None
            fewer = self._fewer() if self.top <= n * _NEXT else []
            if len(fewer) == 2:  # cheaper than more slices, and may settle the answer
                return self._in_time(fewer[-1], elapsed_s)
            return self._in_time(self._between(fits), elapsed_s)
        steps = self.steps()
        parting = steps.parting(self.run_bytes, n, self.top) if steps else None
        if (
            parting is not None
            and parting <= fits
            and self._ends_s(parting, elapsed_s) <= (self._allowed_s())
        ):
            return parting
        if self.is_sure():
            return self._confirming(fits, elapsed_s)
        rung = min(_after(n), fits)
        if rung <= n or (n >= 64 and rung <= n * (1 + NEXT_TO)):
            return None
        if self.is_exact():  # smaller rungs would only repeat the line
            quarter = min(16 * -(-self.answer() // 64) + 1, fits)
            if quarter > rung and self._ends_s(quarter, elapsed_s) <= self._allowed_s():
                return quarter
        if n >= 33 and self._durations_s[n] > _DEAR * self.limit_s and 8 * n <= self.answer():
            rung = min(_after(rung), fits)
        return self._in_time(self._shorter(rung, elapsed_s), elapsed_s)

    def _between(self, fits: int) -> int:
        """Slices between the largest success and the smallest failure."""
        (n, size), (above, above_bytes) = self.last, self.above or (self.top + 1, 0)
        middle = (n + above) // 2
        self._n_between += 1
        if self.ran_out:  # so no line can be drawn to the failure
            if self._n_between == 1 and self.established():
                return above - 1  # fragmentation, which is little
            return max(n + 1, min(fits, middle))
        if self._n_between > _LINEAR or above_bytes <= self.available_bytes:
            return middle
        straight = n + int((self.available_bytes - size) / (above_bytes - size) * (above - n))
        return min(max(straight, n + 1), above - 1)

    def _confirming(self, fits: int, elapsed_s: float) -> int | None:
        """Largest rung that fits, if it is quick or may reveal a hidden cost.

        The few rungs of long calls reveal neither teeth nor steps. After them the answer is run as
        well, if that takes no longer than all of them took.
        """
        if fits <= self.last[0] * (1 + NEXT_TO):
            return None
        ends_s = self._ends_s(fits, elapsed_s)
        if self.is_slow and ends_s <= min(2 * elapsed_s, self._allowed_s()):
            return self._near_miss(elapsed_s) or fits
        wanted = self.hidden_bytes() > _HIDDEN * self.available_bytes
        return fits if ends_s <= (self.limit_s if wanted else self.quick_s) else None

    def _beside(self, elapsed_s: float) -> int | None:
        """Neighbour of the last rung to run, where the answer is next to it.

        One slice more may fit where memory grows in steps; one or two fewer may take more.
        """
        n, size = self.last
        straight = self.established() and self.passed_step_bytes() == 0
        hidden = self.upper_bytes(self.answer()) > self.run_bytes
        close = self.available_bytes - size >= _CLOSE * min(self.slopes()[-2:], default=0.0)
        if (straight and not hidden and not close) or self._ends_s(n + 1, elapsed_s) > self.limit_s:
            return None
        likely_bytes = size + self.floor_bytes if self.tries_more else self.likely_bytes(n + 1)
        if n < self.top and likely_bytes <= self.run_bytes:
            lifted = self.lifted()
            rises = [(b - a) / (k - m) for (m, a), (k, b) in pairwise(lifted[-4:])]
            more = lifted[-1][1] + max(self.slopes() or rises, default=self.floor_bytes)
            near = self.answer() <= n * _NEAR + 1
            return n + 1 if near and more <= self.at_worst_bytes else None
        return next(iter(self._fewer()), None)

    def _fewer(self) -> list[int]:
        """The two slice counts below the last that were not run; empty if memory is a line."""
        n, tried = self.last[0], {k for k, _ in self._points}
        if self.established() and self.passed_step_bytes() == 0:
            return []
        return [k for k in (n - 1, n - 2) if k > 0 and k not in tried]

    def _below(self, elapsed_s: float) -> int | None:
        """Slice count below the last that may take more, while such calls are quick."""
        if self.is_straight() or self.steps() is not None:
            return None
        n, run = self._points[-1][0], {k for k, _ in self._points}
        if self.above is None and not self.is_uneven() and self.answer() > n * (1 + NEXT_TO) + 1:
            return None  # the last is not the answer
        ends_s, times = self._ends_s(n, elapsed_s), _FEW
        if ends_s <= self.quick_s:
            times = _PERIOD
        elif self.is_uneven():
            times = _PERIOD // 2
        elif self.is_convex():
            return None
        if ends_s > self.limit_s:
            return None
        return next((k for k in range(n - 1, max(n - times, 0), -1) if k not in run), None)

    def _near_miss(self, elapsed_s: float) -> int | None:
        """One slice more than the answer, if one slice matters and may fit."""
        rung = self.answer() + 1
        if not (self.is_rough and self.last[0] + 1 < rung <= min(self.top, _MATTERS)):
            return None
        most = min(self.run_bytes * (1 + _HARDLY * self.tries_more), self.at_worst_bytes)
        if self.likely_bytes(rung) > most:
            return None
        allowed_s = max(self.limit_s, min(OF_SCAN * self._scan_s(), 2 * LONGEST * self.limit_s))
        return rung if self._ends_s(rung, elapsed_s) <= allowed_s else None

    def _among_teeth(self, elapsed_s: float) -> int | None:
        """Next rung where memory rises and falls: the fewest slices that may take too much."""
        last, top = self._points[-1][0], self.top
        for (m, a), (n, b) in pairwise(self._points):
            if b < a and n > m + 1 and self._durations_s[n] <= _DEAR * self.limit_s:
                return (m + n) // 2
        rung = min(self.crossing(), _after(last))
        if rung > last:
            return self._in_time(self._shorter(rung, elapsed_s), elapsed_s)
        safe = self.safe()
        if safe < last:
            return self._in_time(safe + 1, elapsed_s)
        if top <= last * (1 + NEXT_TO):
            return None
        size, slope = self._points[-1][1], max([*self.slopes()[-1:], self.floor_bytes])
        rises = [b - a for (m, a), (n, b) in pairwise(self._points) if n == m + 1 > last / 2]
        more = min(self.tooth_bytes(last + 1), size + max(rises, default=size))
        if size + slope > self.run_bytes or more > self.at_worst_bytes:
            return None
        return self._in_time(last + 1, elapsed_s)

    def curve(self) -> tuple[tuple[int, int], ...]:
        """Points whose lines, between them and beyond, are an upper bound of the memory."""
        if self.has_points and self.is_uneven():
            return self.uneven_curve(further=self.stopped_by_time)
        return curve(self)

    def may_run(self, n_slices: int) -> bool:
        """True if a rung is predicted to fit.

        Either by the line from the origin; or, up to twice the last slices, if memory went on from
        the last point four times as steeply as anything measured (twice, for one slice more).
        """
        if not self._points:
            return False
        n, size = self.last
        upper_bytes = self.upper_bytes(n_slices)
        if upper_bytes <= self.run_bytes or self._is_near(n_slices, upper_bytes):
            return True
        if n_slices > max(2 * n, n + 2) or self.order() > 1:
            return False
        steepest = max([self.floor_bytes, *self.slopes()])
        if len(self._points) == 1:  # input and output, and twice as much for temporaries
            steepest = 4 * self.floor_bytes
        times = 2 if n_slices == n + 1 else 4
        return size + times * steepest * (n_slices - n) + self.step_bytes() <= self.run_bytes

    def _is_near(self, n_slices: int, upper_bytes: int) -> bool:
        """True if slices are likely to fit, and at worst exceed the memory by a tenth."""
        *before, slope = self.slopes()[-3:] or [0.0]
        if upper_bytes > self.at_worst_bytes or n_slices > 2 * self.last[0]:
            return False
        if len(before) < 2 or slope > _STEEPER * max(before):
            return False
        return self.likely_bytes(n_slices) <= self.run_bytes

    def _most_that_fits(self) -> int:
        return last_true(self.may_run, self.last[0], self.top + 1)


def _after(n: int) -> int:
    """The rung after n: 1, 2, 3, 5, 8, 16, 33, 64, 129, 256, 513...

    From 16 on, rungs are in turn a multiple of 16 and one more, which tells steps from slopes:
    memory that is rounded up to 2, 4, 8 or 16 slices is lowest at the one and highest at the other.
    """
    for rung in (1, 2, 3, 5, 8):
        if rung > 1.2 * n:
            return rung
    power = 4
    while (rung := 2**power + (power % 2)) <= 1.4 * n:
        power += 1
    return rung
