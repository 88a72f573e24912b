"""Attempts to run a method, one after another, in a process of their own."""

from __future__ import annotations

import signal
import time

from ..devices.out_of_memory import logs_out_of_memory, out_of_memory_line
from ..errors import EstimatorError
from ..registry.method_meta import MethodMeta
from .bisection_result import Attempt, Outcome
from .trial_process import Died, TimedOut, TrialProcess
from .trial_worker import TrialJob


class TrialRunner:
    """Runs attempts in a worker process, and replaces the worker after a failure that harmed it.

    Leaving the ``with`` block ends the worker.
    """

    def __init__(
        self, meta: MethodMeta, job: TrialJob, limit_s: float, attempts: list[Attempt]
    ) -> None:
        self._meta, self._job, self._attempts = meta, job, attempts
        self._until = time.monotonic() + limit_s
        self._limit_s = limit_s
        self._process: TrialProcess | None = None
        self._has_failed = False
        self.output: tuple[str, tuple[int, int]] | None = None

    def __enter__(self) -> TrialRunner:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._drop()

    def runs(self, n_slices: int, allowed_bytes: int) -> bool | None:
        """Run the method once: True if it ran, False if not, None when the time is up."""
        began = time.monotonic()
        if began >= self._until:
            return None
        outcome, said = self._try(n_slices, allowed_bytes)
        duration_s = time.monotonic() - began
        self._attempts.append(Attempt(n_slices, allowed_bytes, outcome, duration_s, said))
        if outcome in ("crashed", "timed out") and not self._has_run():
            raise EstimatorError(
                f"{self._meta.full_name} {outcome} on {_slices(n_slices)}, the fewest that were "
                f"tried{f': {said}' if said else ''}, so its memory cannot be bisected"
            )
        return None if outcome == "timed out" else outcome == "ran"

    def _drop(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def _has_run(self) -> bool:
        return any(attempt.outcome == "ran" for attempt in self._attempts)

    def _try(self, n_slices: int, allowed_bytes: int) -> tuple[Outcome, str]:
        if self._process is None:
            self._process, self._has_failed = TrialProcess(self._job), False
        try:
            answer = self._process.ask(
                n_slices, allowed_bytes, max(0.0, self._until - time.monotonic())
            )
        except TimedOut:
            self._drop()
            return "timed out", f"no answer within {self._limit_s:.0f} s for all tries"
        except Died as death:
            self._drop()
            return self._ended(death)
        kind, said = answer.kind, answer.text
        self.output = answer.output or self.output
        if kind != "out of memory" and logs_out_of_memory(answer.log):
            kind, said = "out of memory", out_of_memory_line(answer.log)
        had_failed, self._has_failed = self._has_failed, self._has_failed or kind != "ran"
        if kind == "error" or not answer.is_clean:
            self._drop()
        if kind == "error":
            if had_failed:  # an earlier lack of memory may be the cause: try once in a new process
                return self._try(n_slices, allowed_bytes)
            raise EstimatorError(
                f"{self._meta.full_name} cannot be tried: on {_slices(n_slices)} it raised {said}"
            )
        return ("ran" if kind == "ran" else "out of memory"), said

    def _ended(self, death: Died) -> tuple[Outcome, str]:
        """Outcome of a worker process that ended, by its status and log."""
        said = _last_line(death.log)
        if logs_out_of_memory(death.log):
            return "out of memory", out_of_memory_line(death.log)
        if death.status >= 0:
            raise EstimatorError(
                f"{self._meta.full_name}: the process that tried it ended with status "
                f"{death.status}{f': {said}' if said else ''}"
            ) from None
        if -death.status == signal.SIGKILL:
            return "out of memory", "the system killed the process"
        name = signal.Signals(-death.status).name
        return "crashed", f"{name}{f': {said}' if said else ''}"


def _slices(n: int) -> str:
    return f"{n} slice{'s' if n > 1 else ''}"


def _last_line(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1] if lines else ""
