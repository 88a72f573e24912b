"""The planner: budgets and memory models in, a `Plan` out. It reads and runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ..errors import DoesNotFitError, SourceError
from ..estimators import Chooser
from ..units import format_bytes
from .blocks import (
    BlockChoice,
    check_block,
    choose_block,
    does_not_fit,
    lacking_bytes,
    wanted_block,
)
from .costs import SectionCost, section_cost
from .limits import Limits, Room
from .pipeline import Pipeline
from .plain import plain
from .plan import Destination, Plan, SectionPlan, StepPlan
from .scan import ScanSpec
from .sections import cut_into_sections


def make_plan(
    pipeline: Pipeline,
    scan: ScanSpec,
    limits: Limits,
    *,
    chooser: Chooser | None = None,
    block: BlockChoice = "auto",
    result_in_memory: bool = False,
    notes: Sequence[str] = (),
) -> Plan:
    """Plan a pipeline.

    Parameters
    ----------
    pipeline : Pipeline
        The methods.
    scan : ScanSpec
        What they are given.
    limits : Limits
        Device and budgets.
    chooser : Chooser, optional
        Finds memory models; by default those that authors declare.
    block : int, "auto" or "max"
        Slices in a block: as many as asked for, enough to keep the device busy, or as many
        as fit.
    result_in_memory : bool
        Whether the result is kept as an array in memory, not written.
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
    SourceError
        If the scan lacks flats, darks or angles that a method needs.
    """
    check_block(block)
    check_supplied(pipeline, scan)
    if limits.budget_bytes <= limits.reserved_bytes:
        raise DoesNotFitError(
            f"the budget of {format_bytes(limits.budget_bytes)} is not more than the "
            f"{format_bytes(limits.reserved_bytes)} that the CUDA context takes; allow more "
            "with --memory"
        )
    chooser = chooser or Chooser(limits.kind)
    has_result = any(step.save_result for step in pipeline.steps)
    sections, costs, current = cut_into_sections(pipeline), [], scan.projections
    for number, section in enumerate(sections, start=1):
        is_stored = number < len(sections) or (result_in_memory and has_result)
        costs.append(section_cost(section, current, scan, chooser, is_stored))
        current = costs[-1].output
    last: Destination = "nothing"
    if has_result:
        last = "memory" if result_in_memory else "result"
    destinations = _destinations(costs, limits, block, last)
    held = [_held_bytes(*pair) for pair in zip(costs, destinations, strict=True)]
    scratch = [
        cost.output.nbytes if where == "scratch file" else 0
        for cost, where in zip(costs, destinations, strict=True)
    ]
    rooms = [
        Room.beside(limits, own + earlier) for own, earlier in zip(held, [0, *held], strict=False)
    ]
    _check_fit(costs, limits, rooms)
    results = [c.output.nbytes for cost in costs for c in cost.steps if c.step.save_result]
    return Plan(
        scan=f"{scan.name}: {scan.projections}",
        device=limits.device,
        budget_bytes=limits.budget_bytes,
        reserved_bytes=limits.reserved_bytes,
        host_budget_bytes=limits.host_budget_bytes,
        sections=tuple(
            _plan_section(cost, room, block, where)
            for cost, room, where in zip(costs, rooms, destinations, strict=True)
        ),
        scratch_bytes=max((sum(pair) for pair in pairwise([0, *scratch])), default=0),
        result_bytes=0 if result_in_memory else sum(results),
        notes=(*notes, *_origins(costs)),
    )


def check_supplied(pipeline: Pipeline, scan: ScanSpec) -> None:
    """Require that the scan has the flats, darks and angles that the methods cannot do without.

    Raises
    ------
    SourceError
        Naming the method and how to give what is missing.
    """
    has = {"flats": scan.flats is not None, "darks": scan.darks is not None}
    has["angles"] = scan.has_angles
    for step in pipeline.steps:
        for name in step.meta.supplied:
            parameter = step.meta.parameters[name]
            if not has.get(name, True) and parameter.default is parameter.empty:
                how = "rotation_angles" if name == "angles" else name
                raise SourceError(
                    f"{scan.name} has no {name}, which {step.meta.name} needs: give them with "
                    f"{how} in the pipeline's loader (standard_tomo), or leave the method out"
                )


def _origins(costs: list[SectionCost]) -> list[str]:
    """Say of each model that no author declared why it is from where it is."""
    steps = [cost for section in costs for cost in section.steps if cost.why]
    return [f"{cost.step.meta.name} is {cost.estimator}: {cost.why}" for cost in steps]


def _held_bytes(cost: SectionCost, destination: Destination) -> int:
    """Return the host memory that a section's output takes."""
    return cost.output.nbytes if destination == "memory" else 0


def _destinations(
    costs: list[SectionCost], limits: Limits, block: BlockChoice, last: Destination
) -> list[Destination]:
    """Decide what is kept in memory between sections, and what in a scratch file.

    Memory, if that takes no more than half of the host's budget and leaves the sections
    before and after with blocks as large as they would be without.
    """
    found: list[Destination] = []
    result_bytes = _held_bytes(costs[-1], last)
    held = 0

    def block_beside(cost: SectionCost, stores_bytes: int) -> int:
        return min(Room.beside(limits, stores_bytes).max_block(cost), wanted_block(block, cost))

    for number, (cost, following) in enumerate(pairwise(costs)):
        own = cost.output.nbytes
        after = own + (result_bytes if number == len(costs) - 2 else 0)
        fits = (
            held + own <= limits.host_budget_bytes // 2
            and 0 < block_beside(cost, held) == block_beside(cost, held + own)
            and 0 < block_beside(following, after - own) == block_beside(following, after)
        )
        found.append("memory" if fits else "scratch file")
        held = own if fits else 0
    return [*found, last]


def _check_fit(costs: list[SectionCost], limits: Limits, rooms: list[Room]) -> None:
    """Raise for the section that lacks most, if one slice of any does not fit."""
    lacking = [lacking_bytes(cost, room) for cost, room in zip(costs, rooms, strict=True)]
    worst = max(range(len(costs)), key=lambda i: lacking[i])
    if lacking[worst] > 0:
        raise does_not_fit(costs[worst], limits, rooms[worst])


def _plan_section(
    cost: SectionCost, room: Room, block: BlockChoice, destination: Destination
) -> SectionPlan:
    chosen, largest, why = choose_block(block, cost, room)
    if destination == "nothing" and not cost.on_blocks:
        why = "only the slices that side results depend on are read"
    on_device = cost.needed_bytes(chosen)
    return SectionPlan(
        steps=tuple(
            StepPlan(
                method=each.step.meta.full_name,
                parameters={name: plain(value) for name, value in each.step.parameters.items()},
                input=each.input,
                output=each.output,
                estimated_bytes=each.peak_bytes(chosen),
                estimator=each.estimator,
            )
            for each in cost.steps
        ),
        slice_dim=cost.section.slice_dim,
        n_slices=cost.n_slices,
        halo=cost.section.halo,
        block=chosen,
        max_block=largest,
        why=why,
        limited_by=cost.worst(chosen).step.meta.name,
        side_bytes=cost.side.bytes(chosen),
        estimated_bytes=on_device,
        available_bytes=room.device_bytes,
        host_bytes=room.stores_bytes
        + (on_device if room.host_bytes is None else cost.staged.bytes(chosen)),
        destination=destination,
        on_blocks=destination != "nothing" or cost.on_blocks,
    )
