"""Search for the cheapest plan that fits: choose by arithmetic, replay, lower the target.

The knapsack proposes the cheapest set of rewrites below a target, and a replay gives its need. The
target is lowered until no cheaper plan can follow. The search is bounded by a number of replays,
not by the clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ...core.memory_model import last_true
from ..nn_errors import ModelArgumentError, RewriteError
from ..replay import CachingAllocator, Trace, TraceError, Workspaces
from ..replay.caching_allocator import ROUND_BYTES
from ..replay.expandable_segments import ExpandableAllocator, least_expandable_limit
from ..replay.measure_workspaces import measured_workspaces
from ..replay.trace import Steady, steady
from ..step.model_step import ModelStep
from .candidates import Candidate, candidates, layer_candidates
from .gradient_check import GradientCheck
from .knapsack import Knapsack
from .rewrite import Rewrite, apply_rewrites
from .study import ModuleOrder, study_step
from .times import (
    DeviceRates,
    Flops,
    ForwardTimes,
    StepTimes,
    flops_by_module,
    measure_times,
    price,
)


@dataclass(slots=True)
class ReductionPlan:
    """Rewrites, with the replay of two steps."""

    chosen: list[Candidate]
    trace: Trace
    limit_bytes: InitVar[int] = 0
    """Limit of the allocator, under which all steps must run."""
    added_s: float = 0.0
    """Added time of a step, including memory that is returned to the device and taken again."""
    needed_bytes: int = field(init=False)
    """Smallest limit under which all steps run. Below it, memory for workspaces may be lacking, and
    cuDNN's kernels without them are several times slower."""
    later: Steady = field(init=False)
    """Effect of the limit on further steps."""

    def __post_init__(self, limit_bytes: int) -> None:
        trace = self.trace
        if has_expandable_segments():
            self.needed_bytes = least_expandable_limit(trace.requests(), trace.peak_bytes)
        else:
            self.needed_bytes = trace.needed_bytes
        self.later = Steady(False)
        if self.needed_bytes <= limit_bytes:
            self.later = steady(trace, allocator(limit_bytes))
            if not self.later.runs:
                self.needed_bytes = later_bytes(trace, limit_bytes)

    @property
    def rewrites(self) -> dict[str, Rewrite]:
        """Rewrites by path of the module."""
        return {candidate.path: candidate.rewrite for candidate in self.chosen}


def has_expandable_segments() -> bool:
    """True if an environment variable tells torch's allocator to use expandable segments."""
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    return any("expandable_segments:True" in os.environ.get(name, "") for name in names)


def allocator(limit_bytes: int | None = None) -> CachingAllocator | ExpandableAllocator:
    """Simulation of the allocator of this process."""
    kind = ExpandableAllocator if has_expandable_segments() else CachingAllocator
    return kind(limit_bytes)


def later_bytes(trace: Trace, too_low_bytes: int) -> int:
    """Limit under which all steps run, given one that is too low."""
    free = allocator()
    steady(trace, free)
    part = max(too_low_bytes // 256, ROUND_BYTES)

    def fails(limit: int) -> bool:
        return not steady(trace, allocator(limit * part)).runs

    low, high = too_low_bytes // part, -(-free.peak_reserved_bytes // part) + 1
    while fails(high):  # expandable segments need room for a whole block
        low, high = high, 2 * high
    return (last_true(fails, low, high) + 1) * part


FINALISTS = 3
"""Number of plans that are run on a device."""
STEP = 0.01
"""Part of the limit by which the target is lowered from one plan to the next."""


@dataclass(slots=True)
class PlanSearch:
    """Search for one model and one limit, with all plans that it replayed."""

    step: ModelStep
    inputs: Sequence[Any]
    limit_bytes: int
    """Limit of the allocator."""
    max_replays: int
    """Number of replays after which the best plan so far is taken."""
    means: Sequence[str] = ()
    """Kinds of rewrites that may be used."""
    device: torch.device | None = None
    """Device that measures workspaces and times, if there is one."""
    times: ForwardTimes = field(init=False)
    step_times: StepTimes = field(init=False)
    knapsack: Knapsack = field(init=False)
    candidates: list[Candidate] = field(default_factory=list)
    flops: Mapping[str, Flops] = field(default_factory=dict)
    """Operations of the forward pass of each module."""
    workspaces: Workspaces = field(default_factory=Workspaces.allowance)
    measuring_s: float = 0.0
    """Time spent measuring on the device."""
    n_replays: int = 0
    notes: list[str] = field(default_factory=list)
    tried: list[ReductionPlan] = field(default_factory=list)
    """All plans that were replayed, the unreduced step first."""

    def __post_init__(self) -> None:
        rates = DeviceRates.stated(self.step.amp)
        self.times = ForwardTimes(rates, origin=rates.origin)

    def trace(self, rewrites: Mapping[str, Rewrite]) -> Trace:
        """Replay two steps of the rewritten model."""
        self.n_replays += 1
        return self._measured(
            self.step.trace(
                self.inputs, self.workspaces, change=lambda model: apply_rewrites(model, rewrites)
            )
        )

    def _measured(self, trace: Trace) -> Trace:
        """Trace with workspaces measured for its own calls, if there is a device.

        Parts of a convolution have batches that the unreduced step does not have, and the
        workspace of a part differs from that of the whole.
        """
        if self.device is None:
            return trace
        self.workspaces, seconds = measured_workspaces(trace.calls, self.device)
        self.measuring_s += seconds
        return trace.with_workspaces(self.workspaces)

    def unreduced(self) -> ReductionPlan:
        """Replay the unreduced step: the first plan, with which all later ones compete."""
        trace = self.trace({})
        self.notes += trace.notes
        self.flops = flops_by_module(self.step, self.inputs)
        self.tried.append(ReductionPlan([], trace, self.limit_bytes))
        return self.tried[0]

    def find_candidates(self) -> None:
        """Find the rewrites of single modules, with their effects on memory and time."""
        model = self.step.model
        if self.device is not None:
            began = time.perf_counter()
            self.times = measure_times(self.step, self.inputs, self.device)
            self.measuring_s += time.perf_counter() - began
        study = study_step(self.step, self.inputs, self.workspaces)
        trace = self._measured(study.trace)  # the same events, with other workspaces
        study = replace(study, trace=trace, usage=np.array(trace.in_use_bytes, np.int64))
        self.candidates = candidates(study, model, self.means)
        if "split" in self.means:
            self.candidates += layer_candidates(study, model)
        order = ModuleOrder(model)
        self.step_times = StepTimes.of(study, order, self.flops, self.times)
        price(self.candidates, self.step_times, self.flops, self.times)
        self.knapsack = Knapsack.of(study.usage, self.candidates, order)

    @property
    def is_over(self) -> bool:
        """True if no further replay may begin."""
        return self.n_replays >= self.max_replays

    def fits(self, plan: ReductionPlan) -> bool:
        """True if the plan's steps run within the limit."""
        # Not `Trace.fits`: depending on the addresses of blocks, steps that run under one limit may
        # fail under a slightly larger one, and a device may differ by that little.
        return plan.needed_bytes <= self.limit_bytes

    def better(self, plan: ReductionPlan | None, best: ReductionPlan) -> ReductionPlan:
        """Better of two plans, of which the first may be missing."""
        if plan is None:
            return best
        if self.fits(plan) != self.fits(best):
            return plan if self.fits(plan) else best
        if self.fits(plan):
            return plan if plan.added_s < best.added_s else best
        return plan if plan.needed_bytes < best.needed_bytes else best

    def finalists(self, best: ReductionPlan) -> list[ReductionPlan]:
        """Plans to choose from: the best one, or with a device the fastest few that fit."""
        different: dict[str, ReductionPlan] = {}
        for plan in [best, *sorted(self.tried, key=lambda each: each.added_s)]:
            if self.fits(plan) and all(c.is_usable for c in plan.chosen):
                different.setdefault(str(sorted(plan.rewrites.items())), plan)
        return [*different.values()][: 1 if self.device is None else FINALISTS]

    def cheapest_correct(self, check: GradientCheck) -> ReductionPlan:
        """Cheapest plan without rewrites that change gradients or state."""
        best, more = self.cheapest(), self.max_replays
        while self.drop_failing_rewrites(check, self.finalists(best)):
            self.max_replays = self.n_replays + more  # a new search
            best = self.cheapest()
        return best

    def drop_failing_rewrites(
        self, check: GradientCheck, plans: Sequence[ReductionPlan]
    ) -> set[tuple[str, str]]:
        """Exclude rewrites that change gradients or state, and return their paths and kinds."""
        failing: set[tuple[str, str]] = set()
        for plan in plans:
            if check.difference(plan.rewrites) is None:
                continue
            for path, difference in check.culprits(plan.rewrites).items():
                rewrite = plan.rewrites[path]
                failing.add((path, rewrite.kind))
                note = f"{path or 'the model'} is not rewritten ({rewrite}): {difference}"
                self.notes.append(note)
        for candidate in self.candidates:
            if (candidate.path, candidate.rewrite.kind) in failing:
                candidate.cost_s = float("inf")
        return failing

    def cheapest(self) -> ReductionPlan:
        """Cheapest plan that fits, or the plan with the lowest need if none fits.

        The knapsack proposes plans for lower and lower targets, and each is replayed. Gaps between
        blocks, and how rewrites act on each other, are not in the expected peaks, so the first
        plans need more than expected. Later ones leave memory free, and the allocator gives back
        less. The descent ends where no cheaper plan can follow.
        """
        knapsack, limit = self.knapsack, self.limit_bytes
        best = self.tried[0]
        # The replay of one step lacks the optimizer's state.
        target = limit - (best.trace.peak_bytes - knapsack.peak(()))
        while not self.is_over:
            rows = knapsack.cheapest(target)
            if rows is None:
                break
            if self.fits(best) and self._added_s(rows) >= best.added_s:
                return best
            plan = self._replayed(rows)
            if plan is None:
                continue  # the replay excluded some candidates
            best = self.better(plan, best)
            lower = max(int(STEP * limit), (plan.needed_bytes - limit) // 2)
            target = min(target - lower, int((1 - STEP / 10) * knapsack.peak(rows)))
        for rows in (knapsack.lowest(), *([row] for row in knapsack.whole())):
            is_cheaper = not self.fits(best) or self._added_s(rows) < best.added_s
            if is_cheaper and not self.is_over:
                best = self.better(self._replayed(rows), best)
        return best

    def _added_s(self, rows: Sequence[int]) -> float:
        return self.step_times.added_s([self.candidates[row] for row in rows])

    def _replayed(self, rows: Sequence[int]) -> ReductionPlan | None:
        """Replay a plan, once, or exclude candidates that make the replay fail."""
        chosen = [self.candidates[row] for row in rows]
        same = frozenset(map(id, chosen))
        for plan in self.tried:
            if frozenset(map(id, plan.chosen)) == same:
                return plan
        try:
            trace = self.trace({c.path: c.rewrite for c in chosen})
        except (ModelArgumentError, TraceError) as error:
            self._exclude(chosen, error)
            return None
        plan = ReductionPlan(chosen, trace, self.limit_bytes)
        taken_s = plan.later.taken_bytes / self.times.rates.reallocated_bytes_per_s
        plan.added_s = self.step_times.added_s(chosen) + taken_s
        self.tried.append(plan)
        return plan

    def _exclude(self, chosen: Sequence[Candidate], error: Exception) -> None:
        """Give the candidates that make a replay fail an infinite cost."""
        cause = error.__cause__
        culprits = []
        if isinstance(cause, RewriteError):
            culprits = [c for c in chosen if c.path == cause.path]
        for candidate in () if culprits else chosen:
            try:
                self.trace({candidate.path: candidate.rewrite})
            except (ModelArgumentError, TraceError):
                culprits.append(candidate)
        for candidate in culprits:
            candidate.cost_s = float("inf")
            self.notes.append(f"{candidate.path} cannot be rewritten ({candidate.rewrite})")
        if not culprits:
            # They fail only together: some code has no nested checkpoints.
            self.notes.append(f"a plan was given up: {str(error)[-160:]}")
            for candidate in chosen[1:]:
                candidate.cost_s = float("inf")
