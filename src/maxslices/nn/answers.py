"""Answers that say how they were found: numbers and shapes with a `SearchLog` beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from ..model.units import format_bytes

Where = Literal["another process", "this process"]


@dataclass(frozen=True, slots=True)
class VerifiedStep:
    """One real step on the device."""

    size: int | tuple[int, ...]
    """Batch size, or shape of the patch."""
    fits: bool
    """Whether it ran within the limit."""
    where: Where
    """Process that ran it; `SearchLog.notes` has the reason if it was this one."""
    allocated_bytes: int
    """The most that was handed out at once; 0 if it did not fit."""
    reserved_bytes: int
    """The most that the allocator held; 0 if it did not fit."""
    duration_s: float
    """How long it took, with the start of the process."""


@dataclass(frozen=True, slots=True)
class SearchLog:
    """How an answer was found."""

    kind: Literal["batch size", "patch shape"]
    """What was asked for."""
    mode: str
    """"inference" or "training"."""
    limit_bytes: int
    """What torch's allocator may hold: weights, data, and what it cannot reuse."""
    origin: str
    """Where the limit comes from."""
    predicted: int | tuple[int, ...]
    """The largest that fits within the limit, as predicted."""
    asked: int | tuple[int, ...]
    """What safety factor or margin left of it: the first that was tried."""
    allocated_bytes: int
    """The most in use at once with what was asked, as predicted."""
    tried: tuple[VerifiedStep, ...]
    """Real steps, in order; empty without a device."""
    workspaces: str
    """Where the sizes of the libraries' workspaces come from."""
    prediction_s: float
    """How long the prediction took; calibration of workspaces not included."""
    calibration_s: float = 0.0
    """How long the workspaces were measured, which is done once for a device."""
    at_bound: bool = False
    """Whether the search ended at its bound, not at the memory's."""
    notes: tuple[str, ...] = ()
    """What should be known about the answer."""

    @property
    def is_verified(self) -> bool:
        """Whether the answer ran on the device."""
        return bool(self.tried) and self.tried[-1].fits

    @property
    def measured(self) -> VerifiedStep | None:
        """The real step that ran, if there was one."""
        return self.tried[-1] if self.is_verified else None

    def __str__(self) -> str:
        found = self.tried[-1].size if self.is_verified else self.asked
        lines = [
            f"{self.kind.capitalize()} {_shown(found)} for {self.mode}",
            f"  limit      {format_bytes(self.limit_bytes)} for tensors ({self.origin})",
            f"  predicted  {_shown(self.predicted)} at most"
            + (", the bound of the search" if self.at_bound else "")
            + f"; {_shown(self.asked)} takes {format_bytes(self.allocated_bytes)}"
            + (FEWER if self.allocated_bytes > self.limit_bytes else "")
            + f"; in {self.prediction_s:.2f} s",
            f"  workspaces {self.workspaces}",
        ]
        for trial in self.tried:
            if trial.fits:
                text = (
                    f"ran: {format_bytes(trial.allocated_bytes)} allocated, "
                    f"{format_bytes(trial.reserved_bytes)} reserved"
                )
            else:
                text = "out of memory"
            lines.append(
                f"  tried      {_shown(trial.size)} in {trial.where}: {text}; "
                f"{trial.duration_s:.1f} s"
            )
        if not self.tried:
            lines.append("  tried      nothing: there is no device for it here")
        lines += [f"  note       {note}" for note in self.notes]
        return "\n".join(lines)


FEWER = " where there is room, and runs without: convolutions then use less workspace"
"""Said of a step that fits although it would take more than the limit."""


class BatchSize(int):
    """A number of images, an `int`, with `result`: how it was found."""

    result: SearchLog

    def __new__(cls, value: int, result: SearchLog) -> Self:  # noqa: D102
        made = super().__new__(cls, value)
        made.result = result
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return int(self), self.result


class PatchShape(tuple[int, ...]):
    """A shape, a `tuple` of `int`, with `result`: how it was found."""

    result: SearchLog

    def __new__(cls, value: Sequence[int], result: SearchLog) -> Self:  # noqa: D102
        made = super().__new__(cls, value)
        made.result = result
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self), self.result


def _shown(size: int | tuple[int, ...]) -> str:
    return str(size) if isinstance(size, int) else "x".join(map(str, size))
