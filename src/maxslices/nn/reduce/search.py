"""Search for the cheapest plan that fits: choose by arithmetic, replay, lower the target.

The knapsack proposes the cheapest set of rewrites below a target, and a replay shows what it needs.
The target is lowered until no cheaper plan can follow. The search ends after a number of replays,
never by the clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from ...core.memory_model import last_true
from ..nn_errors import ModelArgumentError, RewriteError, first_line
from ..replay import CachingAllocator, Trace, TraceError, Workspaces
from ..replay.caching_allocator import ROUND_BYTES
from ..replay.expandable_segments import ExpandableAllocator, least_expandable_limit
from ..replay.measure_workspaces import measured_workspaces
from ..replay.trace import Steady, steady
from ..step.model_step import ModelStep
from .candidates import Candidate, batch_parts, candidates, layer_candidates, part_of
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
    price_of_parts,
)


class SearchSpace(NamedTuple):
    """Candidates and times of the model, or of one of several parts of its batch."""

    knapsack: Knapsack
    """Candidates, and the memory in use with and without them."""
    times: StepTimes
    root: Candidate | None
    """Rewrite of the whole model that each plan includes: the parts of its batch."""
    whole_s: float
    """Duration of the unreduced step."""
    rates: DeviceRates

    def with_root(self, rows: Sequence[int]) -> list[Candidate]:
        """Candidates of some rows of the knapsack, and those that each plan includes."""
        picked = [self.knapsack.candidates[row] for row in rows]
        return picked if self.root is None else [self.root, *picked]

    def added_s(self, rows: Sequence[int]) -> float:
        """Time that rewrites add to a step, without that of the limit."""
        return self.times.step_s(self.with_root(rows)) - self.whole_s

    def timed(self, plan: ReductionPlan) -> ReductionPlan:
        """The plan with the time that it adds."""
        chosen = plan.chosen
        plan.added_s = self.times.step_s(chosen) - self.whole_s
        plan.added_s += plan.later.taken_bytes / self.rates.reallocated_bytes_per_s
        return plan


@dataclass(slots=True)
class ReductionPlan:
    """Rewrites, with the replay of two steps."""

    chosen: list[Candidate]
    trace: Trace
    limit_bytes: InitVar[int] = 0
    """Limit of the allocator. If the two steps run under it, all further ones must run as well."""
    added_s: float = 0.0
    """Added time of a step, with that of memory given back to the device and taken again."""
    first_bytes: int = field(init=False)
    """Smallest limit under which the first two steps run."""
    needed_bytes: int = field(init=False)
    """Smallest limit under which all further steps run too. Below it, workspaces may find no room,
    and cuDNN's kernels without one are several times slower."""
    later: Steady = field(init=False)
    """Effect of the limit on further steps."""

    def __post_init__(self, limit_bytes: int) -> None:
        trace = self.trace
        if has_expandable_segments():
            self.first_bytes = least_expandable_limit(trace.requests(), trace.peak_bytes)
        else:
            self.first_bytes = trace.needed_bytes
        self.needed_bytes, self.later = self.first_bytes, Steady(False)
        if self.first_bytes <= limit_bytes:
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
    while fails(high):  # segments that grow need room for all of a block
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
    flops: Mapping[str, Flops] = field(default_factory=dict)
    times: ForwardTimes = field(init=False)
    workspaces: Workspaces = field(default_factory=Workspaces.allowance)
    measuring_s: float = 0.0
    """Time spent measuring on the device."""
    n_replays: int = 0
    notes: list[str] = field(default_factory=list)
    tried: list[ReductionPlan] = field(default_factory=list)
    """All plans that were replayed, the unreduced step first."""
    refused: set[tuple[str, str, bool]] = field(default_factory=set)
    """Rewrites that changed gradients: path, kind, and whether in parts."""
    _spaces: dict[int, SearchSpace] = field(default_factory=dict)
    """Search spaces by number of parts of the batch."""

    def __post_init__(self) -> None:
        rates = DeviceRates.stated(self.step.amp)
        self.times = ForwardTimes(rates, origin=rates.origin)

    def trace(self, rewrites: Mapping[str, Rewrite]) -> Trace:
        """Replay two steps of the rewritten model."""
        self.n_replays += 1
        return self.measured(
            self.step.trace(
                self.inputs, self.workspaces, change=lambda model: apply_rewrites(model, rewrites)
            )
        )

    def measured(self, trace: Trace) -> Trace:
        """Trace with workspaces measured for its own calls, if there is a device.

        Parts of a batch call convolutions at batches that the unreduced step does not have, and
        the workspace of a part is not that of the whole.
        """
        if self.device is None:
            return trace
        self.workspaces, seconds = measured_workspaces(trace.calls, self.device)
        self.measuring_s += seconds
        return trace.with_workspaces(self.workspaces)

    def unreduced(self) -> ReductionPlan:
        """Replay the step as it is: the first of the plans, which all others compete with."""
        trace = self.trace({})
        self.notes += trace.notes
        self.tried.append(ReductionPlan([], trace, self.limit_bytes))
        return self.tried[0]

    def optional(self, without: str, study: Callable[..., Any], default: Any) -> Any:
        """Result of a study of the step; a note and a default where the model refuses it."""
        try:
            return study(self.step, self.inputs)
        except (RuntimeError, TypeError, ValueError, NotImplementedError, TraceError) as error:
            self.notes.append(f"{without}: {first_line(error)[:160]}")
            return default

    def measure_times(self, parts: int = 1) -> ForwardTimes:
        """Measure times on the device, if there is one, for the whole batch or for its parts."""
        if self.device is None:
            return self.times
        began = time.perf_counter()
        inputs = self.inputs if parts == 1 else part_of(self.inputs, parts)
        made = measure_times(self.step, inputs, self.device, parts)
        if parts == 1:
            self.times = made
        self.measuring_s += time.perf_counter() - began
        return made

    @property
    def is_over(self) -> bool:
        """True if no further replay may begin."""
        return self.n_replays >= self.max_replays

    def fits(self, plan: ReductionPlan) -> bool:
        """True if the plan's steps run within the limit."""
        # Not `Trace.fits`: steps that run under one limit may fail under a slightly larger one, by
        # the addresses of blocks, and a device may differ by that little.
        return plan.needed_bytes <= self.limit_bytes

    def better(self, plan: ReductionPlan | None, best: ReductionPlan) -> ReductionPlan:
        """Better of two plans; the first may be missing."""
        if plan is None:
            return best
        if self.fits(plan) != self.fits(best):
            return plan if self.fits(plan) else best
        if self.fits(plan):
            return plan if plan.added_s < best.added_s else best
        return plan if plan.needed_bytes < best.needed_bytes else best

    def cheapest(self) -> ReductionPlan:
        """Cheapest plan that fits; the one with the lowest need if none does.

        The whole batch is searched first, then parts of it, as long as more can be cheaper.
        """
        best = self.tried[0]
        for parts in self._numbers_of_parts():
            space = self.space(parts)
            if space is None:
                continue
            is_cheaper = space.root is None or best.added_s > space.root.cost_s
            if self.is_over or (self.fits(best) and not is_cheaper):
                break
            best = self.better(self._descended(space), best)
        return best

    def finalists(self, best: ReductionPlan) -> list[ReductionPlan]:
        """Plans of which one is used: with a device, the fastest few of those that fit are run."""
        different: dict[str, ReductionPlan] = {}
        for plan in [best, *sorted(self.tried, key=lambda each: each.added_s)]:
            if self.fits(plan) and all(c.is_usable for c in plan.chosen):
                different.setdefault(str(sorted(plan.rewrites.items())), plan)
        return [*different.values()][: 1 if self.device is None else FINALISTS]

    def without_wrong(self, check: GradientCheck) -> ReductionPlan:
        """Cheapest plan, without rewrites that change gradients or state."""
        best, more = self.cheapest(), self.max_replays
        while self.refuse_wrong(check, self.finalists(best)):
            self.max_replays = self.n_replays + more  # it begins anew
            best = self.cheapest()
        return best

    def is_refused(self, path: str, rewrite: Rewrite) -> bool:
        """True for a rewrite that changed gradients or state."""
        return (path, rewrite.kind, rewrite.parts > 1) in self.refused

    def refuse_wrong(self, check: GradientCheck, plans: Sequence[ReductionPlan]) -> bool:
        """Refuse rewrites of plans that change gradients or state; True if there are any."""
        is_wrong = False
        for plan in plans:
            if check.difference(plan.rewrites) is None:
                continue
            is_wrong = True
            for path, difference in check.culprits(plan.rewrites).items():
                rewrite = plan.rewrites[path]
                self.refused.add((path, rewrite.kind, rewrite.parts > 1))
                note = f"{path or 'the model'} is not rewritten ({rewrite}): {difference}"
                self.notes.append(note)
        for space in self._spaces.values():
            self._mark(space.knapsack.candidates)
        return is_wrong

    def _mark(self, found: Sequence[Candidate]) -> None:
        for candidate in found:
            if self.is_refused(candidate.path, candidate.rewrite):
                candidate.cost_s = float("inf")

    def _numbers_of_parts(self) -> list[int]:
        if "split" not in self.means or ("", "checkpoint", True) in self.refused:
            return [1]
        found = self.optional("the batch is not run in parts", batch_parts, ([], ""))
        numbers, reason = found
        if reason and reason not in self.notes:
            self.notes.append(reason)
        return [1, *numbers]

    @property
    def forward_flops(self) -> float:
        """Floating-point operations of one forward pass."""
        return self._flops()[""].total

    def _flops(self) -> Mapping[str, Flops]:
        if not self.flops:
            self.flops = flops_by_module(self.step, self.inputs)
        return self.flops

    def _descended(self, space: SearchSpace) -> ReductionPlan | None:
        """Best of the plans that the knapsack proposes for lower and lower targets, each replayed.

        Gaps between blocks, and how rewrites act on each other, are not in the expected peaks, so
        the first plans need more than was expected. Later ones leave memory free, and the allocator
        gives back less. The descent ends where no cheaper plan can follow.
        """
        knapsack, limit = space.knapsack, self.limit_bytes
        # The optimizer's state, and what else a step without it lacks.
        target = limit - (self.tried[0].trace.peak_bytes - self._spaces[1].knapsack.peak(()))
        best: ReductionPlan | None = None
        while not self.is_over:
            rows = knapsack.cheapest(target)
            if rows is None:
                break
            if best is not None and self.fits(best) and space.added_s(rows) >= best.added_s:
                return best
            plan = self._replayed(space, rows)
            if plan is None:
                continue  # what the replay refused is out of the question
            best = self.better(plan, best or plan)
            lower = max(int(STEP * limit), (plan.needed_bytes - limit) // 2)
            target = min(target - lower, int((1 - STEP / 10) * knapsack.peak(rows)))
        for rows in (knapsack.lowest(), *([row] for row in knapsack.whole())):
            is_cheaper = best is None or not self.fits(best) or space.added_s(rows) < best.added_s
            if is_cheaper and not self.is_over:
                best = self.better(self._replayed(space, rows), best or self.tried[0])
        return best

    def _replayed(self, space: SearchSpace, rows: Sequence[int]) -> ReductionPlan | None:
        """Replay a plan, once; candidates that cannot be replayed get an infinite cost."""
        chosen = space.with_root(rows)
        same = frozenset(map(id, chosen))
        for plan in self.tried:
            if frozenset(map(id, plan.chosen)) == same:
                return plan
        try:
            trace = self.trace({c.path: c.rewrite for c in chosen})
            plan = ReductionPlan(chosen, trace, self.limit_bytes)
            self.tried.append(space.timed(plan))
            return plan
        except (ModelArgumentError, TraceError) as error:
            self._refuse(chosen, error)
            return None

    def _refuse(self, chosen: Sequence[Candidate], error: Exception) -> None:
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
            # Together they cannot be replayed: some code has no nested checkpoints.
            self.notes.append(f"a plan was given up: {str(error)[-160:]}")
            for candidate in chosen[1:]:
                candidate.cost_s = float("inf")

    def space(self, parts: int) -> SearchSpace | None:
        """Search space of the model or of parts of its batch; None if these cannot be replayed."""
        if parts in self._spaces:
            return self._spaces[parts]
        model = self.step.model
        inputs = self.inputs if parts == 1 else part_of(self.inputs, parts)
        try:
            study = study_step(self.step, inputs, self.workspaces)
        except (ModelArgumentError, TraceError) as error:
            if parts == 1:
                raise
            self.notes.append(f"the batch is not run in {parts} parts: {str(error)[:160]}")
            return None
        trace = self.measured(study.trace)  # the same events, with other workspaces
        study = replace(study, trace=trace, usage=np.array(trace.in_use_bytes, np.int64))
        found = candidates(study, model, self.means)
        if "split" in self.means:
            found += layer_candidates(study, model)
        root = None
        order = ModuleOrder(model)
        times = self.times if parts == 1 else self.measure_times(parts)
        of_step = StepTimes.of(study, order, self._flops(), times, parts)
        whole_s = of_step.step_s()
        if parts > 1:
            whole = self._spaces[1].times
            whole_s = whole.step_s()
            root = Candidate("", Rewrite("checkpoint", (), parts), 0, (0, 0), [])
            root.recomputed_ops = next(call.n_operators for call in study.calls if not call.path)
            price_of_parts(root, of_step, whole, self._flops()[""], times)
            # The cache of a selective checkpoint cannot be read twice, as inside of a checkpoint
            # it would be.
            found = [c for c in found if c.rewrite.kind != "selective"]
        price(found, of_step, self._flops(), times)
        self._mark(found)
        knapsack = Knapsack.of(study.usage, found, order)
        self._spaces[parts] = SearchSpace(knapsack, of_step, root, whole_s, times.rates)
        return self._spaces[parts]
