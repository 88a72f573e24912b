"""A section before its block is chosen: arrays, and the memory models of its methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import lcm
from typing import Any

from ..core.allocators import ArrayAllocator, Device
from ..core.arrays import ArraySpec
from ..core.memory_model import MemoryModel


@dataclass(frozen=True, slots=True)
class StepModel:
    """One method with its arrays and its memory model."""

    index: int
    """Position of its step in the pipeline, from 0."""
    method: str
    """Full name, ``module.name``."""
    parameters: Mapping[str, Any]
    """The user's parameters as JSON values, with references as in a pipeline file."""
    input: ArraySpec
    """The whole array before it."""
    output: ArraySpec
    """The whole array after it."""
    memory: MemoryModel
    """Bytes for n slices of a block, including the halo."""
    estimator: str
    """Origin of the model."""
    planned_values: Mapping[str, Any] = field(default_factory=dict)
    """Values of references that its memory, shape, halo or sampled slices depend on."""
    why: str = ""
    """Reason for this origin, or an empty string if the author declares the model."""
    n_sampled: int = 0
    """Number of slices that its side results depend on, or 0 if it runs on every block."""
    pace_s: tuple[float, float] | None = None
    """Measured seconds of a call and, in addition, of each slice; None if not timed."""
    least_block: int = 1
    """Least slices of a block with the same result as larger blocks, as far as compared."""
    block_multiple: int = 1
    """The slices of a block should be a multiple of this number, for the same reason."""
    gives_side_results: bool = False
    """Whether it returns values and does not change the data."""
    saves_result: bool = False
    """Whether the data after it are kept as a result."""
    declared: Callable[[], MemoryModel] | None = None
    """Makes a new model of the author's estimator, without cached results; None without one."""
    spares: str = ""
    """A parameter that would save memory, as users write it."""

    @property
    def name(self) -> str:
        """Plain name of the method."""
        return self.method.rsplit(".", 1)[-1]

    def peak_bytes(self, block: int) -> int:
        """Peak with a block, or with the slices that its side results depend on."""
        return self.memory.bytes(self.n_sampled or block)


@dataclass(frozen=True, slots=True)
class SectionModel:
    """Methods that share a block, with their memory models and side data."""

    slice_dim: int
    """Axis along which blocks are cut."""
    halo: tuple[int, int]
    """Slices (before, after) that are added to a block."""
    steps: tuple[StepModel, ...]
    """The methods, in order."""
    side: MemoryModel
    """Memory of flats and darks while n slices are processed."""
    allocator: ArrayAllocator
    """Allocator of arrays on the device."""
    writes_results: bool = True
    """Whether results of steps that save theirs are written to files."""

    @property
    def device(self) -> Device:
        """Where the section runs."""
        return self.allocator.device

    @property
    def n_slices(self) -> int:
        """Slices of the whole array."""
        return self.input.shape[self.slice_dim]

    @property
    def input(self) -> ArraySpec:
        """The whole array before the section."""
        return self.steps[0].input

    @property
    def output(self) -> ArraySpec:
        """The whole array after the section."""
        return self.steps[-1].output

    @property
    def saved(self) -> tuple[ArraySpec, ...]:
        """The whole arrays that are written as results."""
        if not self.writes_results:
            return ()
        return tuple(step.output for step in self.steps if step.saves_result)

    @property
    def runs_on_blocks(self) -> bool:
        """True if its blocks must be processed, and not only a few slices for side results."""
        return any(
            (step.gives_side_results and not step.n_sampled) or step.saves_result
            for step in self.steps
        )

    @property
    def input_block(self) -> MemoryModel:
        """Model of a block of its input on the device, including the halo."""
        return self.block_of(self.input)

    def block_of(self, spec: ArraySpec) -> MemoryModel:
        """Model of n slices of an array on the device, including the halo."""
        return self.widened(self.allocator.array(self.slice_bytes(spec)))

    def host_block_of(self, spec: ArraySpec) -> MemoryModel:
        """Model of n slices of an array on the host, including the halo."""
        return self.widened(MemoryModel.linear(0, self.slice_bytes(spec)))

    def slice_bytes(self, spec: ArraySpec) -> int:
        """Bytes of one slice of an array."""
        return spec.with_slices(self.slice_dim, 1).nbytes

    def widened(self, model: MemoryModel) -> MemoryModel:
        """Model of n slices including the halo."""
        return model.widened(sum(self.halo), self.n_slices)

    @property
    def pace_s(self) -> tuple[float, float]:
        """Measured seconds of a call of all timed methods and, in addition, of each slice."""
        timed = [step.pace_s for step in self.steps if step.pace_s is not None]
        return sum(call_s for call_s, _ in timed), sum(slice_s for _, slice_s in timed)

    @property
    def least_block(self) -> int:
        """Least slices of a block with the same results of all methods as larger blocks."""
        return min(self.n_slices, max(step.least_block for step in self.steps))

    @property
    def block_multiple(self) -> int:
        """Blocks should be a multiple of this number for all methods to give the same results.

        It is 1 if the halo shifts the first slice of a block by another number.
        """
        multiple = lcm(*(step.block_multiple for step in self.steps))
        return 1 if self.halo[0] % multiple else multiple

    @property
    def most_sampled(self) -> int:
        """Most slices that one of its side results depends on, or 0 if all run on blocks."""
        return max(step.n_sampled for step in self.steps)

    @property
    def look_ahead_bytes(self) -> int:
        """Peak while side results of a few slices are computed, before the first block."""
        peaks = [0]
        for index, step in enumerate(self.steps):
            n_sampled = step.n_sampled
            if n_sampled:
                before = [s for s in self.steps[:index] if not s.gives_side_results]
                models = [step.memory, *(s.memory for s in before)]
                peaks.append(max(m.bytes(n_sampled) for m in models) + self.side.bytes(n_sampled))
        return max(peaks)

    def highest(self, block: int) -> StepModel:
        """The step with the highest peak."""
        return max(self.steps, key=lambda step: step.peak_bytes(block))
