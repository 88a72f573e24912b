"""What a section takes: shapes and dtypes through its methods, and memory for n slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..errors import SourceError
from ..estimate import Chooser, ModelRequest
from ..model.allocators import Allocator
from ..model.arrays import ArraySpec
from ..model.memory_model import MemoryModel
from ..model.tiling import Tiling
from ..pipeline.scan_spec import ScanSpec
from ..pipeline.sections import Section
from ..pipeline.steps import Step

RUNNER_BYTES = 3 * 2**19
"""What Python itself takes during a section on the CPU: file handles, two threads with what the
system's allocator keeps for each, and modules that methods import when first called."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """A step with its arrays and its memory model, before a block is chosen."""

    step: Step
    """The method and its parameters."""
    request: ModelRequest
    """What its model was asked for."""
    input: ArraySpec
    """The whole array before it."""
    output: ArraySpec
    """The whole array after it."""
    model: MemoryModel
    """Bytes for n slices of a block, its halo included."""
    estimator: str
    """Where the model is from."""
    why: str
    """Why from there; empty where the author declares it."""
    looked_at: int
    """Slices that its side results depend on; 0 where it runs on every block."""
    pace_s: tuple[float, float] | None = None
    """Seconds that a call was seen to take, and that each slice adds; None where not timed."""
    tiling: Tiling | None = None
    """How slices are cut for it, where a whole one is too much."""
    on_host: bool = False
    """Whether it runs on the host, though the section is on another device."""

    def peak_bytes(self, block: int) -> int:
        """Return its peak: on a block, or on the slices that it looks at."""
        return self.model.bytes(self.looked_at or block)


@dataclass(frozen=True, slots=True)
class SectionCost:
    """What a section's methods take, before a block is chosen, or where its data come from."""

    section: Section
    """The methods."""
    steps: tuple[StepCost, ...]
    """Their costs, in order."""
    kept: tuple[ArraySpec, ...]
    """The whole arrays that are written as results."""
    side: MemoryModel
    """Flats and darks that are resident while n slices are worked on."""
    own_bytes: int
    """What the runner itself takes."""
    allocator: Allocator
    """Where arrays on the device come from."""
    peek_bytes: int = 0
    """Peak on the device while side results are found that depend on a few slices."""
    on_host: MemoryModel = field(default_factory=lambda: MemoryModel.linear(0, 0))
    """What methods take on the host that were moved there from another device."""
    host_side: MemoryModel = field(default_factory=lambda: MemoryModel.linear(0, 0))
    """Flats and darks that are on the device only during the methods that take them."""

    @property
    def n_slices(self) -> int:
        """Return the number of slices in all."""
        return self.steps[0].input.shape[self.section.slice_dim]

    @property
    def input(self) -> ArraySpec:
        """Return the whole array before the section."""
        return self.steps[0].input

    @property
    def output(self) -> ArraySpec:
        """Return the whole array after the section."""
        return self.steps[-1].output

    @property
    def input_block(self) -> MemoryModel:
        """Return the model of a block of its input, halo included."""
        return self.block_of(self.input)

    @property
    def on_blocks(self) -> bool:
        """Tell whether anything but side results of a few slices is wanted of it."""
        return any(not c.looked_at and c.step.meta.side_results for c in self.steps) or any(
            cost.step.save_result for cost in self.steps
        )

    def block_of(self, spec: ArraySpec) -> MemoryModel:
        """Return the model of n slices of an array on the device, halo included."""
        return self._widened(self.allocator.array(self._slice_bytes(spec)))

    def host_block_of(self, spec: ArraySpec) -> MemoryModel:
        """Return the model of n slices of an array on the host, halo included."""
        return self._widened(MemoryModel.linear(0, self._slice_bytes(spec)))

    def _slice_bytes(self, spec: ArraySpec) -> int:
        return spec.with_slices(self.section.slice_dim, 1).nbytes

    def _widened(self, model: MemoryModel) -> MemoryModel:
        return model.widened(sum(self.section.halo), self.n_slices)

    def with_steps(self, steps: tuple[StepCost, ...]) -> SectionCost:
        """Return it with other costs of its steps."""
        peak = max(_peek_bytes(steps, index, self.side) for index in range(len(steps)))
        return replace(self, steps=steps, peek_bytes=peak + self.own_bytes if peak else 0)

    @property
    def pace_s(self) -> tuple[float, float]:
        """Return seconds that a call of all that were timed takes, and that each slice adds."""
        timed = [cost.pace_s for cost in self.steps if cost.pace_s is not None]
        return sum(call_s for call_s, _ in timed), sum(slice_s for _, slice_s in timed)

    def worst(self, block: int) -> StepCost:
        """Return the step with the highest peak."""
        return max(self.steps, key=lambda cost: cost.peak_bytes(block))


def section_cost(
    section: Section,
    current: ArraySpec,
    scan: ScanSpec,
    chooser: Chooser,
    allocator: Allocator,
    writes: bool,
) -> SectionCost:
    """Follow shape and dtype through a section, and ask for each method's model.

    Parameters
    ----------
    section : Section
        The methods.
    current : ArraySpec
        The whole array before them.
    scan : ScanSpec
        For flats and darks.
    chooser : Chooser
        Finds the models.
    allocator : Allocator
        Where arrays on the device come from.
    writes : bool
        Whether the steps that say so have their results written.

    Raises
    ------
    EstimatorError
        If a method's estimator fails.
    SourceError
        If a method's data are no longer of the shape of the flats, darks or angles.
    """
    slice_dim = section.slice_dim
    total, extra = current.shape[slice_dim], sum(section.halo)
    costs: list[StepCost] = []
    for step in section.steps:
        _check_shape(step, current, scan)
        is_first = current is scan.projections
        costs.append(_step_cost(step, current, slice_dim, extra, chooser, allocator, is_first))
        current = costs[-1].output
    cost = SectionCost(
        section=section,
        steps=(),
        kept=tuple(cost.output for cost in costs if cost.step.save_result and writes),
        side=_side_model(section, scan, slice_dim, total, allocator).widened(extra, total),
        own_bytes=RUNNER_BYTES if chooser.device == "cpu" else 0,
        allocator=allocator,
    )
    return cost.with_steps(tuple(costs))


def _step_cost(
    step: Step,
    current: ArraySpec,
    slice_dim: int,
    extra: int,
    chooser: Chooser,
    allocator: Allocator,
    is_first: bool,
) -> StepCost:
    meta, parameters = step.meta, step.known_parameters()
    other_dims, total = current.other_dims(slice_dim), current.shape[slice_dim]
    request = ModelRequest(meta, slice_dim, other_dims, current.dtype, parameters, total, is_first)
    chosen = chooser.choose(request)
    output = current
    if not meta.side_results:
        dtype, dims = chosen.output_dtype, chosen.output_dims
        if dtype is None:
            dtype = meta.output_dtype(slice_dim, other_dims, current.dtype, **parameters)
        if dims is None:
            dims = meta.output_other_dims(slice_dim, other_dims, **parameters)
        whole = (total, *dims) if slice_dim == 0 else (dims[0], total, dims[1])
        output = ArraySpec(whole, dtype)
    model = chosen.model
    if chosen.origin != "replayed":  # a replay has asked the allocator: its rests are counted
        one_slice = min(spec.with_slices(slice_dim, 1).nbytes for spec in (current, output))
        model = allocator.method(model, one_slice, total)
    return StepCost(
        step,
        request,
        current,
        output,
        model=model.widened(extra, total),
        estimator=chosen.origin,
        why=chosen.why,
        looked_at=len(meta.looked_at(total, **parameters)),
        pace_s=chosen.pace_s,
    )


def _check_shape(step: Step, data: ArraySpec, scan: ScanSpec) -> None:
    """Require that flats, darks and angles still fit the data where a method wants them."""
    supplied = step.meta.supplied
    for name in ("flats", "darks"):
        for spec in scan.frames({name} & set(supplied)):
            if spec.shape[1:] != data.shape[1:]:
                raise SourceError(
                    f"{step.meta.name} is given {name} of {_by(spec.shape[1:])} for data of "
                    f"{_by(data.shape[1:])}: put it before the method that changes the shape"
                )
    n_angles = scan.projections.shape[0]
    if "angles" in supplied and scan.has_angles and data.shape[0] > n_angles:
        raise SourceError(
            f"{step.meta.name} is given {n_angles} angles for {data.shape[0]} projections: put "
            "it before the method that adds projections"
        )


def _side_model(
    section: Section, scan: ScanSpec, slice_dim: int, total: int, allocator: Allocator
) -> MemoryModel:
    """Return the model of the side data: whole for projections, else the rows of the block."""
    specs = scan.frames({name for step in section.steps for name in step.meta.supplied})
    model = MemoryModel.linear(0, 0)
    for spec in specs:
        if slice_dim == 0:
            model = model.plus(allocator.handed_out(spec.nbytes))
        else:
            model = model + allocator.array(-(-spec.nbytes // total))
    return model


def _peek_bytes(costs: Sequence[StepCost], index: int, side: MemoryModel) -> int:
    """Return the peak of finding a side result that depends on a few slices; 0 for others."""
    looked = costs[index].looked_at
    if not looked:
        return 0
    before = [cost.model.bytes(looked) for cost in costs[:index] if not cost.step.meta.side_results]
    return max(costs[index].model.bytes(looked), *before, 0) + side.bytes(looked)


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
