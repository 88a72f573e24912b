"""Figures of a memory report, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..memory_budget import MemoryBudget
from ..replay import ReplayPeak, Trace
from .breakdown import Holder, MemoryStage, ModelPart
from .savings import Saving


@dataclass(frozen=True, eq=False)
class ReportFigures:
    """Memory of a step, and what would save some."""

    model: str
    """Class of the model."""
    n_parameters: int
    inputs: tuple[str, ...]
    """Shapes and dtypes."""
    mode: str
    optimizer: str
    """Class of the optimizer; "" without one."""
    amp: str
    """Lower precision of autocast; "" without it."""
    ddp: bool
    trace: Trace
    """Replay of the step."""
    categories: dict[str, int]
    """Bytes at the peak by category; "DDP buckets" is one of them with `ddp`. The allocator's
    "unused ends of blocks" are up to 1 MiB of each larger block."""
    allocated_bytes: int
    """Peak of allocated memory: ``torch.cuda.max_memory_allocated``."""
    reserved_bytes: int
    """Peak of memory held by the allocator without a limit."""
    needed_bytes: int
    """Smallest limit of the allocator under which the step runs."""
    context_bytes: int
    """Memory of CUDA's context."""
    workspaces: str
    """Source of the workspace sizes of the libraries."""
    stages: tuple[MemoryStage, ...]
    parts: tuple[ModelPart, ...]
    holders: tuple[Holder, ...]
    savings: tuple[Saving, ...]
    at_full_size: float
    """Fraction of the activations at the peak that are as wide and high as the input."""
    budget: MemoryBudget | None = field(default=None, repr=False)
    """Budget of the card in `memory`; None without one."""

    @property
    def device_bytes(self) -> int:
        """Memory of the process on the card: reserved, and CUDA's context."""
        return self.reserved_bytes + self.context_bytes

    @property
    def fits(self) -> bool | None:
        """True if the step runs on the card in `memory`; None without one."""
        return None if self.budget is None else self.trace.fits(self.budget.limit_bytes)

    @property
    def peak(self) -> ReplayPeak:
        """Allocations alive at the peak."""
        return self.trace.peak
