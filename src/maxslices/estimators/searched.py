"""The slices that fit, by trying: for memory that no meter sees.

A C library may allocate where neither CuPy's pool nor tracemalloc looks. What is left is to
run the method until it fails: twice as many slices each time, then bisection. Tries are made in
another process: a crash, or a CUDA error that stays, ends that one.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..backends import Backend
from ..backends.out_of_memory import logs_out_of_memory
from ..errors import EstimatorError
from ..memory import UNREACHABLE_BYTES, MemoryModel
from ..method import MethodMeta
from ..units import format_bytes
from .trial_process import Died, Errand, TimedOut, TrialProcess, reference_to

Outcome = Literal["ran", "out of memory", "crashed", "timed out"]
LIMIT_S = 120.0
"""Time for all tries together."""
FINENESS = 128
"""The answer is settled when what ran and what did not differ by this part of it, or by 1."""
MARGIN = 0.01
"""Part of the available memory that is left free while it is tried."""
LEAST_MARGIN_BYTES = {"cpu": 2**20, "cuda": 64 * 2**20}
"""The least that is left free: a library's own small allocations are not always the same."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of the method."""

    n_slices: int
    """Slices that it was given."""
    outcome: Outcome
    """What came of it."""
    duration_s: float
    """Duration, the start of a process included where one was started."""
    said: str = ""
    """What the method or the library said when it failed."""


@dataclass(frozen=True, slots=True)
class Search:
    """What was found by trying."""

    n_slices: int
    """Most slices that ran; 0 if not even one did."""
    fails_at: int | None
    """Fewest slices that did not run; None if all that there are did."""
    available_bytes: int
    """Memory for which the answer was sought."""
    margin_bytes: int
    """Part of it that was kept free in every try."""
    attempts: tuple[Attempt, ...]
    """What was tried, in order."""
    is_settled: bool
    """Whether it ended by itself, and not because the time was up."""

    @property
    def duration_s(self) -> float:
        """Return the time that all tries took."""
        return sum(attempt.duration_s for attempt in self.attempts)

    def model(self) -> MemoryModel:
        """Return a memory model: what ran takes all that there was, and more does not fit.

        It is right for no other amount of memory, and never says less than the method takes.
        """
        return MemoryModel(
            lambda n: self.available_bytes if n <= self.n_slices else UNREACHABLE_BYTES
        )

    def __str__(self) -> str:
        tried = ", ".join(f"{a.n_slices} {a.outcome}" for a in self.attempts)
        end = "" if self.is_settled else "; the time was up"
        return (
            f"{self.n_slices} slices in {format_bytes(self.available_bytes)} less a margin of "
            f"{format_bytes(self.margin_bytes)} (tried: {tried}{end})"
        )


def search(
    meta: MethodMeta,
    slice_dim: int,
    other_dims: tuple[int, int],
    dtype: np.dtype[Any],
    backend: Backend,
    parameters: Mapping[str, Any],
    *,
    available_bytes: int,
    total_slices: int,
    limit_s: float = LIMIT_S,
) -> Search:
    """Find how many slices a method can be given, by running it until it fails.

    Parameters
    ----------
    meta : MethodMeta
        The method; another process must be able to import it.
    slice_dim : int
        Axis along which the data are cut.
    other_dims : (int, int)
        The two dims that remain, in array order.
    dtype : dtype-like
        Input dtype.
    backend : Backend
        The device; the other process uses the same. On a GPU the memory beyond
        `available_bytes` is taken while it is tried, on the CPU the process's address space
        is limited.
    parameters : mapping
        The user's parameters.
    available_bytes : int
        Memory that the method may take, input and output included.
    total_slices : int
        Slices that there are: no more are tried.
    limit_s : float
        Time for all tries together, in seconds. When it is up, the answer is what ran.

    Returns
    -------
    Search

    Raises
    ------
    EstimatorError
        If the method fails for another reason than a lack of memory, crashes or takes too
        long on a single slice, or another process cannot import it.
    """
    margin = max(math.ceil(available_bytes * MARGIN), LEAST_MARGIN_BYTES[backend.kind])
    errand = Errand(
        method=reference_to(meta),
        slice_dim=slice_dim,
        other_dims=(int(other_dims[0]), int(other_dims[1])),
        dtype=np.dtype(dtype).str,
        device=backend.name,
        parameters=dict(parameters),
        allowed_bytes=max(0, available_bytes - margin),
    )
    attempts: list[Attempt] = []
    with _Trials(meta, errand, limit_s, attempts) as trials:
        runs, fails_at, is_settled = _search(trials.runs, total_slices)
    return Search(runs, fails_at, available_bytes, margin, tuple(attempts), is_settled)


def _search(runs: Callable[[int], bool | None], total: int) -> tuple[int, int | None, bool]:
    """Return what runs, what does not, and whether that is settled.

    Parameters
    ----------
    runs : callable
        Tells whether a number of slices runs; None when the time is up.
    total : int
        The most that are asked for.
    """
    good, bad = 0, None
    while good < total and (bad is None or bad - good > max(1, good // FINENESS)):
        n = min(total, max(1, 2 * good)) if bad is None else (good + bad) // 2
        answer = runs(n)
        if answer is None:
            return good, bad, False
        good, bad = (n, bad) if answer else (good, n)
    return good, bad, True


class _Trials:
    """Makes tries, with a new process after one that did harm; closing it ends the process."""

    def __init__(
        self, meta: MethodMeta, errand: Errand, limit_s: float, attempts: list[Attempt]
    ) -> None:
        self._meta, self._errand, self._attempts = meta, errand, attempts
        self._until = time.monotonic() + limit_s
        self._limit_s = limit_s
        self._process: TrialProcess | None = None

    def __enter__(self) -> _Trials:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._drop()

    def runs(self, n_slices: int) -> bool | None:
        """Tell whether the method runs on so many slices; None when the time is up."""
        began = time.monotonic()
        if began >= self._until:
            return None
        outcome, said = self._try(n_slices)
        duration_s = time.monotonic() - began
        self._attempts.append(Attempt(n_slices, outcome, duration_s, said))
        if outcome != "ran" and not (outcome == "out of memory" and self._is_clean()):
            self._drop()
        if outcome in ("crashed", "timed out") and not self._has_run():
            raise EstimatorError(
                f"{self._meta.full_name} {outcome} on {_slices(n_slices)}, the fewest that were "
                f"tried{f': {said}' if said else ''}, so its memory cannot be searched for"
            )
        return None if outcome == "timed out" else outcome == "ran"

    def _drop(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def _is_clean(self) -> bool:
        """Tell whether the process can go on: a GPU's libraries may not, or hold memory."""
        return self._errand.device == "cpu" and self._process is not None and self._process.is_alive

    def _has_run(self) -> bool:
        return any(attempt.outcome == "ran" for attempt in self._attempts)

    def _try(self, n_slices: int) -> tuple[Outcome, str]:
        if self._process is None:
            self._process = TrialProcess(self._errand)
        try:
            answer = self._process.ask(n_slices, self._until - time.monotonic())
        except TimedOut:
            return "timed out", f"no answer within {self._limit_s:.0f} s for all tries"
        except Died as death:
            said = _last_line(death.log)
            if logs_out_of_memory(death.log):
                return "out of memory", said
            if death.status >= 0:
                raise EstimatorError(
                    f"{self._meta.full_name}: the process that tried it ended with status "
                    f"{death.status}{f': {said}' if said else ''}"
                ) from None
            if -death.status == signal.SIGKILL:
                return "out of memory", "the system killed the process"
            name = signal.Signals(-death.status).name
            return "crashed", f"{name}{f': {said}' if said else ''}"
        if logs_out_of_memory(answer.log):
            return "out of memory", _last_line(answer.log)
        if answer.kind == "error":
            raise EstimatorError(
                f"{self._meta.full_name} cannot be tried: on {_slices(n_slices)} it raised "
                f"{answer.text}"
            )
        return ("ran" if answer.kind == "ran" else "out of memory"), answer.text


def _slices(n: int) -> str:
    return f"{n} slice{'s' if n > 1 else ''}"


def _last_line(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1] if lines else ""
