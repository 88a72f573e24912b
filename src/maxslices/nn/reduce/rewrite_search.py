"""Search for rewrites: expected peaks by arithmetic, confirmed by replays.

The knapsack proposes a set of rewrites for the limit less an offset, and a replay shows how wrong
its expected peak was: a bisection of the offset. Then neighbours of plans that are faster and
almost fit are replayed. The search ends after a number of replays, never by the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...core.units import MIB
from ..nn_errors import ModelArgumentError, RewriteError
from ..replay import Trace, TraceError, Workspaces
from ..replay.measure_workspaces import measured_workspaces
from ..step.model_step import ModelStep
from .candidates import Candidate
from .inplace import set_in_place
from .knapsack import Knapsack
from .local_search import neighbours
from .reduction_plan import ReductionPlan, SearchSpace
from .rewrite import Rewrite, apply_rewrites
from .uniform_plan import uniform_sets

ROUNDS = 8
"""Maximum number of plans that one bisection replays."""
CLOSE = 0.02
"""Part of the limit that need not be used: within it, a further replay finds little."""
N_NEAR = 3
"""Maximum number of plans that are improved by local search."""
REPLAYS_PER_PLAN = 6
"""Maximum number of replays for each of them, and for each better one found next to it."""


@dataclass(slots=True)
class RewriteSearch:
    """Search for one model and one limit, with all plans that it replayed."""

    step: ModelStep
    inputs: Sequence[Any]
    workspaces: Workspaces
    limit_bytes: int
    """Limit that plans are searched for."""
    max_replays: int
    """Number of replays after which the best plan so far is taken."""
    device: torch.device | None = None
    """Device that measures workspaces, if there is one."""
    in_place: Sequence[str] = ()
    measuring_s: float = 0.0
    """Time spent measuring on the device."""
    n_replays: int = 0
    notes: list[str] = field(default_factory=list)
    tried: list[ReductionPlan] = field(default_factory=list)
    """All plans that were replayed."""
    card_bytes: int = field(init=False)
    """Limit under which plans will run; `limit_bytes` may be lower, to leave room."""

    def __post_init__(self) -> None:
        self.card_bytes = self.limit_bytes

    def trace(self, rewrites: dict[str, Rewrite]) -> Trace:
        """Replay two steps of the rewritten model."""
        self.n_replays += 1

        def change(model: Any) -> None:
            set_in_place(model, self.in_place)
            apply_rewrites(model, rewrites)

        return self.measured(self.step.trace(self.inputs, self.workspaces, change=change))

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

    @property
    def is_over(self) -> bool:
        """True if no further replay may begin."""
        return self.n_replays >= self.max_replays

    def fits(self, plan: ReductionPlan) -> bool:
        """True if the plan's steps run within the limit."""
        # Not `Trace.fits`: steps that run under one limit may fail under a slightly larger one, by
        # the addresses of blocks, and a device may differ by that little.
        return plan.needed_bytes <= self.limit_bytes

    def is_better(self, plan: ReductionPlan | None, best: ReductionPlan | None) -> bool:
        """True if a plan is better than another; None is worst."""
        if plan is None or best is None:
            return plan is not None
        fits, fit = self.fits(plan), self.fits(best)
        if fits != fit:
            return fits
        return plan.added_s < best.added_s if fits else plan.needed_bytes < best.needed_bytes

    def find(self, space: SearchSpace, offset: int) -> ReductionPlan | None:
        """Cheapest plan that fits, or the one with the lowest need if none does.

        Parameters
        ----------
        space : SearchSpace
            Candidates and times.
        offset : int
            Bytes that the step is expected to need in addition to the study's.
        """
        best = self._bisected(space, offset)
        if best is None:
            return None
        near = self._local_search(knapsack_of(space), space, best)
        # What was found at any cost may do with less of it.
        return self._pruned(space, near) if self.fits(near) and not self.fits(best) else near

    def _bisected(self, space: SearchSpace, offset: int) -> ReductionPlan | None:
        """Best of the plans that the knapsack proposes, one replay each.

        Expected peaks are wrong by an offset that differs from plan to plan. With one that is too
        low plans do not fit; with one that is too high, plans that would fit are left out.
        """
        knapsack = knapsack_of(space)
        best: ReductionPlan | None = None
        too_low: int | None = None
        too_high: int | None = None
        close_bytes = int(CLOSE * self.limit_bytes)
        for turn in range(ROUNDS):
            if self.is_over:
                break
            uniform = uniform_sets(knapsack.candidates, self.step.model, space.timeline.order)
            rows = knapsack.cheapest(self.limit_bytes - offset, uniform)
            is_lowest = rows is None
            if rows is None:
                rows = knapsack.lowest(uniform)
            plan = self._replayed(space, [knapsack.candidates[i] for i in rows])
            if plan is None:
                knapsack = knapsack_of(space)
                continue
            best = plan if self.is_better(plan, best) else best
            is_whole = rows and not any(knapsack.candidates[i].path for i in rows)
            if is_whole and self.fits(plan) and not self.is_over:
                # The whole model is what is left where no set is expected to fit. The lowest set
                # may fit all the same, or almost, and is a beginning of the local search.
                lowest = [knapsack.candidates[i] for i in knapsack.lowest(uniform)]
                other = self._replayed(space, lowest)
                best = other if self.is_better(other, best) else best
            following = plan.needed_bytes - knapsack.peak(rows)
            if self.fits(plan):
                too_high = offset
                if not rows or self.limit_bytes - plan.needed_bytes < close_bytes:
                    break
            elif is_lowest:
                too_high = offset
            else:
                too_low = offset
                # Further each time, as the interaction of rewrites is not known.
                over = max(plan.needed_bytes - self.limit_bytes, MIB) * (1 + turn)
                following = max(following, offset + over)
            if too_low is not None and too_high is not None:
                if too_high - too_low < close_bytes:
                    break
                following = (too_low + too_high) // 2
            elif too_low is None and following >= offset:
                break
            offset = following
        return best

    def _local_search(
        self, knapsack: Knapsack, space: SearchSpace, best: ReductionPlan
    ) -> ReductionPlan:
        """Fastest plan that fits, of a given one and the neighbours of those that almost fit."""

        def most_s() -> float:
            return best.added_s if self.fits(best) else float("inf")

        near = [
            plan
            for plan in sorted(self.tried, key=lambda p: p.needed_bytes)
            if not self.fits(plan)
            and plan.added_s < most_s()
            and rows_of(knapsack, space, plan) is not None
        ]
        seen = {frozenset(map(id, plan.chosen)) for plan in self.tried}
        for plan in near[:N_NEAR]:
            now: ReductionPlan | None = plan
            while now is not None and not self.fits(now):
                last = self.n_replays + REPLAYS_PER_PLAN
                now = self._next_to(knapsack, space, now, most_s(), seen, last)
            best = now if now is not None and self.is_better(now, best) else best
        return best

    def _next_to(
        self,
        knapsack: Knapsack,
        space: SearchSpace,
        plan: ReductionPlan,
        most_s: float,
        seen: set[frozenset[int]],
        last_replay: int,
    ) -> ReductionPlan | None:
        """Neighbour of a plan that needs less memory and adds less than a given time."""
        rows = rows_of(knapsack, space, plan) or []
        # Fragmentation is assumed to stay as it is.
        limit = self.limit_bytes - (plan.needed_bytes - knapsack.peak(rows))
        for other in neighbours(knapsack, rows, limit, plan.trace.peak.by_module()):
            if self.is_over or self.n_replays >= last_replay:
                break
            picked = [knapsack.candidates[i] for i in other]
            chosen = [*space.first, *picked]
            key = frozenset(map(id, chosen))
            if key in seen or space.added_s(chosen) >= most_s:
                continue
            seen.add(key)
            tried = self._replayed(space, picked)
            if tried is not None and tried.needed_bytes < plan.needed_bytes:
                return tried
        return None

    def _replayed(self, space: SearchSpace, picked: Sequence[Candidate]) -> ReductionPlan | None:
        """Replay a plan, once; candidates that cannot be replayed get an infinite cost."""
        chosen = [*space.first, *picked]
        same = frozenset(map(id, chosen))
        for plan in self.tried:
            if frozenset(map(id, plan.chosen)) == same:
                return plan
        try:
            trace = self.trace(rewrites_of(chosen))
            self.tried.append(space.planned(chosen, trace, self.card_bytes))
            return self.tried[-1]
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

    def _pruned(self, space: SearchSpace, plan: ReductionPlan) -> ReductionPlan:
        """Remove rewrites that the replay shows are not needed, the most expensive first."""
        for candidate in sorted(plan.chosen, key=lambda c: -c.cost_s):
            if self.is_over or candidate in space.first:
                break
            rest = [c for c in plan.chosen if c is not candidate]
            try:
                trace = self.trace(rewrites_of(rest))
            except (ModelArgumentError, TraceError):
                continue  # what is left relies on it
            without = space.planned(rest, trace, self.card_bytes)
            self.tried.append(without)
            if self.is_better(without, plan):
                plan = without
        return plan


def knapsack_of(space: SearchSpace) -> Knapsack:
    """Knapsack of the candidates that nothing has refused."""
    usable = [c for c in space.candidates if c.is_usable]
    return Knapsack.of(space.study.usage, usable, space.timeline.order)


def rewrites_of(chosen: Sequence[Candidate]) -> dict[str, Rewrite]:
    """Rewrites of candidates, by path."""
    return {c.path: c.rewrite for c in chosen}


def rows_of(knapsack: Knapsack, space: SearchSpace, plan: ReductionPlan) -> list[int] | None:
    """Rows of a plan's candidates in a knapsack; None if one is missing."""
    n_first = len(space.first)
    rows = {id(c): i for i, c in enumerate(knapsack.candidates)}
    if plan.chosen[:n_first] != space.first or any(
        id(c) not in rows for c in plan.chosen[n_first:]
    ):
        return None
    return [rows[id(c)] for c in plan.chosen[n_first:]]
