"""A case along one of its axes, on one device: what a test of the conformance class runs."""

from __future__ import annotations

from dataclasses import dataclass

from ..checking.case import Case


@dataclass(frozen=True, slots=True)
class Situation:
    """A case with one of the axes that it may be cut along."""

    case: Case
    """The method, its data and its parameters."""
    slice_dim: int
    """Axis of the slices."""
    device: str | None
    """Device; None: that of the options."""

    def __str__(self) -> str:
        """Write a test id."""
        dim = "" if self.case.slice_dim is not None else f"-dim{self.slice_dim}"
        return f"{self.case}{dim}"
