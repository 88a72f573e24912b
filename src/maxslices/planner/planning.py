"""The planner: budgets and memory models in, a `Plan` out. It reads and runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..arrays import ArraySpec
from ..errors import DoesNotFitError, UsageError
from ..estimators import choose_model
from ..ledger import Device
from ..memory import MemoryModel
from ..units import format_bytes
from .pipeline import Pipeline
from .plan import Plan, SectionPlan, StepPlan
from .sections import Section, cut_into_sections
from .steps import Reference, Step

BlockChoice = int | Literal["auto", "max"]
AUTO_SLICES = 32
"""Slices from which a block's fixed costs (calls, launches, seeks) hardly count."""
AUTO_BLOCKS = 16
"""Blocks from which a larger block gains nothing but a coarser progress bar."""
RUNNER_BYTES = 2**17
"""What the runner's own Python objects take on the CPU, file handles included."""
_UNITS = {0: "projection", 1: "sinogram"}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may use, and on what."""

    device: str
    """"cpu", "cuda" (any card) or "cuda:N"."""
    budget_bytes: int
    """Bytes on the device."""
    host_budget_bytes: int
    """Bytes of host memory; on the CPU the same as the budget."""
    reserved_bytes: int = 0
    """Part of the budget that the framework itself holds on the device."""

    @property
    def kind(self) -> Device:
        """Return which allocator is meant."""
        return "cuda" if self.device.startswith("cuda") else "cpu"


@dataclass(slots=True)
class _StepCost:
    """A step with its arrays and its memory model, before a block is chosen."""

    step: Step
    input: ArraySpec
    output: ArraySpec
    model: MemoryModel
    estimator: str

    def looked_at(self, slice_dim: int) -> int:
        """Return how many slices a side result depends on; 0 where it runs on every block."""
        n_slices = self.input.shape[slice_dim]
        return len(self.step.meta.looked_at(n_slices, **self.step.known_parameters()))


def make_plan(
    pipeline: Pipeline,
    scan: ArraySpec,
    limits: Limits,
    *,
    flats: ArraySpec | None = None,
    darks: ArraySpec | None = None,
    block: BlockChoice = "auto",
    scan_name: str = "array",
    result_in_memory: bool = False,
    notes: Sequence[str] = (),
) -> Plan:
    """Plan a pipeline.

    Parameters
    ----------
    pipeline : Pipeline
        The methods.
    scan : ArraySpec
        Projections, axes (angles, detector_y, detector_x).
    limits : Limits
        Device and budgets.
    flats, darks : ArraySpec, optional
        The reference frames that there are.
    block : int, "auto" or "max"
        Slices in a block: as many as asked for, enough to keep the device busy, or as many
        as fit.
    scan_name : str
        For the plan's title.
    result_in_memory : bool
        Whether the last section's result is kept as an array in memory.
    notes : sequence of str
        Assumptions to print with the plan.

    Returns
    -------
    Plan

    Raises
    ------
    DoesNotFitError
        If one slice, or a block of the size asked for, needs more than there is.
    EstimatorError
        If a method's estimator fails.
    """
    if limits.budget_bytes <= limits.reserved_bytes:
        raise DoesNotFitError(
            f"the budget of {format_bytes(limits.budget_bytes)} is not more than the "
            f"{format_bytes(limits.reserved_bytes)} that the CUDA context takes; allow more "
            "with --memory"
        )
    if not (block in ("auto", "max") or (isinstance(block, int) and block >= 1)):
        raise UsageError(f"block must be 'auto', 'max' or a positive number, not {block!r}")
    sections = cut_into_sections(pipeline)
    side = {"flats": flats, "darks": darks}
    plans: list[SectionPlan] = []
    current, in_memory_bytes, scratch, most_scratch, result_bytes = scan, 0, 0, 0, 0
    for number, section in enumerate(sections):
        costs = _costs(section, current, limits.kind)
        output = costs[-1].output
        is_last = number == len(sections) - 1
        if is_last:
            destination = "memory" if result_in_memory else "result"
        elif in_memory_bytes + output.nbytes <= limits.host_budget_bytes // 2:
            destination = "memory"
        else:
            destination = "scratch file"
        own_bytes = output.nbytes if destination == "memory" else 0
        plans.append(
            _plan_section(
                section, costs, limits, side, block, destination, in_memory_bytes + own_bytes
            )
        )
        own_scratch = output.nbytes if destination == "scratch file" else 0
        most_scratch = max(most_scratch, scratch + own_scratch)
        in_memory_bytes, scratch, current = own_bytes, own_scratch, output
        result_bytes += sum(cost.output.nbytes for cost in costs if cost.step.save_result)
    return Plan(
        scan=scan_name,
        device=limits.device,
        budget_bytes=limits.budget_bytes,
        reserved_bytes=limits.reserved_bytes,
        host_budget_bytes=limits.host_budget_bytes,
        sections=tuple(plans),
        scratch_bytes=most_scratch,
        result_bytes=0 if result_in_memory else result_bytes,
        notes=tuple(notes),
    )


def _costs(section: Section, scan: ArraySpec, device: Device) -> list[_StepCost]:
    """Follow shape and dtype through a section, and ask for each method's model."""
    costs = []
    slice_dim = section.slice_dim
    for step in section.steps:
        meta = step.meta
        other_dims = scan.other_dims(slice_dim)
        parameters: dict[str, Any] = {
            k: None if isinstance(v, Reference) else v for k, v in step.parameters.items()
        }
        output = scan
        if not meta.side_results:
            dtype = meta.output_dtype(slice_dim, other_dims, scan.dtype, **parameters)
            dims = list(meta.output_other_dims(slice_dim, other_dims, **parameters))
            dims.insert(slice_dim, scan.shape[slice_dim])
            output = ArraySpec((dims[0], dims[1], dims[2]), dtype)
        model, source = choose_model(meta, slice_dim, other_dims, scan.dtype, device, parameters)
        costs.append(_StepCost(step, scan, output, model, source))
        scan = output
    return costs


def _plan_section(
    section: Section,
    costs: list[_StepCost],
    limits: Limits,
    side: Mapping[str, ArraySpec | None],
    block: BlockChoice,
    destination: str,
    stores_bytes: int,
) -> SectionPlan:
    slice_dim, halo = section.slice_dim, section.halo
    total, extra = costs[0].input.shape[slice_dim], sum(section.halo)
    on_gpu = limits.kind == "cuda"
    side_model, side_all = _side_model(section, side, slice_dim, total)
    models = [cost.model.widened(extra, total) for cost in costs]
    on_blocks = [
        model for cost, model in zip(costs, models, strict=True) if not cost.looked_at(slice_dim)
    ]
    if extra:
        on_blocks.append(_cropped_copy(costs[-1].output, slice_dim, extra, total))
    model = MemoryModel.maximum(on_blocks) + side_model.widened(extra, total)
    if not on_gpu:
        model = model.plus(RUNNER_BYTES)
    peek_bytes = _peek_bytes(costs, models, slice_dim) + side_model.bytes(total if side_all else 1)
    available = limits.budget_bytes - limits.reserved_bytes - (0 if on_gpu else stores_bytes)
    if model.bytes(1) > available or peek_bytes > available:
        raise _does_not_fit(section, costs, models, max(model.bytes(1), peek_bytes), available)
    max_block = model.max_slices(available, total)
    bound = f"{format_bytes(available)} on {'the device' if on_gpu else 'the CPU'}"
    host_model = MemoryModel(lambda n: 0)
    if on_gpu:
        staged = MemoryModel.linear(0, _staged_bytes_per_slice(costs, slice_dim))
        host_model = staged.widened(extra, total) + side_model
        host_available = limits.host_budget_bytes - stores_bytes
        on_host = host_model.max_slices(host_available, total)
        if on_host < 1:
            raise DoesNotFitError(
                f"one {_UNITS[slice_dim]} needs {format_bytes(host_model.bytes(1))} of host "
                f"memory to be moved, and {format_bytes(max(host_available, 0))} are left of "
                f"{format_bytes(limits.host_budget_bytes)}; allow more with --host-memory"
            )
        if on_host < max_block:
            max_block, bound = on_host, f"{format_bytes(host_available)} on the host"
    chosen, why = _choose_block(block, max_block, total, extra, bound)
    if chosen > max_block:
        needed = model.bytes(chosen)
        raise DoesNotFitError(
            f"a block of {chosen} {_UNITS[slice_dim]}s needs {format_bytes(needed)}, and "
            f"{bound} allow {max_block}: use --block {max_block} or --block max"
        )
    peaks = [widened.bytes(chosen) for widened in models]
    return SectionPlan(
        steps=tuple(
            StepPlan(
                method=cost.step.meta.full_name,
                parameters={k: _plain(v) for k, v in cost.step.parameters.items()},
                input=cost.input,
                output=cost.output,
                estimated_bytes=peak
                if not (looked := cost.looked_at(slice_dim))
                else cost.model.bytes(looked),
                estimator=cost.estimator,
            )
            for cost, peak in zip(costs, peaks, strict=True)
        ),
        slice_dim=slice_dim,
        n_slices=total,
        halo=halo,
        block=chosen,
        max_block=max_block,
        why=why,
        limited_by=_worst(costs, models, chosen, slice_dim),
        side_bytes=side_model.bytes(chosen),
        estimated_bytes=max(model.bytes(chosen), peek_bytes),
        available_bytes=available,
        host_bytes=stores_bytes + (host_model if on_gpu else model).bytes(chosen),
        destination=destination,
    )


def _side_model(
    section: Section, side: Mapping[str, ArraySpec | None], slice_dim: int, total: int
) -> tuple[MemoryModel, bool]:
    """Return the model of the side data, and whether they are resident whole.

    Projections need all of every frame; sinograms the rows of their block.
    """
    wanted = {name for step in section.steps for name in step.meta.supplied}
    present = [spec for name, spec in side.items() if name in wanted and spec is not None]
    n_bytes = sum(spec.nbytes for spec in present)
    if slice_dim == 0:
        return MemoryModel(lambda n: n_bytes), True
    return MemoryModel.linear(0, n_bytes // total), False


def _cropped_copy(output: ArraySpec, slice_dim: int, extra: int, total: int) -> MemoryModel:
    """Return the model of writing a block without its halo: the block and a compact copy."""
    n_bytes = output.with_slices(slice_dim, 1).nbytes
    return MemoryModel(lambda n: (n + min(n + extra, max(n, total))) * n_bytes)


def _peek_bytes(costs: list[_StepCost], models: list[MemoryModel], slice_dim: int) -> int:
    """Return the peak of finding the side results that depend on a few slices."""
    most = 0
    for position, cost in enumerate(costs):
        looked = cost.looked_at(slice_dim)
        if looked:
            before = [m.bytes(looked) for m in models[:position]]
            most = max(most, cost.model.bytes(looked), *before)
    return most


def _staged_bytes_per_slice(costs: list[_StepCost], slice_dim: int) -> int:
    """Return the host bytes per slice for what goes to the device and what comes back."""
    arrays = [costs[0].input, costs[-1].output]
    return sum(spec.with_slices(slice_dim, 1).nbytes for spec in arrays)


def _choose_block(
    block: BlockChoice, max_block: int, total: int, extra: int, bound: str
) -> tuple[int, str]:
    fits = "all fit" if max_block >= total else f"{bound} allow {max_block}"
    if block == "max":
        return max_block, f"block max: {fits}"
    if isinstance(block, int):
        return min(block, total), f"block as asked for; {fits}"
    wanted = max(AUTO_SLICES, -(-total // AUTO_BLOCKS), 4 * extra)
    if max_block <= wanted:
        if max_block >= total:
            return total, f"block auto: {fits} in one block"
        return _even(max_block, total), f"block auto: {bound} allow no more than {max_block}"
    return _even(min(wanted, total), total), f"block auto: {wanted} keep the device busy; {fits}"


def _even(block: int, total: int) -> int:
    """Return the smallest block that makes no more blocks than `block` does."""
    n_blocks = -(-total // block)
    return -(-total // n_blocks)


def _worst(costs: list[_StepCost], models: list[MemoryModel], n: int, slice_dim: int) -> str:
    def peak(index: int) -> int:
        looked = costs[index].looked_at(slice_dim)
        return costs[index].model.bytes(looked) if looked else models[index].bytes(n)

    return costs[max(range(len(costs)), key=peak)].step.meta.name


def _does_not_fit(
    section: Section,
    costs: list[_StepCost],
    models: list[MemoryModel],
    needed: int,
    available: int,
) -> DoesNotFitError:
    name = _worst(costs, models, 1, section.slice_dim)
    spec = next(cost.input for cost in costs if cost.step.meta.name == name)
    unit = _UNITS[section.slice_dim]
    around = f" with a halo of {section.halo[0]}+{section.halo[1]}" if any(section.halo) else ""
    shape = "x".join(map(str, spec.other_dims(section.slice_dim)))
    return DoesNotFitError(
        f"{name} needs {format_bytes(needed)} for one {unit} of {shape} {spec.dtype}{around}, and "
        f"{format_bytes(max(available, 0))} are available: allow at least that much with --memory, "
        "or bin or crop the scan"
    )


def _plain(value: Any) -> Any:
    """Return a parameter as JSON has it."""
    if isinstance(value, Reference):
        return str(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return value
