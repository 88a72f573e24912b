"""Plans from memory models and budgets: `make_plan`. Nothing is opened, run or measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ..core.block_memory import Destination
from ..core.units import format_bytes
from ..errors import DoesNotFitError
from ..estimate.section_model import SectionModel, StepModel
from .block_size import BlockChoice, check_block, check_block_fits, check_fits, choose_block
from .budgets import Available, Budgets
from .long_steps import notes_on_time
from .place_sections import PlacementSearch, available_beside_stores
from .placement import Placement
from .plan import MadeFor, Plan
from .section_plan import SectionPlan, StepPlan

KEPT_SHARE = (3, 4)
"""Share of the host memory that two sections leave free in which the first bands of the scratch
file between them stay. The rest is for the system, which lets writers go on until a fifth of
the memory waits to be written (``vm.dirty_ratio``); disks are far slower."""


def make_plan(
    sections: Sequence[SectionModel],
    budgets: Budgets,
    *,
    scan: str = "a scan",
    in_memory: bool = False,
    block: BlockChoice = "auto",
    result_in_memory: bool = False,
    result_is_direct: bool = False,
    notes: Sequence[str] = (),
    made_for: MadeFor | None = None,
) -> Plan:
    """Plan the sections of a pipeline within budgets.

    Parameters
    ----------
    sections : sequence of SectionModel
        Memory models of the methods, in order.
    budgets : Budgets
        Device and budgets.
    scan : str
        What is read, for people.
    in_memory : bool
        Whether blocks of the scan can be used, or copied to the device, from where they lie.
    block : int, "auto" or "max"
        Slices in a block: as many as asked for, enough to keep the device busy, or as many
        as fit.
    result_in_memory : bool
        Whether the result is kept as an array in memory, and nothing is written.
    result_is_direct : bool
        Whether the device can copy to that array itself.
    notes : sequence of str
        Assumptions to print with the plan.
    made_for : MadeFor, optional
        Scan, pipeline, device and versions that the models are for.

    Returns
    -------
    Plan

    Raises
    ------
    DoesNotFitError
        If one slice, or a block of the size asked for, needs more than the budget.
    EstimatorError
        If a method's estimator fails when it is asked.
    """
    check_block(block)
    if budgets.budget_bytes < 1:
        raise DoesNotFitError(
            f"no memory is free on {budgets.device}: end other programs, or raise this one's limits"
        )
    if budgets.budget_bytes <= budgets.reserved_bytes:
        raise DoesNotFitError(
            f"the budget of {format_bytes(budgets.budget_bytes)} is not more than the "
            f"{format_bytes(budgets.reserved_bytes)} that the CUDA context takes; allow more "
            "with --memory"
        )
    sections = [replace(each, writes_results=not result_in_memory) for each in sections]
    last: Destination = "nothing"
    if any(step.saves_result for section in sections for step in section.steps):
        last = "memory" if result_in_memory else "result"

    search = PlacementSearch(list(sections), budgets, block, last, in_memory, result_is_direct)
    placements = search.placements()
    available = available_beside_stores(placements, budgets)
    pairs = zip(available, placements, strict=True)
    placements = [left.settled(placement) for left, placement in pairs]
    check_fits(placements, budgets, available)
    check_block_fits(placements, available, block)
    planned = _keep_on_host(
        [
            _plan_section(placement, left, block)
            for placement, left in zip(placements, available, strict=True)
        ],
        budgets,
    )
    scratch = [
        each.output.nbytes - each.kept_bytes if each.destination == "scratch file" else 0
        for each in planned
    ]
    return Plan(
        scan=scan,
        device=budgets.device,
        budget_bytes=budgets.budget_bytes,
        reserved_bytes=budgets.reserved_bytes,
        host_budget_bytes=budgets.host_budget_bytes,
        sections=planned,
        scratch_bytes=max((sum(pair) for pair in pairwise([0, *scratch])), default=0),
        result_bytes=sum(output.nbytes for section in sections for output in section.saved),
        notes=(*notes, *_origins(sections), *notes_on_time(sections, planned)),
        made_for=made_for or MadeFor(),
    )


def _keep_on_host(sections: Sequence[SectionPlan], budgets: Budgets) -> tuple[SectionPlan, ...]:
    """Keep scratch files in host memory beside GPUs.

    For one process as much of them as there is memory for. For several all or nothing: a run that
    is stopped goes on from files on disk alone, and what does not fit in memory takes long to do
    again.
    """
    found = list(sections)
    if budgets.kind != "cuda" or not budgets.shares_memory:
        return tuple(found)
    numerator, denominator = KEPT_SHARE
    n_processes = budgets.n_workers or 1
    for i, (own, following) in enumerate(pairwise(sections)):
        if own.destination == "scratch file":
            used = max(found[i].host_bytes, following.host_bytes)
            left = n_processes * max(0, budgets.host_budget_bytes - used)
            kept = min(left * numerator // denominator, own.output.nbytes)
            if budgets.n_workers is not None and kept < own.output.nbytes:
                continue
            for j, held in ((i, found[i]), (i + 1, following)):
                found[j] = replace(held, host_bytes=held.host_bytes + -(-kept // n_processes))
            found[i] = replace(found[i], kept_bytes=kept)
    return tuple(found)


def _origins(sections: Sequence[SectionModel]) -> list[str]:
    """Notes on the origin of each model that no author declared."""
    notes: list[str] = []
    of_others: dict[str, list[str]] = {}
    for step in (step for section in sections for step in section.steps if step.why):
        why, *others = step.why.splitlines()
        notes.append(f"{step.name} is {step.estimator}: {why}")
        for other in others:
            of_others.setdefault(other, []).append(step.name)
    said = [f"{', '.join(dict.fromkeys(names))}: {text}" for text, names in of_others.items()]
    return notes + said


def _plan_section(placement: Placement, available: Available, block: BlockChoice) -> SectionPlan:
    section = placement.section
    chosen, largest, why = choose_block(block, placement, available)
    if not available.fits(placement, chosen):  # a size asked for that fits only alone
        placement = placement.in_turns()
    if placement.destination == "nothing" and not section.runs_on_blocks:
        why = "only the slices that side results depend on are read"
    on_device = placement.device_bytes(chosen)
    on_host = on_device
    if available.host_bytes is not None:
        on_host = placement.host_bytes(chosen)
    return SectionPlan(
        steps=tuple(_plan_step(each, chosen) for each in section.steps),
        slice_dim=section.slice_dim,
        n_slices=section.n_slices,
        halo=section.halo,
        block=chosen,
        max_block=largest,
        why=why,
        limiting_step=section.highest(chosen).index,
        side_bytes=section.side.bytes(chosen),
        estimated_bytes=on_device,
        available_bytes=available.device_bytes,
        host_bytes=available.stores_bytes + on_host,
        stored_bytes=available.stored_bytes,
        origin=placement.origin,
        destination=placement.destination,
        overlaps=placement.overlaps,
        on_blocks=placement.destination != "nothing" or section.runs_on_blocks,
        multiple=section.block_multiple,
    )


def _plan_step(step: StepModel, block: int) -> StepPlan:
    return StepPlan(
        index=step.index,
        method=step.method,
        parameters=dict(step.parameters),
        planned_values=dict(step.planned_values),
        input=step.input,
        output=step.output,
        estimated_bytes=step.peak_bytes(block),
        estimator=step.estimator,
    )
