"""What a check found, and the error that carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..measure import Alive, Place
from ..model.allocators import Device
from .check_report import check_message

LOWER, UPPER = 0.80, 1.00
"""Default bounds of estimated slices over slices that were run."""
WHOLE_SLICES_DECIDE = 50
"""Below this many slices one slice is much, and fractions of slices are compared: how far the
peak lies between what the estimator says for one number of slices and the next."""

Verdict = Literal["ok", "UNDERESTIMATE", "OVERESTIMATE", "NOT SEEN", "KEEPS MEMORY"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A method's estimate beside what was measured."""

    method: str
    """Full name."""
    shape: tuple[int, int, int]
    """Input that was run: axes (angles, detector_y, detector_x)."""
    dtype: str
    """Input dtype."""
    parameters: Mapping[str, Any]
    """Parameters that were given."""
    slice_dim: int
    """Axis of the slices."""
    device: Device
    """Where it ran."""
    slices: int
    """Slices that were run."""
    estimated_slices: int
    """What the estimator answers when the measured peak is the memory available."""
    fraction: float
    """The same with the part of a slice that rounding down takes away."""
    peak_bytes: int
    """Measured peak: input, output and what earlier calls left in caches included."""
    estimated_bytes: int
    """What the estimator says for this many slices."""
    lower: float
    """Least `ratio` allowed."""
    upper: float
    """Largest `ratio` allowed."""
    resolution_bytes: int = 0
    """Differences below this are no finding: small objects of Python's own."""
    kept_bytes: int = 0
    """Bytes that each further call leaves behind."""
    unseen: tuple[str, ...] = ()
    """Memory that the meters could not attribute."""
    notes: tuple[str, ...] = ()
    """What else was noticed."""
    where: Place | None = None
    """Line that reached the peak; None unless traced."""
    alive: tuple[Alive, ...] = field(default=())
    """What was alive at the peak, largest first; empty unless traced."""

    @property
    def ratio(self) -> float:
        """Estimated slices over slices run: above 1, the estimator promises what does not fit.

        Where the cost does not change between the slices run and the answer, they are the
        same answer, and the ratio is 1.
        """
        answer = self.fraction if self.slices < WHOLE_SLICES_DECIDE else self.estimated_slices
        if answer > self.slices and self.peak_bytes <= self.estimated_bytes + self.resolution_bytes:
            return 1.0
        return answer / self.slices

    @property
    def verdict(self) -> Verdict:
        """What is wrong, or "ok"."""
        if self.kept_bytes:
            return "KEEPS MEMORY"
        if self.ratio > self.upper:
            return "UNDERESTIMATE"
        if self.unseen:
            return "NOT SEEN"
        too_many_bytes = self.estimated_bytes - self.peak_bytes
        if self.ratio < self.lower and too_many_bytes > self.resolution_bytes:
            return "OVERESTIMATE"
        return "ok"

    @property
    def ok(self) -> bool:
        """Whether the estimate is within its bounds, and all memory was seen."""
        return self.verdict == "ok"

    def __str__(self) -> str:
        return check_message(self)


class EstimateError(AssertionError):
    """An estimator is out of its bounds; `result` has the figures.

    Parameters
    ----------
    result : CheckResult
        Printed as the message.
    """

    def __init__(self, result: CheckResult) -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        return str(self.result)
