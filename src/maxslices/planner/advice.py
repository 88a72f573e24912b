"""Advice in errors and plans: what would make a section fit, or fit better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import DoesNotFitError
from .block_size import BlockChoice, ask_for, does_not_fit, lacking_bytes
from .budgets import Available, Budgets
from .placement import Placement
from .tile_and_offload import (
    WASTEFUL,
    FitChoice,
    fit_section,
    fitted_block,
    least_fit,
    what_was_done,
)

NOTHING_HELPS = "Neither tiles nor the host would make it fit"


def check_fits(
    placements: Sequence[Placement],
    budgets: Budgets,
    available: Sequence[Available],
    block: BlockChoice,
    fit: FitChoice,
) -> None:
    """Check that one slice of each section fits.

    Raises
    ------
    DoesNotFitError
        For the section that lacks most, with what would make all sections fit.
    """
    lacking = [lacking_bytes(*pair) for pair in zip(placements, available, strict=True)]
    worst = max(range(len(placements)), key=lambda i: lacking[i])
    if lacking[worst] <= 0:
        return
    short = [each for each in zip(placements, available, lacking, strict=True) if each[2] > 0]
    texts = [str(does_not_fit(placements[worst], budgets, available[worst]))]
    advice = _advice(short, budgets, block)
    if fit == "none" or advice != NOTHING_HELPS:  # with "auto" the user has tried it
        texts.append(advice)
    texts += [
        f"{each.name} with {each.spares} takes less and rounds coarsely"
        for each in placements[worst].section.steps
        if each.spares
    ]
    if budgets.kind != "cpu":
        texts.append("--device cpu runs all of it on the host")
    raise DoesNotFitError(". ".join(texts))


def _advice(
    short: Sequence[tuple[Placement, Available, int]], budgets: Budgets, block: BlockChoice
) -> str:
    """Least memory with which --fit auto makes sections fit that lack some, and how."""
    done: list[str] = []
    blocks, more_bytes = [], 0
    for placement, available, lacking in short:
        found = fit_section(placement, available, block)
        if found is not None:
            blocks.append(
                fitted_block(replace(placement, section=found, overlaps=True), available, "max")
            )
        elif (least := least_fit(placement, available, block)) is not None:
            found = least[1]
            more_bytes = max(more_bytes, least[0] - available.device_bytes)
        elif placement.device_bytes(1) > available.device_bytes:
            more_bytes = max(more_bytes, lacking)
        else:  # what is missing is memory on the host
            return NOTHING_HELPS
        done += () if found is None else what_was_done(found)
    if more_bytes == 0:
        return f"--fit auto makes it fit, with blocks of up to {min(blocks)}: {'; '.join(done)}"
    if more_bytes < max(lacking for *_, lacking in short):
        enough = ask_for(budgets.budget_bytes + more_bytes)
        return f"--fit auto makes it fit from --memory {enough} on: {'; '.join(done)}"
    return NOTHING_HELPS


def would_fit(
    placement: Placement, available: Available, block: BlockChoice, chosen: int
) -> tuple[str, ...]:
    """What would give a section larger blocks, if its halo is most of what it computes."""
    given = min(chosen + sum(placement.section.halo), placement.section.n_slices)
    if given <= WASTEFUL * chosen:
        return ()
    found = fit_section(placement, available, block)
    done = () if found is None else what_was_done(found)
    if found is None or not done:
        return ()
    size = fitted_block(replace(placement, section=found, overlaps=True), available, block)
    return (*done, f"blocks of {size} in place of {chosen}")
