"""Durations of rungs: how long the next one takes, and whether there is time for it."""

from __future__ import annotations

from .uneven import Uneven

LONGEST = 5.0
"""A probe may take up to 5 times its limit if that is little beside the time of the scan: 12.5 s in
place of 2.5."""
OF_SCAN = 0.05
"""A twentieth of the time of the whole scan is little beside it."""


class Paced(Uneven):
    """`Uneven` with the duration of each rung.

    Parameters
    ----------
    available_bytes, total_slices, run_bytes, **coarseness
        See `Trend`.
    limit_s : float
        Time for all rungs.
    """

    def __init__(
        self,
        available_bytes: int,
        total_slices: int,
        *,
        run_bytes: int,
        limit_s: float,
        **coarseness: int,
    ) -> None:
        super().__init__(available_bytes, total_slices, run_bytes=run_bytes, **coarseness)
        self.limit_s = limit_s
        self.stopped_by_time = False
        """True once there was no time for a rung that was wanted."""
        self._durations_s: dict[int, float] = {}

    def _shorter(self, rung: int, elapsed_s: float) -> int:
        """The rung, or one below it for which there is time; no less than 1.3 times the last."""
        n, less = self._points[-1][0], rung
        while less > 1.3 * n and self._ends_s(less, elapsed_s) > self._allowed_s():
            less -= max(1, less // 8)
        return less if less > 1.3 * n else rung

    def _in_time(self, rung: int, elapsed_s: float) -> int | None:
        if self._ends_s(rung, elapsed_s) <= self._allowed_s():
            return rung
        self.stopped_by_time = True
        return None

    def _allowed_s(self) -> float:
        """Time limit of the probe; more where the scan takes far longer."""
        return max(self.limit_s, min(OF_SCAN * self._scan_s(), LONGEST * self.limit_s))

    def _scan_s(self) -> float:
        """Time that all slices of the scan take, without the fixed time of calls."""
        n, first = self.last[0], self._points[0][0]
        if n == first:
            return 0.0
        per_slice_s = max(0.0, (self._durations_s[n] - self._durations_s[first]) / (n - first))
        return per_slice_s * self.total_slices

    def _ends_s(self, rung: int, elapsed_s: float) -> float:
        """Seconds since the start of the probe at which a rung that begins now has ended, at most.

        A rung takes as long per slice as the last one did; less where the rungs show that most of
        the time does not depend on the slices.
        """
        n, first = self.last[0], self._points[0][0]
        last_s = self._durations_s[n]
        if rung < n:
            return elapsed_s + last_s
        if len(self._points) < 3:
            return elapsed_s + last_s * rung / n
        per_slice_s = max(0.0, (last_s - self._durations_s[first]) / (n - first))
        return elapsed_s + min(last_s * rung / n, 1.2 * last_s + 2 * per_slice_s * (rung - n))
