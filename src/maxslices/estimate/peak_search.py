"""Find a method's memory from its peaks alone, where its allocations do not tell it.

The slices are about doubled until no more fit, and then bisected. The model is an upper envelope of
the peaks (`measured_peaks`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..measure.cupy_pool import GRAIN_BYTES
from ..model.bisection import last_true
from ..model.memory_model import MemoryModel
from ..model.peak_model import PERIOD
from .bench import CUSHION_BYTES, NOISE_BYTES, Rung
from .data_kinds import with_other_data
from .measured_peaks import MeasuredPeaks
from .method_calls import LIMIT_S, REACH, MethodCalls
from .probe_result import Probe
from .retained_memory import RetainedMemory
from .sequence_probe import LONG_S, PROOF_S, TRUSTED

OF_SCAN, LONGEST_S = 0.08, 40.0
"""Part of the whole scan's time, up to 40 s, that a search may take. Where calls take 0.2 s, 165 of
177 recorded peaks are answered to 98 % with a twelfth, and 156 with a twentieth."""

_LONG_TIMES = 3.2
"""So many times its limit, 8 s, may a search take where every call is long."""


class PeakSearch:
    """Calls a method with more and more slices.

    Parameters
    ----------
    calls : MethodCalls
        The method.
    retained : RetainedMemory
        Memory that calls leave.
    """

    def __init__(self, calls: MethodCalls, retained: RetainedMemory) -> None:
        self.calls, self.bench, self.retained, self.limit_s = calls, calls.bench, retained, LIMIT_S
        self.rungs: list[Rung] = []
        self.notes: list[str] = []
        self._taken: dict[int, int] = {}
        self._too_many = calls.total_slices + 1
        self._is_stopped = self._ran_out = self._is_refused = False
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
        while (peaks := self._peaks()).points:
            n = self._next(peaks)
            if n is None:
                break
            self._call(n, peaks)

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

    def _call(self, n: int, peaks: MeasuredPeaks) -> None:
        rung = self.calls.measured(n, self.bench.run)
        if rung is None and (self.retained.leaks or self.retained.accumulates):
            self._is_stopped = True  # what other calls left may be why
        elif rung is None:
            if peaks.likely_bytes(n) <= self.calls.available_bytes:
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
        self.rungs.append(rung)
        self.retained.enter(rung, before_bytes)
        alive_before = max(0, before_bytes - rung.freed_bytes)
        taken = rung.n_bytes + alive_before + CUSHION_BYTES[self.calls.backend.kind]
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
            highest = max(highest, size + doubtful[n] + self.bench.stays_bytes)
            found.append((n, highest))
        return found

    def _peaks(self) -> MeasuredPeaks:
        """Those that fit."""
        points = [point for point in self._all_points() if point[0] < self._too_many]
        return MeasuredPeaks(
            tuple(points),
            self.calls.available_bytes,
            self.calls.total_slices,
            self._noise_bytes,
            self.bench.samples.nbytes(1),
        )

    def _above(self) -> tuple[int, int] | None:
        """Fewest slices that did not fit, with their bytes as far as these are known."""
        if self._too_many > self.calls.total_slices:
            return None
        seen = dict(self._all_points()).get(self._too_many, 0)
        return self._too_many, max(seen, self.calls.available_bytes + 1)

    def _next(self, peaks: MeasuredPeaks) -> int | None:
        """Slices of the next call; None if the answer is known, or time is up."""
        n, _ = peaks.points[-1]
        if self._is_stopped:
            return None
        wanted = self._wanted(peaks) if n < self._too_many - 1 else n
        return self._in_time(n, wanted) if wanted > n else self._fewer(n, peaks.is_line)

    def _wanted(self, peaks: MeasuredPeaks) -> int:
        """As many slices as may fit, at most about twice as many as before; n if no more do."""
        (n, size), top = peaks.points[-1], self._too_many - 1
        room = self.calls.run_bytes - size
        likely = n + int(room / peaks.slope)
        if self._too_many <= self.calls.total_slices:  # between what fits and what does not
            self._n_halved += 1
            likely = top if self._n_halved == 1 and peaks.is_line else (n + top + 1) // 2
        elif peaks.is_line:
            likely = min(likely, REACH * n)
        elif peaks.fell:
            likely = n + 1
        else:
            if likely <= n:  # one more may be of the same step
                likely = n + max(int(room * n / size), int(room >= peaks.input_bytes))
            likely = min(likely, 2 * n + (n % 2 == 0))
        wanted = min(likely, top)
        if wanted <= n:
            return n
        may_run = last_true(
            lambda k: self.calls.may_take(self.calls.worst_bytes(k, peaks.points)), n, wanted + 1
        )
        self._is_refused = may_run == n
        return may_run

    def _in_time(self, n: int, wanted: int) -> int | None:
        """As many of the wanted slices as there is time for."""
        affordable = self.calls.in_time(n, wanted, self._left_s())
        self._is_stopped = affordable < wanted
        return affordable if affordable > n else None

    def _left_s(self) -> float:
        scan_s = self.calls.duration_s(self.calls.total_slices)
        allowed_s = max(self.limit_s, min(OF_SCAN * scan_s, LONGEST_S))
        return allowed_s - (time.perf_counter() - self._began_s)

    def _fewer(self, n: int, is_line: bool) -> int | None:
        """Slices below the last that may take more, where memory is no line."""
        if is_line:
            return None
        time_s = self.calls.duration_s(n)
        near = PERIOD if time_s * PERIOD <= PROOF_S else TRUSTED
        has_time = time_s <= max(PROOF_S, self._left_s())
        fewer = range(n - 1, max(0, n - near), -1) if has_time else ()
        return next((k for k in fewer if k not in self._taken), None)

    def result(self, available_bytes: int, duration_s: float) -> Probe:
        """Result of the probe."""
        calls, peaks = self.calls, self._peaks()
        # Even the fewest slices may not fit, or not run with the data that take most.
        points = self._all_points()[:1] or [(1, calls.available_bytes + 1)]
        if peaks.points:
            too_many = [point for point in self._all_points() if point[0] >= self._too_many]
            points = sorted([*peaks.curve(self._above()), *too_many])  # a model takes the highest
        lost, note = self.retained.lost(points, calls.available_bytes, calls.total_slices)
        points = [(n, size + lost) for n, size in points]
        answer = MemoryModel.piecewise(points).max_slices(available_bytes, calls.total_slices)
        most = max(self._taken, default=0)
        if self._is_stopped:
            self.notes.append(f"{most} slices were called, more take too long: not proven")
        if answer > most and self._is_refused:
            self.notes.append(f"{most} slices were called, more might take too much: not proven")
        is_proven = answer <= most or (peaks.is_known_line and not self._is_refused)
        return Probe(
            points=tuple(points),
            kept=tuple((n, size + lost) for n, size in self.retained.kept()),
            persistent_bytes=self.retained.left_bytes,
            rungs=tuple(self.rungs),
            available_bytes=available_bytes,
            total_slices=calls.total_slices,
            answer=answer,
            sure=is_proven and not (self._is_stopped or self._ran_out),
            duration_s=duration_s,
            notes=(*filter(None, [note]), *self.notes),
            output_dtype=self.bench.output_dtype,
            output_dims=self.bench.output_dims,
        )
