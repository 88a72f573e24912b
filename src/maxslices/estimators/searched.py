"""The slices that fit, by trying: for memory that no meter sees.

A C library may allocate where neither CuPy's pool nor tracemalloc looks. What is left is to
run the method until it fails: twice as many slices each time, then bisection; and then with
less memory, so that there is a model to plan with. Tries are made in another process: a crash,
or a CUDA error that stays, ends that one.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..arrays import ArraySpec
from ..backends import Backend
from ..backends.out_of_memory import logs_out_of_memory, out_of_memory_line
from ..errors import EstimatorError
from ..memory import UNREACHABLE_BYTES, MemoryModel
from ..method import MethodMeta
from ..units import format_bytes
from .asked import Question
from .trial_process import Died, Errand, TimedOut, TrialProcess, reference_to

Outcome = Literal["ran", "out of memory", "crashed", "timed out"]
Runs = Callable[[int, int], bool | None]
LIMIT_S = 120.0
"""Time for all tries together."""
FINENESS = 128
"""The answer is settled when what ran and what did not differ by this part of it, or by 1."""
MARGIN = 1 / 200
"""Part of the available memory that is left free while it is tried."""
LEAST_MARGIN_BYTES = {"cpu": 2**20, "cuda": 8 * 2**20}
"""The least that is left free: a library's own small allocations are not always the same."""
_CHECKS = 3
"""Points between two others at which it is tried whether a line goes through."""
_SOUGHT = 4
"""Points that are sought where it does not."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of the method."""

    n_slices: int
    """Slices that it was given."""
    allowed_bytes: int
    """Memory that it had, beside what the process had loaded."""
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
    points: tuple[tuple[int, int], ...]
    """(slices, bytes) that ran, margin included, by slices; the last is the answer."""
    rough: tuple[tuple[int, int], ...]
    """Pairs of neighbouring points between which a line was not tried: slices between them cost
    what the higher point does."""
    slack_bytes: int
    """Added between points: as much as a line was ever found too low."""
    attempts: tuple[Attempt, ...]
    """What was tried, in order."""
    is_settled: bool
    """Whether it ended by itself, and not because the time was up."""
    output_dtype: str | None = None
    """Dtype of the method's result; None where it returned no array."""
    output_dims: tuple[int, int] | None = None
    """The result's other two dims, likewise."""

    @property
    def duration_s(self) -> float:
        """Return the time that all tries took."""
        return sum(attempt.duration_s for attempt in self.attempts)

    def model(self) -> MemoryModel:
        """Return a memory model: through what ran; more than the most that ran does not fit."""
        if not self.points:
            return MemoryModel(lambda n: UNREACHABLE_BYTES)
        line, sizes = MemoryModel.piecewise(self.points), dict(self.points)

        def bytes_at(n: int) -> int:
            if n > self.n_slices:
                return UNREACHABLE_BYTES
            above = next(k for k, _ in self.points if k >= n)
            if any(high == above for _, high in self.rough):
                return sizes[above]
            return min(line.bytes(n) + self.slack_bytes, sizes[above])

        return MemoryModel(bytes_at)

    def __str__(self) -> str:
        allowed = self.available_bytes - self.margin_bytes
        asked = [a for a in self.attempts if a.allowed_bytes == allowed]
        tried = ", ".join(f"{a.n_slices} {a.outcome}" for a in asked)
        others = len(self.attempts) - len(asked)
        less = f"; {others} tries with less memory" if others else ""
        end = "" if self.is_settled else "; the time was up"
        return (
            f"{self.n_slices} slices in {format_bytes(self.available_bytes)} less a margin of "
            f"{format_bytes(self.margin_bytes)} (tried in {self.duration_s:.2g} s: "
            f"{tried}{less}{end})"
        )


def search(
    asked: Question,
    backend: Backend,
    *,
    available_bytes: int,
    side: Mapping[str, ArraySpec] | None = None,
    limit_s: float = LIMIT_S,
) -> Search:
    """Find how many slices a method can be given, by running it until it fails.

    Parameters
    ----------
    asked : Question
        The method with its parameters and data; another process must be able to import it.
        No more slices are tried than there are.
    backend : Backend
        The device; the other process uses the same. On a GPU all but the memory allowed is
        taken while it is tried, on the CPU the process's address space is limited.
    available_bytes : int
        Memory that the method may take, input and output included.
    side : mapping, optional
        Flats and darks as `ArraySpec`; not counted.
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

    Notes
    -----
    After the answer for the memory available, less and less of it is tried with one slice, and
    with some numbers of slices between: 2^k + 1, which shows what is rounded up to a power
    of two or to 16.
    """
    margin = max(math.ceil(available_bytes * MARGIN), LEAST_MARGIN_BYTES[backend.kind])
    errand = Errand(
        method=reference_to(asked.meta),
        slice_dim=asked.slice_dim,
        other_dims=(int(asked.other_dims[0]), int(asked.other_dims[1])),
        dtype=np.dtype(asked.dtype).str,
        device=backend.name,
        parameters=dict(asked.parameters),
        side=dict(side or {}),
    )
    allowed = max(0, available_bytes - margin)
    total = asked.total_slices
    if asked.meta.looks_at is not None:
        total = min(total, len(asked.meta.looked_at(total, **asked.parameters)))
    attempts: list[Attempt] = []
    with _Trials(asked.meta, errand, limit_s, attempts) as trials:
        n, fails_at, is_settled = _search(lambda k: trials.runs(k, allowed), total)
        points: dict[int, int] = {}
        rough: list[tuple[int, int]] = []
        slack = 0
        if n:
            step = max(LEAST_MARGIN_BYTES[backend.kind] // 2, allowed // 1000)
            points, rough, slack = _points(trials.runs, n, allowed, step, fails_at is None)
    output_dtype, output_dims = trials.output or (None, None)
    return Search(
        n,
        fails_at,
        available_bytes,
        margin,
        tuple((k, points[k] + margin) for k in sorted(points)),
        tuple(rough),
        slack,
        tuple(attempts),
        is_settled,
        output_dtype,
        output_dims,
    )


def _points(
    runs: Runs, most: int, allowed_bytes: int, step_bytes: int, is_loose: bool
) -> tuple[dict[int, int], list[tuple[int, int]], int]:
    """Return memory with which some numbers of slices ran, and how it goes between them.

    That is: neighbours between which no line was tried, and how much too low lines were.

    Parameters
    ----------
    runs : callable
        Tells whether a number of slices runs in so many bytes; None when the time is up.
    most : int
        Slices that ran with all that is allowed.
    allowed_bytes : int
        That.
    step_bytes : int
        How finely memory is sought.
    is_loose : bool
        Whether more slices might have run with it, so that they need less perhaps.
    """
    top = _least(runs, most, 0, allowed_bytes, step_bytes) if is_loose else allowed_bytes
    points = {most: top}
    if most == 1:
        return points, [], 0
    points[1] = _least(runs, 1, 0, top, step_bytes)
    rough: list[tuple[int, int]] = []
    pending, n_sought, slack = [(1, most)], 0, 0
    while pending:
        low, high = pending.pop()
        line = MemoryModel.piecewise([(low, points[low]), (high, points[high])])
        above = high
        for n in _between(low, high):
            expected, limit = line.bytes(n), points[above]
            raised = min(expected + expected // FINENESS, limit)
            answer = runs(n, expected) if expected < limit else True
            if answer is False and (answer := raised == limit or runs(n, raised)):
                slack, expected = max(slack, raised - expected), raised
            if answer:
                points[n], above = min(expected, limit), n
                continue
            if answer is None or n_sought == _SOUGHT:
                rough.append((low, above))
                break
            n_sought += 1
            points[n] = _least(runs, n, raised, limit, step_bytes)
            slack = max(slack, points[n] - line.bytes(n))
            pending += [(low, n), (n, above)]
            break
    return points, rough, slack


def _between(low: int, high: int) -> list[int]:
    """Return slice counts at which a line is tried, downward.

    Such as are one more than a round number, where what is rounded up to one is highest.
    """
    powers = [2**k + 1 for k in range(1, high.bit_length()) if low < 2**k + 1 < high]
    if powers:
        last = (high - 2) // 16 * 16 + 1
        powers += [last] if last > powers[-1] else []
        return powers[: -_CHECKS - 1 : -1]
    for step in (2**k for k in range(high.bit_length(), -1, -1)):
        rounded = (high - 2) // step * step
        if rounded >= low:
            return [rounded + 1]
    return []


def _least(runs: Runs, n: int, low: int, high: int, step_bytes: int) -> int:
    """Return memory with which n slices run, close to the least, from what did not and did."""
    while high - low > max(step_bytes, high // FINENESS):
        middle = (low + high) // 2
        answer = runs(n, middle)
        if answer is None:
            break
        low, high = (low, middle) if answer else (middle, high)
    return high


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
        self._has_failed = False
        self.output: tuple[str, tuple[int, int]] | None = None

    def __enter__(self) -> _Trials:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._drop()

    def runs(self, n_slices: int, allowed_bytes: int) -> bool | None:
        """Tell whether the method runs on so many slices in so many bytes.

        None when the time is up.
        """
        began = time.monotonic()
        if began >= self._until:
            return None
        outcome, said = self._try(n_slices, allowed_bytes)
        duration_s = time.monotonic() - began
        self._attempts.append(Attempt(n_slices, allowed_bytes, outcome, duration_s, said))
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

    def _has_run(self) -> bool:
        return any(attempt.outcome == "ran" for attempt in self._attempts)

    def _try(self, n_slices: int, allowed_bytes: int) -> tuple[Outcome, str]:
        if self._process is None:
            self._process, self._has_failed = TrialProcess(self._errand), False
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
            if had_failed:  # what ran out of memory before may be what it suffers from
                return self._try(n_slices, allowed_bytes)
            raise EstimatorError(
                f"{self._meta.full_name} cannot be tried: on {_slices(n_slices)} it raised {said}"
            )
        return ("ran" if kind == "ran" else "out of memory"), said

    def _ended(self, death: Died) -> tuple[Outcome, str]:
        """Say why a process ended."""
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
