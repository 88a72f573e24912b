"""Answers of `max_batch_size` and `max_patch_shape`, with the log of their search."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, cast

from ...core.units import format_bytes


@dataclass(frozen=True, slots=True)
class VerifiedStep:
    """A step that was run on the device to verify a prediction."""

    size: int | tuple[int, ...]
    """Batch size, or shape of the patch."""
    fits: bool
    """True if it ran within the limit."""
    allocated_bytes: int
    """Peak of allocated memory; 0 if the step did not fit."""
    reserved_bytes: int
    """Peak of memory held by the allocator; 0 if the step did not fit."""
    duration_s: float
    """Duration of the run, the start of its process included."""


@dataclass(frozen=True, slots=True)
class SearchLog:
    """Log of the search for an answer."""

    kind: Literal["batch size", "patch shape"]
    """Quantity that was searched."""
    mode: str
    """Mode of the step: "inference", "training" or "forward"."""
    limit_bytes: int
    """Memory that torch's allocator may hold: weights, data and fragmentation."""
    origin: str
    """Source of the limit, as text."""
    predicted: int | tuple[int, ...]
    """Largest size that is predicted to fit within the limit."""
    asked: int | tuple[int, ...]
    """Size within the safety factor, which is run first."""
    allocated_bytes: int
    """Predicted peak of allocated memory with the size in `asked`."""
    tried: tuple[VerifiedStep, ...]
    """Steps run on the device, in order. Empty without a device."""
    workspaces: str
    """Source of the workspace sizes of the libraries, as text."""
    prediction_s: float
    """Duration of the prediction, without the measuring of workspaces."""
    calibration_s: float = 0.0
    """Duration of measuring workspaces, which is done once for each device."""
    at_bound: bool = False
    """True if the search ended at its upper bound and not at the memory limit."""
    notes: tuple[str, ...] = ()
    """Remarks on the answer."""
    safety_factor: float = 1.0
    """Part of the memory that the answer may use; 1 if the bound of the search decided."""

    @property
    def is_verified(self) -> bool:
        """True if the answer ran on the device."""
        return self.measured is not None

    @property
    def measured(self) -> VerifiedStep | None:
        """Last step that ran, or None. Larger ones may have failed after it."""
        return next((step for step in reversed(self.tried) if step.fits), None)

    @property
    def found(self) -> int | tuple[int, ...]:
        """Answer: the size that ran, or without a device the size in `asked`."""
        return self.asked if self.measured is None else self.measured.size

    def to_dict(self) -> dict[str, Any]:
        """Figures in plain lists and dicts, with the answer as "found"."""
        return {"found": self.found, "is_verified": self.is_verified, **asdict(self)}

    def __str__(self) -> str:
        lines = [
            f"{self.kind.capitalize()} {_shown(self.found)} for {self.mode}",
            f"  limit      {format_bytes(self.limit_bytes)} for tensors ({self.origin})",
            f"  predicted  {_shown(self.predicted)} at most"
            + (", the bound of the search" if self.at_bound else "")
            + (f"; safety factor {self.safety_factor:g}" if self.safety_factor < 1 else "")
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
            lines.append(f"  tried      {_shown(trial.size)}: {text}; {trial.duration_s:.1f} s")
        if not self.tried:
            lines.append("  tried      nothing: no device is present")
        lines += [f"  note       {note}" for note in self.notes]
        return "\n".join(lines)


FEWER = " if there is room (with less memory, convolutions use less workspace)"
"""Text for a step that fits although its preferred kernels need more memory."""


class _LoggedAnswer:
    """Base of the answers: plain values with the log of their search."""

    result: SearchLog

    def __new__(cls, value: Any, result: SearchLog) -> Self:
        answer: Any = super().__new__(cls, value)  # type: ignore[call-arg]
        answer.result = result
        return cast(Self, answer)

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.result.found, self.result


class BatchSize(_LoggedAnswer, int):
    """Batch size: an `int` with the log of its search in `result`."""


class PatchShape(_LoggedAnswer, tuple[int, ...]):
    """Patch shape: a `tuple` of `int` with the log of its search in `result`."""


def _shown(size: int | tuple[int, ...]) -> str:
    return str(size) if isinstance(size, int) else "x".join(map(str, size))
