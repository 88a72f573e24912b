"""Make plans from memory models and budgets, without opening, running or measuring anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..core.block_memory import Between, Destination, Origin
from ..core.memory_model import MemoryModel
from ..core.units import format_bytes, format_duration
from ..errors import DoesNotFitError, EstimatorError
from .block_size import (
    BlockChoice,
    check_block,
    check_block_fits,
    check_fits,
    choose_block,
    wanted_block,
)
from .placement import Available, Budgets, Placement
from .plan import MadeFor, Plan
from .section_model import SectionModel, StepModel
from .section_plan import LONG_S, SectionPlan, StepPlan

KEPT_SHARE = (3, 4)
"""Share of the free host memory that may hold the first part of a scratch file between two
sections. The rest is for the system's page cache: writers block only when a fifth of the memory
waits to be written (``vm.dirty_ratio``), and disks are far slower."""


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
        Name of the scan, for users.
    in_memory : bool
        Whether the scan is an array that the device can use, or copy blocks from.
    block : int, "auto" or "max"
        Slices in a block: a number, enough to keep the device busy, or as many as fit.
    result_in_memory : bool
        Whether the result is an array in memory instead of files.
    result_is_direct : bool
        Whether the device can copy to this array.
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
        If one slice, or a block of the given size, needs more than the budget.
    EstimatorError
        If a method's estimator fails.
    """
    check_block(block)
    if budgets.budget_bytes < 1:
        raise DoesNotFitError(
            f"no memory is free on {budgets.device}: end other programs, or raise the limits of "
            "this one"
        )
    if budgets.budget_bytes <= budgets.reserved_bytes:
        raise DoesNotFitError(
            f"the budget of {format_bytes(budgets.budget_bytes)} is not more than the "
            f"{format_bytes(budgets.reserved_bytes)} of the CUDA context: allow more with --memory"
        )
    sections = [replace(each, writes_results=not result_in_memory) for each in sections]
    last: Destination = "nothing"
    if any(step.saves_result for section in sections for step in section.steps):
        last = "memory" if result_in_memory else "result"

    search = PlacementSearch(list(sections), budgets, block, last, in_memory, result_is_direct)
    placements = search.placements()
    available = available_after_stores(placements, budgets)
    pairs = zip(available, placements, strict=True)
    placements = [placement.with_best_overlap(left) for left, placement in pairs]
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
        notes=(*notes, *origin_notes(sections), *notes_on_time(sections, planned)),
        made_for=made_for or MadeFor(),
    )


def _keep_on_host(sections: Sequence[SectionPlan], budgets: Budgets) -> tuple[SectionPlan, ...]:
    """Keep scratch files in host memory if sections run on GPUs.

    One process keeps as much as fits. Several processes keep a whole file or nothing: a stopped run
    resumes only from files on disk, and repeating the rest would take long.
    """
    kept_sections = list(sections)
    if budgets.kind != "cuda" or not budgets.shares_memory:
        return tuple(kept_sections)
    numerator, denominator = KEPT_SHARE
    n_processes = budgets.n_workers or 1
    for i, (own, following) in enumerate(pairwise(sections)):
        if own.destination == "scratch file":
            used = max(kept_sections[i].host_bytes, following.host_bytes)
            left = n_processes * max(0, budgets.host_budget_bytes - used)
            kept = min(left * numerator // denominator, own.output.nbytes)
            if budgets.n_workers is not None and kept < own.output.nbytes:
                continue
            for j, held in ((i, kept_sections[i]), (i + 1, following)):
                kept_sections[j] = replace(
                    held, host_bytes=held.host_bytes + -(-kept // n_processes)
                )
            kept_sections[i] = replace(kept_sections[i], kept_bytes=kept)
    return tuple(kept_sections)


def origin_notes(sections: Sequence[SectionModel]) -> list[str]:
    """Notes on the origin of each model that is not declared."""
    notes: list[str] = []
    methods_of: dict[str, list[str]] = {}
    for step in (step for section in sections for step in section.steps if step.why):
        why, *further = step.why.splitlines()
        notes.append(f"{step.name} is {step.estimator}: {why}")
        for text in further:
            methods_of.setdefault(text, []).append(step.name)
    return notes + [
        f"{', '.join(dict.fromkeys(names))}: {text}" for text, names in methods_of.items()
    ]


def _plan_section(placement: Placement, available: Available, block: BlockChoice) -> SectionPlan:
    section = placement.section
    chosen, largest, why = choose_block(block, placement, available)
    if not placement.fits(chosen, available):  # the user's block fits only without overlap
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


def available_after_stores(placements: list[Placement], budgets: Budgets) -> list[Available]:
    """Memory left for each section after the arrays before and after it."""
    stores = [_stores(placement) for placement in placements]
    available = []
    for number, own in enumerate(stores):
        before = stores[number - 1] if number else (0, 0)
        available.append(Available.after_stores(budgets, own[0] + before[0], own[1] + before[1]))
    return available


def _stores(placement: Placement) -> tuple[int, int]:
    """Memory of a section's whole output: on the host, on the device."""
    n_bytes = placement.section.output.nbytes
    return (
        n_bytes if placement.destination == "memory" else 0,
        placement.section.allocator.taken_bytes(n_bytes)
        if placement.destination == "device"
        else 0,
    )


@dataclass(slots=True)
class PlacementSearch:
    """Chooses the places of arrays between sections, as near to the device as they fit.

    The places are the device, host memory and a scratch file. The nearest one is chosen for which
    the blocks of the sections before and after are as large as with a scratch file. On the CPU
    arrays between sections take at most half of the budget. Several processes share no memory, so
    they use scratch files.
    """

    sections: list[SectionModel]
    """The sections, in order."""
    budgets: Budgets
    """Device and budgets."""
    block: BlockChoice
    """Slices in a block, as set by the user."""
    last: Destination
    """Destination of the last section's output."""
    in_memory: bool
    """Whether the scan is an array that the device can use, or copy blocks from."""
    result_is_direct: bool
    """Whether the device can copy to the array of the result."""

    def placements(self) -> list[Placement]:
        """All sections with their origins and destinations."""
        chosen: list[Placement] = []
        origin: Origin = "scan"
        held = (0, 0)
        for number in range(len(self.sections) - 1):
            destination: Between = "scratch file"
            nearer: tuple[Between, ...] = ("memory",)
            if self.budgets.kind == "cuda":
                nearer = ("device", "memory")
            if self.budgets.n_workers is not None:
                nearer = ()
            for candidate in nearer:
                if self.can_be_held(number, origin, candidate, held):
                    destination = candidate
                    break
            chosen.append(self._placement(number, origin, destination))
            held = _stores(chosen[-1])
            origin = destination
        return [*chosen, self._placement(len(self.sections) - 1, origin, self.last)]

    def _placement(self, number: int, origin: Origin, destination: Destination) -> Placement:
        is_last = number == len(self.sections) - 1
        return Placement(
            self.sections[number],
            origin,
            destination,
            self.budgets.n_threads,
            in_memory=self.in_memory,
            out_in_memory=self.result_is_direct if is_last else destination == "memory",
            n_workers=self.budgets.n_workers or 1,
        )

    def can_be_held(
        self, number: int, origin: Origin, candidate: Between, held: tuple[int, int]
    ) -> bool:
        """True if a section's output fits there without making blocks smaller."""
        own = _stores(self._placement(number, origin, candidate))
        if self.budgets.kind == "cpu" and held[0] + own[0] > self.budgets.host_budget_bytes // 2:
            return False
        last: Destination = "scratch file"
        if number == len(self.sections) - 2:
            last = self.last
        after = _stores(self._placement(number + 1, "scratch file", last))
        return self._as_large(
            self._placement(number, origin, candidate),
            self._placement(number, origin, "scratch file"),
            held,
            own,
        ) and self._as_large(
            self._placement(number + 1, candidate, last),
            self._placement(number + 1, "scratch file", last),
            after,
            own,
        )

    def _as_large(
        self,
        placement: Placement,
        without: Placement,
        neighbour: tuple[int, int],
        own: tuple[int, int],
    ) -> bool:
        """True if the block next to a store is as large as with a scratch file."""
        wanted = wanted_block(self.block, placement.section, placement.n_workers)
        available = Available.after_stores(self.budgets, *neighbour)
        best = without.with_best_overlap(available).max_block(available)
        available = Available.after_stores(
            self.budgets, neighbour[0] + own[0], neighbour[1] + own[1]
        )
        return 0 < min(best, wanted) <= placement.with_best_overlap(available).max_block(available)


_N_AMOUNTS = 64
"""Number of amounts of memory for which an estimator is called again, both below the memory of a
block and from there to the available memory. It detects dips of a 64th of these ranges. Of 72
invented estimators that rise and fall, 55 were already inconsistent while making a model. Of 4,011
further ones, only these calls detected 106."""


def check_planned(models: Sequence[SectionModel], planned: Sequence[SectionPlan]) -> None:
    """Call the authors' estimators again for the blocks of a plan.

    A model is made from few calls, which may not reveal that an estimator is inconsistent: more
    memory must never hold fewer slices. A plan depends on two amounts of memory: the model's bytes
    for a block, and these bytes plus all memory that the plan leaves free. If the estimator is
    right for both, the plan stays within its budget. Further amounts are tested as well, and
    inconsistent estimators are rejected.

    Parameters
    ----------
    models : sequence of SectionModel
        Models of the plan.
    planned : sequence of SectionPlan
        The plan's sections, in the same order.

    Raises
    ------
    EstimatorError
        Naming the method and two inconsistent results.
    """
    for model, section in zip(models, planned, strict=True):
        extra = sum(section.halo)
        blocks = {section.block}
        blocks |= {section.n_slices % block for block in blocks} - {0}
        widened = sorted({min(block + extra, section.n_slices) for block in blocks})
        for step in model.steps:
            if step.estimator.startswith("recorded") and not step.n_sampled:
                _check_record(step, section.slice_dim, widened[-1], section.block)
            if step.declared is None or not step.estimator.startswith("declared"):
                continue
            free = section.available_bytes - section.estimated_bytes
            sizes = [step.n_sampled] if step.n_sampled else widened
            _check_blocks(step.method, step.declared(), sizes, free, section.available_bytes)


def _check_record(step: StepModel, slice_dim: int, n_slices: int, block: int) -> None:
    """Check that a record has at least the bytes of the method's input, which a peak includes.

    Other users may write to the folder of the records, and with a wrong record a plan could exceed
    its budget by any factor.
    """
    input_bytes = step.input.with_slices(slice_dim, n_slices).nbytes
    recorded_bytes = step.memory.bytes(block)
    if recorded_bytes < input_bytes:
        raise EstimatorError(
            f"{step.method}: its record has {format_bytes(recorded_bytes)} for {n_slices} slices, "
            f"but the slices alone take {format_bytes(input_bytes)}: measure it again with "
            "--estimator probed, or remove the record (maxslices records)"
        )


def _check_blocks(
    method: str, model: MemoryModel, blocks: Sequence[int], free_bytes: int, available_bytes: int
) -> None:
    """Check the bytes of a model for blocks in increasing order."""
    needed = [model.bytes(block) for block in blocks]
    if model.inverse is not None:  # it raises for inconsistent results
        for n_bytes in needed:
            model.inverse(n_bytes + free_bytes)
        least, last = min(needed), max(*needed, available_bytes)
        for begin, end in ((0, least), (least, last)):
            for i in range(_N_AMOUNTS + 1):
                model.inverse(max(1, begin + (end - begin) * i // _N_AMOUNTS))
    most = max(needed)
    if most > needed[-1] and most > available_bytes:
        raise EstimatorError(
            f"{method}: its estimator gives {format_bytes(most)} for {blocks[needed.index(most)]} "
            f"slices, but {format_bytes(needed[-1])} for {blocks[-1]}: more slices can never take "
            f"less memory, and {format_bytes(available_bytes)} are available"
        )


def notes_on_time(sections: Sequence[SectionModel], planned: Sequence[SectionPlan]) -> list[str]:
    """Notes on methods that will take long, as far as they were timed."""
    notes: list[str] = []
    for section, plan in zip(sections, planned, strict=True):
        for step in section.steps:
            n_blocks = 1 if step.n_sampled else -(-plan.n_slices // plan.block)
            n_slices = step.n_sampled or plan.n_slices + n_blocks * sum(plan.halo)
            call_s, slice_s = step.pace_s or (0.0, 0.0)
            whole_s = n_blocks * call_s + n_slices * slice_s
            if whole_s >= LONG_S:
                notes.append(
                    f"{step.name} takes about {format_duration(whole_s)}: "
                    f"{format_duration(call_s)} for each of {n_blocks} blocks and "
                    f"{format_duration(slice_s)} for each of {n_slices} slices, by timing a few"
                )
    return notes
