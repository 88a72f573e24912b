"""What is found is run on the device, if there is one, and the fastest that fits is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...model.account import CONTEXT_BYTES
from ...model.units import format_bytes
from ..replay import Trace
from ..training_step import Step
from .inplace import set_in_place
from .reduction_plan import Plan
from .reduction_summary import ReductionSummary
from .rewrite import Treatments, treat, untreat
from .rewrite_search import Searcher, treatments_of
from .run_on_device import Measured, run_for_real

FINALISTS = 3
"""Plans that are run on the device."""
TURNS = 2
"""How often each is run; the shorter time counts."""
OVER = 1.015
"""Parts of the limit that a plan may be predicted to need, if none of the others runs.

What was seen is up to 1.4 % less than predicted.
"""


def finalists(searcher: Searcher, best: Plan) -> list[Plan]:
    """Return plans worth a run on the device: the fastest that fit, as far as is predicted.

    After these come some that need a little more, those that need least first.
    """
    limit = searcher.limit_bytes
    different: dict[str, Plan] = {}
    for plan in [best, *sorted(searcher.tried, key=lambda each: each.added_s)]:
        # None that is hopeless, unless there is no other.
        may_run = plan is best or plan.first_bytes <= OVER * limit
        if may_run and plan.trace.allocated_bytes <= limit:
            different.setdefault(str(sorted(treatments_of(plan.chosen).items())), plan)
    fitting = [plan for plan in different.values() if searcher.fits(plan)]
    others = [plan for plan in different.values() if not searcher.fits(plan)]
    others.sort(key=lambda plan: plan.needed_bytes)
    return fitting[:FINALISTS] + others[:FINALISTS]


def fastest(
    plans: Sequence[Plan], searcher: Searcher, specs: Sequence[Any], place: torch.device
) -> tuple[Plan, Measured] | None:
    """Run steps of plans under the limit; return the fastest; None if none runs.

    Those that fit take turns, as a host may be slower for a while. What needs more is tried where
    none of them runs, and there alone: of a work area that finds no room, cuDNN takes a slower
    kernel, and keeps to it in this process.
    """
    left = [plan for plan in plans if searcher.fits(plan)]
    found: dict[int, tuple[Plan, Measured]] = {}
    for _ in range(TURNS):
        for plan in list(left):
            made = ran(treatments_of(plan.chosen), searcher, specs, place)
            if made is None:
                left.remove(plan)
                found.pop(id(plan), None)
            elif id(plan) not in found or made.step_s < found[id(plan)][1].step_s:
                found[id(plan)] = plan, made
        if len(left) < 2:
            break
    if found:
        return min(found.values(), key=lambda each: each[1].step_s)
    for plan in plans:
        if not searcher.fits(plan):
            made = ran(treatments_of(plan.chosen), searcher, specs, place)
            if made is not None:
                return plan, made
    return None


def ran(
    treatments: Treatments, searcher: Searcher, specs: Sequence[Any], place: torch.device
) -> Measured | None:
    """Run steps with treatments under the limit; None if memory does not suffice."""
    model = searcher.step.model
    set_in_place(model, searcher.in_place)
    treat(model, treatments)
    try:
        return run_for_real(searcher.step, specs, place, searcher.limit_bytes or None)
    finally:
        untreat(model)
        set_in_place(model, searcher.in_place, False)


def unreduced(
    summary: ReductionSummary, step: Step, specs: Sequence[Any], place: torch.device
) -> Measured | None:
    """Run the unreduced step, if there is room for it.

    That is before anything is run under a limit: of a work area that finds no room there,
    cuDNN takes another kernel, and keeps to it from then on.
    """
    free_bytes = torch.cuda.mem_get_info(place)[0] + torch.cuda.memory_reserved(place)
    if summary.needed_before_bytes >= free_bytes:
        return None
    return run_for_real(step, specs, place)


def confirm(summary: ReductionSummary, made: Measured, whole: Measured | None) -> None:
    """Fill in what was measured, of the unreduced step too if it ran."""
    summary.measured_after_bytes = made.allocated_bytes
    summary.measured_step_s = made.step_s
    if whole is not None:
        summary.measured_before_bytes = whole.allocated_bytes
        summary.measured_step_before_s = whole.step_s
        summary.predicted_step_s = whole.step_s + summary.predicted_added_s


def why_not(summary: ReductionSummary, after: Trace) -> str:
    """Return why nothing fits: the smallest that would do, and what holds it up."""
    if summary.fits:
        return (
            f"the reduced step was predicted to need {format_bytes(summary.needed_after_bytes)} "
            f"and did not run within {format_bytes(summary.limit_bytes)}: the model is as it was; "
            f"reduce it for {format_bytes(int(0.95 * summary.limit_bytes) + CONTEXT_BYTES)}"
        )
    peak = after.peak
    lost = summary.needed_after_bytes - after.peak_bytes
    where = f"in the {peak.stage} of {peak.module}" if peak.module else f"in the {peak.stage}"
    return (
        f"no plan fits into {format_bytes(summary.limit_bytes)} ({summary.origin}): the smallest "
        f"found needs {format_bytes(summary.needed_after_bytes)} for tensors, a card of "
        f"{format_bytes(summary.needed_after_bytes + CONTEXT_BYTES)}; its peak is {where}, held "
        f"by {describe_holders(summary)}, and {format_bytes(lost)} are lost between blocks. "
        "Smaller inputs, a smaller batch, autocast, or an optimizer with less state would help"
    )


def describe_holders(summary: ReductionSummary) -> str:
    """Return what holds the peak, largest first."""
    total = sum(summary.holds_peak.values())
    return ", ".join(
        f"{name} {format_bytes(size)}"
        for name, size in sorted(summary.holds_peak.items(), key=lambda item: -item[1])
        if size > total // 50
    )
