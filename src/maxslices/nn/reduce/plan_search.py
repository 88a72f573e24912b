"""Search for plans: for the whole model, then for parts of its batch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..replay import Trace
from .band_candidates import band_candidates
from .bands import BandWindow
from .candidates import Candidate, candidates
from .device_rates import ForwardTimes, measure_times
from .gradient_check import GradientCheck
from .module_ranges import ModuleOrder
from .module_study import study_step
from .reduction_plan import ReductionPlan, SearchSpace
from .reduction_summary import ReductionSummary
from .rewrite import Rewrite
from .rewrite_cost import price, price_of_parts
from .rewrite_search import RewriteSearch, rewrites_of
from .split import batch_parts, layer_candidates, part_of, time_candidates
from .step_timeline import Flops, StepTimeline

LIMIT_FRACTIONS = (1.0, 0.95, 0.9)
"""Fractions of the limit that are searched in turn, as long as the limit makes the steps slower:
plans with more free memory make the allocator give back less."""
WORTH = 0.05
"""Part of a plan's added time that the limit must cause for a search of the next fraction. No more
than that can be gained, and rates are known no better: RegNetY-400 at 0.6 of its peak has 0.1 of
3.3 ms by the limit, for which 54 replays in place of 7 found the same plan."""


@dataclass(slots=True)
class PlanSearch:
    """Searches plans for the whole batch, and then for parts of it."""

    searcher: RewriteSearch
    means: Sequence[str]
    compressors: dict[str, tuple[str, ...]]
    flops: Mapping[str, Flops]
    times: ForwardTimes
    spaces: dict[int, SearchSpace] = field(default_factory=dict)
    """Search spaces by number of parts of the batch."""
    windows: dict[str, BandWindow | None] = field(default_factory=dict)
    """Windows by path, of modules that were tested for locality."""
    refused: set[tuple[str, str, bool]] = field(default_factory=set)
    """Rewrites that changed gradients: path, kind, and whether in parts."""

    def measure_times(self, parts: int = 1) -> ForwardTimes:
        """Measure times on the device, if there is one, for the whole batch or for its parts."""
        searcher = self.searcher
        if searcher.device is None:
            return self.times
        began = time.perf_counter()
        inputs = searcher.inputs if parts == 1 else part_of(searcher.inputs, parts)
        made = measure_times(searcher.step, inputs, searcher.device, parts)
        if parts == 1:
            self.times = made
        searcher.measuring_s += time.perf_counter() - began
        return made

    def best(self, before: Trace, summary: ReductionSummary) -> ReductionPlan:
        """Cheapest plan that fits; the one with the lowest need if none does.

        Where the limit makes the found plan's steps slower, plans that leave more memory free are
        searched too.
        """
        searcher = self.searcher
        whole = self._space(1)
        summary.gc_candidate_count = len({c.path for c in whole.candidates})
        offset = before.peak_bytes - int(whole.study.usage.max())
        best: ReductionPlan | None = None
        for part in LIMIT_FRACTIONS:
            searcher.limit_bytes = int(part * searcher.card_bytes)
            plan = self._at_limit(offset, summary)
            searcher.limit_bytes = searcher.card_bytes
            best = plan if searcher.is_better(plan, best) else best
            if (
                best is None
                or searcher.is_over
                or not searcher.fits(best)
                or best.reallocation_s <= WORTH * best.added_s
            ):
                break
        return best or ReductionPlan([], before, searcher.card_bytes)

    def _at_limit(self, offset: int, summary: ReductionSummary) -> ReductionPlan | None:
        searcher = self.searcher
        whole = self._space(1)
        best = searcher.find(whole, offset)
        notes: list[str] = []
        is_allowed = "split" in self.means and ("", "checkpoint", True) not in self.refused
        all_parts = batch_parts(searcher.step, searcher.inputs, notes) if is_allowed else []
        summary.notes += [note for note in notes if note not in summary.notes]
        for parts in all_parts:
            space = self._space(parts)
            assert space.root is not None
            is_good = best is not None and searcher.fits(best)
            if searcher.is_over or (
                is_good and best is not None and best.added_s <= space.root.cost_s
            ):
                break  # more parts are no cheaper
            plan = searcher.find(space, offset)
            if searcher.is_better(plan, best):
                best = plan
        return best

    def refuse_wrong(
        self, check: GradientCheck, plans: Sequence[ReductionPlan], notes: list[str]
    ) -> bool:
        """Refuse rewrites of plans that change gradients or state; False if there are none."""
        found = False
        for plan in plans:
            rewrites = rewrites_of(plan.chosen)
            if check.difference(rewrites) is None:
                continue
            found = True
            for path, difference in check.culprits(rewrites).items():
                rewrite = rewrites[path]
                self.refused.add((path, rewrite.kind, rewrite.parts > 1))
                notes.append(f"{path or 'the model'} is not rewritten ({rewrite}): {difference}")
        for space in self.spaces.values():
            self._mark(space.candidates)
        return found

    def _mark(self, found: Sequence[Candidate]) -> None:
        for candidate in found:
            rewrite = candidate.rewrite
            if (candidate.path, rewrite.kind, rewrite.parts > 1) in self.refused:
                candidate.cost_s = float("inf")

    def _space(self, parts: int) -> SearchSpace:
        """Search space of the model, or of one of several parts of its batch."""
        if parts in self.spaces:
            return self.spaces[parts]
        searcher = self.searcher
        model = searcher.step.model
        inputs = searcher.inputs if parts == 1 else part_of(searcher.inputs, parts)
        study = study_step(searcher.step, inputs, searcher.workspaces, searcher.in_place)
        study = study.with_trace(searcher.measured(study.trace))
        found = candidates(study, model, self.means, self.compressors)
        if "split" in self.means:
            found += time_candidates(study, model, self.compressors)
            found += layer_candidates(study, model)
            found += band_candidates(study, model, self.windows)
        root = None
        times = self.times if parts == 1 else self.measure_times(parts)
        timeline = StepTimeline.of(study, ModuleOrder(model), self.flops, times, parts)
        whole = timeline if parts == 1 else self._space(1).timeline
        if parts > 1:
            root = Candidate("", Rewrite("checkpoint", (), parts), 0, (0, 0), [])
            root.recomputed_ops = next(call.n_operators for call in study.calls if not call.path)
            price_of_parts(root, timeline, whole, self.flops[""], times)
            # The cache of a selective checkpoint cannot be read twice, as inside of a checkpoint
            # it would be. The whole model cannot be in bands, as it is in parts already.
            found = [
                c
                for c in found
                if c.rewrite.kind != "selective" and (c.path or not c.rewrite.window)
            ]
        price(found, timeline, self.flops, times)
        self._mark(found)
        self.spaces[parts] = SearchSpace(study, found, root, timeline, whole.step_s(), times.rates)
        return self.spaces[parts]
