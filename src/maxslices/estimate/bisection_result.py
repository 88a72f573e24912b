"""Result of bisection: the runs that were tried, and the memory model that follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..model.memory_model import UNREACHABLE_BYTES, MemoryModel
from ..model.units import format_bytes

Outcome = Literal["ran", "out of memory", "crashed", "timed out"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of the method."""

    n_slices: int
    """Slices that it was given."""
    allowed_bytes: int
    """Memory that it was allowed, in addition to what the process had loaded."""
    outcome: Outcome
    """How it ended."""
    duration_s: float
    """Duration; includes the start of a process where one was started."""
    said: str = ""
    """Message of the method or the library if it failed."""


@dataclass(frozen=True, slots=True)
class BisectionResult:
    """Slices that run, and the memory that they need, found by runs that succeed or fail."""

    n_slices: int
    """Most slices that ran; 0 if not even one did."""
    fails_at: int | None
    """Fewest slices that did not run; None if all slices of the scan did."""
    available_bytes: int
    """Memory for which `n_slices` is the answer."""
    margin_bytes: int
    """Part of it that was left free in every attempt."""
    points: tuple[tuple[int, int], ...]
    """(slices, bytes) that ran, margin included, by slices; the last is the answer."""
    rough: tuple[tuple[int, int], ...]
    """Pairs of neighbouring points between which no line was confirmed: all slices between them
    count as much as the higher point."""
    slack_bytes: int
    """Added between points: the most that a line was found to be too low."""
    attempts: tuple[Attempt, ...]
    """All runs, in order."""
    is_settled: bool
    """False if time ran out before the bisection was done."""
    output_dtype: str | None = None
    """Dtype of the method's result; None where it returned no array."""
    output_dims: tuple[int, int] | None = None
    """The result's other two dims, likewise."""

    @property
    def duration_s(self) -> float:
        """Duration of all attempts."""
        return sum(attempt.duration_s for attempt in self.attempts)

    def model(self) -> MemoryModel:
        """Memory model through the points that ran; more slices than ran never fit."""
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
        at_full = [a for a in self.attempts if a.allowed_bytes == allowed]
        tried = ", ".join(f"{a.n_slices} {a.outcome}" for a in at_full)
        others = len(self.attempts) - len(at_full)
        less = f"; {others} tries with less memory" if others else ""
        end = "" if self.is_settled else "; the time was up"
        return (
            f"{self.n_slices} slices in {format_bytes(self.available_bytes)} less a margin of "
            f"{format_bytes(self.margin_bytes)} (tried in {self.duration_s:.2g} s: "
            f"{tried}{less}{end})"
        )
