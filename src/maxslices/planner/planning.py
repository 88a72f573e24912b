"""The planner: budgets and memory models in, a `Plan` out. It reads and runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..errors import DoesNotFitError, SourceError
from ..estimators import Chooser
from ..units import format_bytes
from .allocators import Allocator
from .blocks import (
    BlockChoice,
    check_block,
    choose_block,
    does_not_fit,
    first_blocks,
    lacking_bytes,
    larger_blocks,
    wanted_block,
)
from .costs import SectionCost, section_cost
from .fit import FitChoice, check_fit, fit_advice, fit_section, what_was_done, would_fit
from .limits import Limits, Room
from .pipeline import Pipeline
from .plain import plain
from .plan import Plan, SectionPlan, StepPlan
from .routes import Between, Destination, Origin, Route
from .scan import ScanSpec
from .sections import cut_into_sections


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
        routes = _Router(costs, limits, block, last, scan.in_memory, result_is_direct).routes()
        rooms = _rooms(routes, limits)
        settled = [room.settled(route) for room, route in zip(rooms, routes, strict=True)]
        return settled, rooms

    routes, rooms = arrange()
    if fit == "auto":
        found = [fit_section(*pair, block) for pair in zip(routes, rooms, strict=True)]
        costs = [
            cost if fitted is None else fitted for cost, fitted in zip(costs, found, strict=True)
        ]
        routes, rooms = arrange()
    _check_fit(routes, limits, rooms, block if fit == "none" else None)
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


def _rooms(routes: list[Route], limits: Limits) -> list[Room]:
    """Return what is left for each section beside the arrays before and after it."""
    stores = [_stores(route) for route in routes]
    rooms = []
    for number, own in enumerate(stores):
        before = stores[number - 1] if number else (0, 0)
        rooms.append(Room.beside(limits, own[0] + before[0], own[1] + before[1]))
    return rooms


def _stores(route: Route) -> tuple[int, int]:
    """Return the memory that a section's output takes as a whole: on the host, on the device."""
    n_bytes = route.cost.output.nbytes
    return (
        n_bytes if route.destination == "memory" else 0,
        route.cost.allocator.handed_out(n_bytes) if route.destination == "device" else 0,
    )


@dataclass(slots=True)
class _Router:
    """Decides where the data are between sections: as near to the device as they fit.

    On the device, in host memory, in a scratch file: the first that leaves the sections
    before and after it with blocks as large as they would be with a scratch file. On the CPU
    arrays between sections take no more than half of the budget.
    """

    costs: list[SectionCost]
    limits: Limits
    block: BlockChoice
    last: Destination
    in_memory: bool
    result_is_direct: bool

    def routes(self) -> list[Route]:
        """Return all sections with their origins and destinations."""
        found: list[Route] = []
        origin: Origin = "scan"
        held = (0, 0)
        for number in range(len(self.costs) - 1):
            destination: Between = "scratch file"
            nearer: tuple[Between, ...] = ("memory",)
            if self.limits.kind == "cuda":
                nearer = ("device", "memory")
            for candidate in nearer:
                if self._leaves_room(number, origin, candidate, held):
                    destination = candidate
                    break
            found.append(self._route(number, origin, destination))
            held = _stores(found[-1])
            origin = destination
        return [*found, self._route(len(self.costs) - 1, origin, self.last)]

    def _route(self, number: int, origin: Origin, destination: Destination) -> Route:
        is_last = number == len(self.costs) - 1
        return Route(
            self.costs[number],
            self.limits.kind,
            origin,
            destination,
            in_memory=self.in_memory,
            out_in_memory=self.result_is_direct if is_last else destination == "memory",
        )

    def _leaves_room(
        self, number: int, origin: Origin, candidate: Between, held: tuple[int, int]
    ) -> bool:
        """Tell whether a section's output fits there, and takes no block its size."""
        own = _stores(self._route(number, origin, candidate))
        if self.limits.kind == "cpu" and held[0] + own[0] > self.limits.host_budget_bytes // 2:
            return False
        last: Destination = "scratch file"
        if number == len(self.costs) - 2:
            last = self.last
        after = _stores(self._route(number + 1, "scratch file", last))
        return self._as_large(
            self._route(number, origin, candidate),
            self._route(number, origin, "scratch file"),
            held,
            own,
        ) and self._as_large(
            self._route(number + 1, candidate, last),
            self._route(number + 1, "scratch file", last),
            after,
            own,
        )

    def _as_large(
        self, route: Route, without: Route, beside: tuple[int, int], own: tuple[int, int]
    ) -> bool:
        """Tell whether a block is as large beside a store as it is with a scratch file."""
        wanted = wanted_block(self.block, route.cost)
        room = Room.beside(self.limits, *beside)
        best = room.max_block(room.settled(without))
        room = Room.beside(self.limits, beside[0] + own[0], beside[1] + own[1])
        return 0 < min(best, wanted) <= room.max_block(room.settled(route))


def _check_fit(
    routes: list[Route], limits: Limits, rooms: list[Room], advised: BlockChoice | None
) -> None:
    """Raise for the section that lacks most, if one slice of any does not fit.

    With `advised`, the block that is wanted, the error says what would make it fit.
    """
    lacking = [lacking_bytes(route, room) for route, room in zip(routes, rooms, strict=True)]
    worst = max(range(len(routes)), key=lambda i: lacking[i])
    if lacking[worst] > 0:
        error = does_not_fit(routes[worst], limits, rooms[worst])
        if advised is None:
            raise error
        advice = fit_advice(routes[worst], rooms[worst], advised)
        raise DoesNotFitError(f"{error}. {advice}")


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
