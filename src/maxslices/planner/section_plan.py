"""The sections of a plan: methods that run together, and the block that they run on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..core.arrays import ArraySpec
from ..core.block_memory import Destination, Origin


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One method within a section."""

    index: int
    """Position in the pipeline, from 0."""
    method: str
    """Full name, ``module.name``."""
    parameters: dict[str, Any]
    """The user's parameters; references as they are written in a pipeline file."""
    input: ArraySpec
    """The whole array before it."""
    output: ArraySpec
    """The whole array after it."""
    estimated_bytes: int
    """Its peak for one block of the plan, halo included."""
    estimator: str
    """Origin of the estimate: "declared" ("declared for CUDA" if for no other device), "recorded",
    "replayed" or "probed"."""
    planned_values: dict[str, Any] = field(default_factory=dict)
    """Values of references that the plan depends on. A run that finds others is refused."""

    @property
    def name(self) -> str:
        """Plain name of the method."""
        return self.method.rsplit(".", 1)[-1]


@dataclass(frozen=True, slots=True)
class SectionPlan:
    """Methods that run together, and the block that they run on."""

    steps: tuple[StepPlan, ...]
    """The methods, in order."""
    slice_dim: int
    """Axis of the slices: 0 projections, 1 sinograms."""
    n_slices: int
    """Slices in all."""
    halo: tuple[int, int]
    """Slices (before, after) that a block is widened by."""
    block: int
    """Slices in a block, halo not counted."""
    max_block: int
    """Slices of the largest block that the budget allows."""
    why: str
    """Reason for the block, in words."""
    limiting_step: int
    """Position in the pipeline of the method with the highest peak."""
    side_bytes: int
    """Flats and darks that are resident during a block."""
    estimated_bytes: int
    """Peak of a block on the device: methods, halo and side data."""
    available_bytes: int
    """Bytes on the device that a block may take."""
    host_bytes: int
    """Bytes of host memory that the runner holds during the section, stores included."""
    stored_bytes: int
    """Bytes of its whole input and output, as far as they are on the device."""
    origin: Origin
    """Where its data are: the "scan", the "device", "memory" or a "scratch file"."""
    destination: Destination
    """Where its output goes: the "result", the "device", "memory", a "scratch file", or nowhere
    ("nothing")."""
    kept_bytes: int = 0
    """Host memory for the first part of its output, if the rest is in a scratch file."""
    overlaps: bool = True
    """Whether the next block comes, and the last result leaves, while a block is worked on."""
    on_blocks: bool = True
    """Whether it runs on blocks; not if it only finds side results of a few slices."""
    multiple: int = 1
    """Number of which blocks are a multiple where others give another result."""

    @property
    def limited_by(self) -> str:
        """Name of the method with the highest peak."""
        return next(step.name for step in self.steps if step.index == self.limiting_step)

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return -(-self.n_slices // self.block)

    @property
    def is_bound_by_memory(self) -> bool:
        """True if it has as few blocks as memory allows, and more than one."""
        return self.max_block < self.n_slices and self.n_blocks == -(
            -self.n_slices // self.max_block
        )

    @property
    def input(self) -> ArraySpec:
        """The array that it reads."""
        return self.steps[0].input

    @property
    def output(self) -> ArraySpec:
        """The array that it makes."""
        return self.steps[-1].output
