"""Levels of a reduction: checkpoints, splits into layers, splits in time, and their removal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ...core.units import format_bytes
from ..memory_budget import budget_of, device_of
from ..nn_errors import TooLargeError
from ..replay import Trace, Workspaces
from ..step.layer_state import refuses_time_split
from ..step.model_step import ModelStep
from .candidates import candidates
from .confirm import confirm, run_plan, run_unreduced
from .device_rates import DeviceRates, ForwardTimes
from .gradient_check import OTHER_DRAWS, GradientCheck
from .module_ranges import ModuleOrder
from .module_study import StepStudy, study_step
from .plan import ReductionPlan
from .presets import LEVELS
from .reduction_summary import ReductionSummary
from .rewrite import Rewrite
from .rewrite_cost import flops_by_module, price
from .search import PlanSearch
from .split import batch_statistics
from .step_timeline import StepTimeline


class LevelReduction:
    """Rewrites of a reduction by levels, and the replay with them."""

    def __init__(
        self,
        model: nn.Module,
        summary: ReductionSummary,
        factor: int,
        max_rounds: int | None,
        max_candidates: int | None,
    ) -> None:
        self.model, self.summary, self.factor = model, summary, factor
        self.max_rounds, self.max_candidates = max_rounds, max_candidates
        self.modules = dict(model.named_modules())
        self.plan: dict[str, Rewrite] = {}
        self.searcher: PlanSearch | None = None
        self.now: Trace | None = None
        self.study: StepStudy | None = None
        self.saved: dict[str, int] = {}
        self.costs: dict[str, float] = {}

    def prepare(self, step: ModelStep, specs: Sequence[Any], memory: Any) -> None:
        """Replay the unreduced step, and record what each module keeps."""
        workspaces = Workspaces.allowance()
        limit = 0
        if memory is not None:
            budget = budget_of(self.model, device_of(self.model, "cpu", memory), memory)
            limit, self.summary.origin = budget.limit_bytes, budget.origin
        self.summary.limit_bytes = limit
        self.summary.workspaces = workspaces.origin
        self.searcher = PlanSearch(step, specs, limit, sys.maxsize)
        self.now = self.searcher.trace({})
        self.summary.peak_before_bytes = self.now.allocated_bytes
        self.summary.needed_before_bytes = ReductionPlan([], self.now, limit).needed_bytes
        self.study = study_step(step, specs, workspaces)
        found = candidates(self.study, self.model, ("checkpoint",), {})
        flops = flops_by_module(step, specs)
        rates = DeviceRates.stated(step.amp)
        times = ForwardTimes(rates, origin=rates.origin)
        price(
            found, StepTimeline.of(self.study, ModuleOrder(self.model), flops, times), flops, times
        )
        self.saved = {c.path: c.saved_bytes for c in found}
        self.costs = {c.path: c.cost_s for c in found}
        self.summary.forward_flops = flops[""].total
        self.summary.times_origin = rates.origin
        self.flops = {path: its.total for path, its in flops.items()}

    def is_done(self) -> bool:
        """True if there is a limit and it is reached."""
        limit = self.summary.limit_bytes
        return (
            bool(limit)
            and self.now is not None
            and ReductionPlan([], self.now, limit).needed_bytes <= limit
        )

    def outermost(self, instance: type | tuple[type, ...]) -> list[str]:
        """Paths of modules of the classes; of nested ones the outermost."""
        found: list[str] = []
        for path, module in self.modules.items():
            inside = any(path.startswith(p + ".") for p in found)
            if path and isinstance(module, instance) and not inside:
                found.append(path)
        return found

    def checkpoint(
        self,
        found: list[str],
        n: int,
        names: dict[str, tuple[str, ...]],
        asked: set[str],
    ) -> None:
        """Level 1: checkpoint the first n modules that save most at the peak."""
        summary = self.summary
        summary.gc_candidate_count = len(found)
        chosen = list(found)
        policy = "all_candidates"
        if n < len(found):
            policy = "fallback_module_order"
            if self.study is not None:
                score = self.saved
                policy = "most_saved_at_peak"
                chosen.sort(key=lambda path: -score.get(path, 0))
            if n == 0:
                policy = "explicit_zero_budget"
            chosen = chosen[:n]
        for path in chosen:
            its = names.get(path, ())
            self.plan[path] = Rewrite("checkpoint", its if set(its) - {"none"} else ())
            for name in its or ("none",):
                if path in asked or getattr(self.modules[path], "x_compressor", None) is not None:
                    summary.manual_compressor_count += 1
                elif name == "bit":
                    summary.bit_compressor_count += 1
                else:
                    summary.null_compressor_count += 1
        summary.gc_wrap_count = summary.gc_selected_count = len(chosen)
        summary.gc_selected_modules = chosen
        summary.gc_selection_policy = policy
        summary.gc_selection_explanation = (
            f"{len(chosen)} of {len(found)} matching modules are checkpointed ({policy})."
        )
        summary.applied_steps.append("level1_gc")
        if self.searcher is not None:
            self.now = self.searcher.trace(self.plan)

    def rounds(
        self, kind: str, name: str, split: Callable[[str], dict[str, Rewrite] | None]
    ) -> None:
        """Split the modules that hold most at the peak, as long as that lowers it."""
        summary, searcher = self.summary, self.searcher
        assert searcher is not None
        assert self.now is not None
        if not self.plan:
            summary.skipped_steps.append(f"{name.split('_')[0]}:no_checkpoints")
            return
        blocked: set[str] = set()
        n_rounds = 0
        summary.applied_steps.append(name)
        while not self.is_done() and (self.max_rounds is None or n_rounds < self.max_rounds):
            n_rounds += 1
            heavy = [path for path in self._heaviest() if path not in blocked]
            if self.max_candidates is not None:
                heavy = heavy[: self.max_candidates]
            for path in heavy:
                parts = split(path)
                if parts is None:
                    blocked.add(path)
                    continue
                plan = {p: t for p, t in self.plan.items() if p != path} | parts
                trace = searcher.trace(plan)
                if trace.peak_bytes < self.now.peak_bytes:
                    self.plan, self.now = plan, trace
                    if kind == "spatial":
                        summary.spatial_split_count += 1
                    else:
                        summary.temporal_split_count += 1
                    break
                blocked.add(path)
            else:
                summary.skipped_steps.append(f"{name.split('_')[0]}:no_improving_candidate")
                return

    def _heaviest(self) -> list[str]:
        """Checkpointed modules, by bytes held at the peak and then by bytes kept."""
        assert self.now is not None
        at_peak: dict[str, int] = {}
        for module, n_bytes in self.now.peak.by_module().items():
            for path in self.plan:
                if module == path or module.startswith(path + "."):
                    at_peak[path] = at_peak.get(path, 0) + n_bytes
        return sorted(self.plan, key=lambda p: (-at_peak.get(p, 0), -self.saved.get(p, 0)))

    def by_layers(self, path: str) -> dict[str, Rewrite] | None:
        """Level 2: one checkpoint for each layer; the first has the whole module's compressor."""
        module = self.modules[path]
        children = [name for name, child in module.named_children()]
        if hasattr(module, "__spatial_split__"):  # spikingjelly's: the module says its parts
            parts = {id(part) for part in module.__spatial_split__()}
            children = [name for name, part in module.named_modules() if id(part) in parts]
        if len(children) < 2 or self.plan[path].parts > 1:
            return None
        first = self.plan[path].compressors
        return {
            f"{path}.{name}": Rewrite("checkpoint", first if index == 0 else ())
            for index, name in enumerate(children)
        }

    def by_time(self, path: str) -> dict[str, Rewrite] | None:
        """Level 3: more parts of the time steps."""
        too_large_message = refuses_time_split(self.modules[path])
        if too_large_message:
            self.summary.notes.append(f"{path} is not split in time: {too_large_message}")
            return None
        layers = batch_statistics(self.modules[path])
        if layers:
            self.summary.notes.append(
                f"{path} is not split in time: {len(layers)} layers take the statistics of all "
                f"steps, the first is {path}.{layers[0]}"
            )
            return None
        assert self.study is not None
        call = next((c for c in self.study.calls if c.path == path and c.inputs), None)
        n_steps = self.study.trace.storages[call.inputs[0]].shape[0] if call else 1
        parts = self.plan[path].parts * self.factor
        return {path: self.plan[path].in_parts(parts)} if parts <= n_steps else None

    def undo(self) -> None:
        """Level 4: remove checkpoints that do not lower the peak, the slowest first."""
        assert self.searcher is not None
        assert self.now is not None
        self.summary.applied_steps.append("level4_greedy_unwrap")
        for path in sorted(self.plan, key=lambda p: -self.costs.get(p, 0.0)):
            plan = {p: t for p, t in self.plan.items() if p != path}
            trace = self.searcher.trace(plan)
            limit = self.summary.limit_bytes
            fine = ReductionPlan([], trace, limit).needed_bytes <= limit if limit else False
            if trace.peak_bytes <= self.now.peak_bytes or fine:
                self.plan, self.now = plan, trace
                self.summary.unwrap_count += 1

    def check(self) -> None:
        """Leave out rewrites that change gradients or state, on small inputs."""
        if self.searcher is None:
            return
        check = GradientCheck(self.searcher.step, self.searcher.inputs)
        while check.difference(self.plan) is not None:
            for path, difference in check.culprits(self.plan).items():
                rewrite = self.plan.pop(path)
                self.summary.notes.append(f"{path} is not rewritten ({rewrite}): {difference}")
            self.now = self.searcher.trace(self.plan)
        if check.draws_differ(self.plan):
            self.summary.notes.append(OTHER_DRAWS)
        self.summary.check_s = check.check_s

    def confirm(self) -> None:
        """Run the reduced step on the device of the model, if it is on one.

        Raises
        ------
        TooLargeError
            If it does not run within the limit.
        """
        device = next((p.device for p in self.model.parameters() if p.device.type == "cuda"), None)
        searcher = self.searcher
        if searcher is None or device is None:
            return
        whole = run_unreduced(self.summary, searcher.step, searcher.inputs, device)
        made = run_plan(self.plan, searcher, device)
        if made is None:
            needed = format_bytes(self.summary.needed_after_bytes)
            raise TooLargeError(
                f"the reduced step was predicted to need {needed}, and ran out of memory on "
                f"{device}: the model is as it was. Try a higher level, or reduce_memory"
            )
        confirm(self.summary, made, whole)

    def finish(self) -> None:
        """Fill in the summary."""
        summary = self.summary
        summary.rewrites = dict(self.plan)
        summary.gc_container_count = sum(t.parts == 1 for t in self.plan.values())
        summary.tcgc_container_count = sum(t.parts > 1 for t in self.plan.values())
        if self.now is None or self.searcher is None:
            summary.recommendation = "Give inputs: the peak is predicted then, and reduced more."
            return
        summary.peak_after_bytes = self.now.allocated_bytes
        summary.needed_after_bytes = ReductionPlan([], self.now, summary.limit_bytes).needed_bytes
        summary.holds_peak = self.now.peak.by_category()
        summary.holds_peak_modules = dict(list(self.now.peak.by_module().items())[:8])
        summary.n_replays = self.searcher.n_replays
        summary.recomputed_flops = sum(self.flops.get(path, 0.0) for path in self.plan)
        summary.predicted_added_s = sum(self.costs.get(path, 0.0) for path in self.plan)
        level = summary.applied_level or 0
        is_lower = summary.peak_after_bytes < summary.peak_before_bytes
        if level and not summary.gc_candidate_count:
            held = next(iter(summary.holds_peak_modules), "")
            summary.recommendation = (
                "No module is of the classes given, so nothing was done: give the class of "
                f"{held or 'the model'}, or call reduce_memory, which needs none."
            )
        elif level and not is_lower:
            summary.recommendation = (
                "The peak is no lower: checkpoint larger modules, or call reduce_memory."
            )
        elif level < LEVELS[-1]:
            summary.recommendation = f"For a lower peak, try level {level + 1} or reduce_memory."
        else:
            summary.recommendation = "For a lower peak, call reduce_memory with a card's memory."
