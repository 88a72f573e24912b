"""The planner: budgets and memory models in, a `Plan` out. It reads and runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ..errors import DoesNotFitError, SourceError
from ..estimate import Chooser
from ..model.allocators import Allocator
from ..model.json_values import plain
from ..model.units import format_bytes
from ..pipeline.pipeline import Pipeline
from ..pipeline.scan_spec import ScanSpec
from ..pipeline.sections import cut_into_sections
from .advice import check_room, would_fit
from .block_size import BlockChoice, check_block, choose_block, first_blocks, larger_blocks
from .budgets import Limits, Room
from .costs import SectionCost, section_cost
from .place_sections import Router, rooms_of
from .placement import Destination, Route
from .plan import Plan, SectionPlan, StepPlan
from .tile_and_offload import FitChoice, check_fit, fit_section, what_was_done


def make_plan(
    pipeline: Pipeline,
    scan: ScanSpec,
    limits: Limits,
    *,
    chooser: Chooser | None = None,
    block: BlockChoice = "auto",
    fit: FitChoice = "none",
    result_in_memory: bool = False,
    result_is_direct: bool = False,
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
    fit : {"none", "auto"}
        Whether to cut slices into tiles, or move methods or side data to the host, where a
        section does not fit otherwise, or its halo is most of what it computes.
    result_in_memory : bool
        Whether the result is kept as an array in memory, and nothing is written.
    result_is_direct : bool
        Whether the device can copy to that array itself.
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
    check_fit(fit)
    check_supplied(pipeline, scan)
    if limits.budget_bytes <= limits.reserved_bytes:
        raise DoesNotFitError(
            f"the budget of {format_bytes(limits.budget_bytes)} is not more than the "
            f"{format_bytes(limits.reserved_bytes)} that the CUDA context takes; allow more "
            "with --memory"
        )
    chooser = chooser or Chooser(limits.kind)
    with_torch = any(step.meta.array_module == "torch" for step in pipeline.steps)
    allocator = Allocator(limits.kind, with_torch)
    has_result = any(step.save_result for step in pipeline.steps)
    sections, costs, current = cut_into_sections(pipeline), [], scan.projections
    for section in sections:
        costs.append(section_cost(section, current, scan, chooser, allocator, not result_in_memory))
        current = costs[-1].output
    last: Destination = "nothing"
    if has_result:
        last = "memory" if result_in_memory else "result"

    def arrange() -> tuple[list[Route], list[Room]]:
        routes = Router(costs, limits, block, last, scan.in_memory, result_is_direct).routes()
        rooms = rooms_of(routes, limits)
        settled = [room.settled(route) for room, route in zip(rooms, routes, strict=True)]
        return settled, rooms

    routes, rooms = arrange()
    if fit == "auto":
        found = [fit_section(*pair, block) for pair in zip(routes, rooms, strict=True)]
        costs = [
            cost if fitted is None else fitted for cost, fitted in zip(costs, found, strict=True)
        ]
        routes, rooms = arrange()
    check_room(routes, limits, rooms, block, fit)
    scratch = [r.cost.output.nbytes if r.destination == "scratch file" else 0 for r in routes]
    return Plan(
        scan=f"{scan.name}: {scan.projections}",
        device=limits.device,
        budget_bytes=limits.budget_bytes,
        reserved_bytes=limits.reserved_bytes,
        host_budget_bytes=limits.host_budget_bytes,
        sections=_with_kept(
            [
                _plan_section(route, room, block, fit)
                for route, room in zip(routes, rooms, strict=True)
            ],
            limits,
        ),
        scratch_bytes=max((sum(pair) for pair in pairwise([0, *scratch])), default=0),
        result_bytes=sum(output.nbytes for cost in costs for output in cost.kept),
        notes=(*notes, *_origins(costs)),
    )


def _with_kept(sections: Sequence[SectionPlan], limits: Limits) -> tuple[SectionPlan, ...]:
    """Let a part of what goes to scratch files stay in host memory, where a card is the device.

    Disks are slower by far. Three quarters of what both sections leave of the budget are used:
    a system keeps what it writes in memory that nobody has, and lets writers wait without.
    """
    found = list(sections)
    for i, (own, following) in enumerate(pairwise(sections)):
        if limits.kind == "cuda" and own.destination == "scratch file":
            used = max(found[i].host_bytes, following.host_bytes)
            kept = min(max(0, limits.host_budget_bytes - used) * 3 // 4, own.output.nbytes)
            for j, held in ((i, found[i]), (i + 1, following)):
                found[j] = replace(held, host_bytes=held.host_bytes + kept)
            found[i] = replace(found[i], kept_bytes=kept)
    return tuple(found)


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
    notes = []
    for cost in (cost for section in costs for cost in section.steps if cost.why):
        name, (why, *others) = cost.step.meta.name, cost.why.splitlines()
        notes.append(f"{name} is {cost.estimator}: {why}")
        notes += [f"{name}: {other}" for other in others]
    return notes


def _plan_section(route: Route, room: Room, block: BlockChoice, fit: FitChoice) -> SectionPlan:
    cost = route.cost
    chosen, largest, why = choose_block(block, route, room)
    if not room.fits(route, chosen):  # as asked for, and only without others on their way
        route = route.in_turns()
    if route.destination == "nothing" and not cost.on_blocks:
        why = "only the slices that side results depend on are read"
    on_device = route.device_bytes(chosen)
    larger = larger_blocks(route, chosen, room) if block == "auto" else ()
    firsts = first_blocks(route, chosen, room) if block == "auto" else ()
    if firsts:
        why += f"; {', '.join(map(str, firsts))} to begin with"
    largest_block = max([chosen, *(each for each, _ in larger)])
    return SectionPlan(
        steps=tuple(
            StepPlan(
                method=each.step.meta.full_name,
                parameters={name: plain(value) for name, value in each.step.parameters.items()},
                input=each.input,
                output=each.output,
                estimated_bytes=each.peak_bytes(chosen),
                estimator=each.estimator,
                tile=None if each.tiling is None else each.tiling.tile,
                tile_halo=(0, 0) if each.tiling is None else each.tiling.halo,
                on_host=each.on_host,
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
        + (on_device if room.host_bytes is None else route.host_bytes(largest_block)),
        stored_bytes=room.stored_bytes,
        origin=route.origin,
        destination=route.destination,
        overlaps=route.overlaps,
        first_blocks=firsts,
        larger=larger,
        on_blocks=route.destination != "nothing" or cost.on_blocks,
        side_on_host=cost.host_side.bytes(1) > 0,
        fitted=what_was_done(cost),
        would_fit=would_fit(route, room, block, chosen) if fit == "none" else (),
    )
