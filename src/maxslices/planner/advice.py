"""What an error or a plan says would make a section fit, or fit better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import DoesNotFitError
from .block_size import BlockChoice, ask_for, does_not_fit, lacking_bytes
from .budgets import Limits, Room
from .placement import Route
from .tile_and_offload import (
    WASTEFUL,
    FitChoice,
    fit_section,
    fitted_block,
    least_fit,
    what_was_done,
)

NOTHING_HELPS = "Neither tiles nor the host would make it fit"


def check_room(
    routes: Sequence[Route],
    limits: Limits,
    rooms: Sequence[Room],
    block: BlockChoice,
    fit: FitChoice,
) -> None:
    """Require that one slice of each section fits.

    Raises
    ------
    DoesNotFitError
        For the section that lacks most, with what would make all of them fit.
    """
    lacking = [lacking_bytes(*pair) for pair in zip(routes, rooms, strict=True)]
    worst = max(range(len(routes)), key=lambda i: lacking[i])
    if lacking[worst] <= 0:
        return
    short = [
        (route, room, n_bytes)
        for route, room, n_bytes in zip(routes, rooms, lacking, strict=True)
        if n_bytes > 0
    ]
    texts = [str(does_not_fit(routes[worst], limits, rooms[worst]))]
    advice = _advice(short, limits, block)
    if fit == "none" or advice != NOTHING_HELPS:  # or else it was asked for, and is no news
        texts.append(advice)
    texts += [
        f"{each.step.meta.name} with half_precision: true takes less and rounds coarsely"
        for each in routes[worst].cost.steps
        if each.step.meta.merged(**each.request.parameters).get("half_precision") is False
    ]
    if limits.kind != "cpu":
        texts.append("--device cpu runs all of it on the host")
    raise DoesNotFitError(". ".join(texts))


def _advice(short: Sequence[tuple[Route, Room, int]], limits: Limits, block: BlockChoice) -> str:
    """Say from how much memory on --fit makes sections fit, of which each lacks some."""
    done: list[str] = []
    blocks, more_bytes = [], 0
    for route, room, lacking in short:
        found = fit_section(route, room, block)
        if found is not None:
            blocks.append(fitted_block(replace(route, cost=found, overlaps=True), room, "max"))
        elif (least := least_fit(route, room, block)) is not None:
            found = least[1]
            more_bytes = max(more_bytes, least[0] - room.device_bytes)
        elif route.device_bytes(1) > room.device_bytes:
            more_bytes = max(more_bytes, lacking)
        else:  # what is missing is memory on the host
            return NOTHING_HELPS
        done += () if found is None else what_was_done(found)
    if more_bytes == 0:
        return f"--fit auto makes it fit, with blocks of up to {min(blocks)}: {'; '.join(done)}"
    if more_bytes < max(lacking for *_, lacking in short):
        enough = ask_for(limits.budget_bytes + more_bytes)
        return f"--fit auto makes it fit from --memory {enough} on: {'; '.join(done)}"
    return NOTHING_HELPS


def would_fit(route: Route, room: Room, block: BlockChoice, chosen: int) -> tuple[str, ...]:
    """Say what would let a section have larger blocks whose halo is most of what it computes."""
    given = min(chosen + sum(route.cost.section.halo), route.cost.n_slices)
    if given <= WASTEFUL * chosen:
        return ()
    found = fit_section(route, room, block)
    done = () if found is None else what_was_done(found)
    if found is None or not done:
        return ()
    size = fitted_block(replace(route, cost=found, overlaps=True), room, block)
    return (*done, f"blocks of {size} in place of {chosen}")
