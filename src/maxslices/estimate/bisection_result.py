"""What a search found: what was tried, and the memory that follows from it."""

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
    """Memory that it had, beside what the process had loaded."""
    outcome: Outcome
    """What came of it."""
    duration_s: float
    """Duration, the start of a process included where one was started."""
    said: str = ""
    """What the method or the library said when it failed."""


@dataclass(frozen=True, slots=True)
class BisectionResult:
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
