"""Figures of a memory report, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from .breakdown import Holder, Part, Stage
from .memory_budget import Budget
from .replay import ReplayPeak, Trace
from .savings import Saving


@dataclass(frozen=True, eq=False)
class ReportFigures:
    """Memory that a step takes, and what would save some."""

    model: str
    """Class of the model."""
    n_parameters: int
    inputs: tuple[str, ...]
    """Shapes and dtypes."""
    mode: str
    optimizer: str
    """Class of the optimizer, or ""."""
    amp: str
    """Lower precision of autocast, or ""."""
    ddp: bool
    trace: Trace
    """All that happened."""
    categories: dict[str, int]
    """Bytes at the peak by what they are held for; "DDP buckets" among them with `ddp`."""
    allocated_bytes: int
    """The most in use at once."""
    reserved_bytes: int
    """The most that the allocator holds when there is room."""
    needed_bytes: int
    """The least limit of the allocator under which the step runs."""
    context_bytes: int
    """What CUDA itself takes for the process."""
    workspaces: str
    """Where the sizes of the libraries' workspaces come from."""
    stages: tuple[Stage, ...]
    parts: tuple[Part, ...]
    holders: tuple[Holder, ...]
    savings: tuple[Saving, ...]
    at_full_size: float
    """Part of the activations at the peak that is as wide and high as the input, 0 to 1."""
    budget: Budget | None = field(default=None, repr=False)
    """Of the card that was asked about."""

    @property
    def device_bytes(self) -> int:
        """What the process takes of the card: what is reserved, and CUDA's context."""
        return self.reserved_bytes + self.context_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the step runs on the card that was asked about; None without one."""
        return None if self.budget is None else self.trace.fits(self.budget.limit_bytes)

    @property
    def peak(self) -> ReplayPeak:
        """What was alive when the most was."""
        return self.trace.peak
