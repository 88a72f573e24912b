"""Reduction by levels: spikingjelly's ``memopt.memory_optimization`` on replays, by its own call.

Modules of some classes are checkpointed, split into their layers, split in time, and restored if
that does not raise the peak. Peaks are replayed, so no candidate can exhaust a device.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import nn

from ...core.units import format_bytes
from ..memory_budget import budget_of, check_model, device_of
from ..nn_errors import ModelArgumentError, TooLargeError, first_line
from ..replay.replay_step import precision
from ..step.call_inputs import CallInputs, bind_call
from ..step.layer_state import refuses_time_split
from ..step.model_step import ModelStep, optimizer_named
from .binary_inputs import names_of_compressors, probe_binary
from .candidates import Candidate
from .gradient_check import GradientCheck
from .recomputation import takes_statistics
from .reduction import with_integers
from .reduction_summary import ReductionSummary, describe_holders, fill_summary
from .rewrite import Rewrite, apply_rewrites, undo_rewrites
from .search import PlanSearch, ReductionPlan


class LevelOptions(NamedTuple):
    """Level of a reduction, and bounds of its splits."""

    level: int = 0
    """0 does nothing. Each further level adds a step: 1 checkpoints modules, 2 splits checkpoints
    into layers, 3 splits them in time, 4 removes checkpoints that do not lower the peak."""
    max_rounds: int | None = None
    """Maximum number of splits of levels 2 and 3."""
    max_candidates: int | None = None
    """Maximum number of modules that are tried for each split."""
    is_thorough: bool = True
    """False for one round of one candidate."""


PROFILES = {
    "safe": LevelOptions(1, 0, 0, False),
    "balanced": LevelOptions(2, 1, 1, False),
    "memory": LevelOptions(3, 2, 2),
    "exhaustive": LevelOptions(4),
}
BUDGETS = {"speed": 0.5, "balanced": 0.75, "memory": 1.0}
"""Fraction of the candidates that is checkpointed."""
PREFERENCES = {"speed": "safe", "balanced": "balanced", "memory": "memory"}
"""Profile of each preference. The checkpoint budget has the name of the preference."""


def memory_optimization(
    net: nn.Module,
    instance: type | tuple[type, ...],
    dummy_input: Any = None,
    compress_x: bool = True,
    level: int | None = None,
    verbose: bool = False,
    temporal_split_factor: int = 2,
    *,
    profile: str | None = None,
    prefer: str | None = None,
    checkpoint_budget: str | None = None,
    max_gc_wrapped_modules: int | None = None,
    gc_target_budget_ratio: float | None = None,
    max_split_rounds: int | None = None,
    max_candidates_per_round: int | None = None,
    allow_expensive_profiling: bool | None = None,
    compressors: Mapping[str, Any] | None = None,
    memory: str | int | None = None,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Callable[..., Any] | None = None,
    optimizer: Any = "adam",
    amp: torch.dtype | bool | None = None,
    return_summary: bool = False,
) -> nn.Module | tuple[nn.Module, ReductionSummary]:
    """Reduce the memory of training by levels, called as spikingjelly's function of that name.

    Parameters
    ----------
    net : torch.nn.Module
        Network, changed in place on the device where it is.
    instance : type or tuple of types
        Classes of the modules to checkpoint. Of nested ones, the outermost is taken. The method
        ``__spatial_split__`` of a class, if any, returns the modules into which it is split.
    dummy_input : tensor, Spec, or tuple or mapping of them, optional
        Arguments of the network, required above level 1. Values matter only for finding spikes.
    compress_x : bool
        Whether inputs of checkpoints are compressed.
    level : {0, 1, 2, 3, 4}, optional
        0: nothing. 1: checkpoints, with compressed inputs. 2: checkpoints that hold most at the
        peak become checkpoints of their layers. 3: checkpoints are run in parts of the time
        steps. 4: checkpoints that do not lower the peak are removed, the slowest first.
    verbose : bool
        Whether to print the summary.
    temporal_split_factor : int
        Factor by which each split in time raises the number of parts.
    profile : {"safe", "balanced", "memory", "exhaustive"}, optional
        Level 1, 2, 3 or 4 with 0, 1, 2 or any number of split rounds, and of candidates each.
    prefer : {"speed", "balanced", "memory"}, optional
        Profile "safe", "balanced" or "memory", with the checkpoint budget of the same name.
    checkpoint_budget : {"speed", "balanced", "memory"}, optional
        Half, three quarters or all of the candidates are checkpointed.
    max_gc_wrapped_modules, gc_target_budget_ratio : int, float, optional
        Maximum number, and maximum fraction, of the candidates that are checkpointed.
    max_split_rounds, max_candidates_per_round : int, optional
        Bounds of levels 2 and 3.
    allow_expensive_profiling : bool, optional
        If False, there is one split round of one candidate.
    memory : str or int, optional
        Memory of a card. The search stops as soon as the step fits.
    compressors : mapping, optional
        Compressor of a module's inputs, by its path: a name in
        `maxslices.nn.reduce.COMPRESSORS`, or "none". By default "bit" where all tried inputs
        held only 0 and 1. A module's attribute ``x_compressor`` has the same effect.
    loss, targets, optimizer, amp
        As for `reduce_memory`.
    return_summary : bool
        Whether to return the summary too.

    Returns
    -------
    torch.nn.Module
        The same object, with ``return_summary=True`` in a tuple with the summary.

    Raises
    ------
    TooLargeError
        If `memory` is given and the level does not reach it.
    ModelArgumentError
        If an option is unknown, or inputs are missing.

    Notes
    -----
    As by `reduce_memory`, gradients and state are compared, and rewrites that change them omitted.
    """
    began = time.perf_counter()
    notes: list[str] = []
    if prefer is not None:
        _check_name(prefer, PREFERENCES, "prefer")
        if profile is None:
            profile = PREFERENCES[prefer]
            notes.append(f"prefer:profile={profile}")
        if checkpoint_budget is None:
            checkpoint_budget = prefer
            notes.append(f"prefer:checkpoint_budget={checkpoint_budget}")
    explicit = (level, max_split_rounds, max_candidates_per_round, allow_expensive_profiling)
    options = options_of(profile, explicit, dummy_input is not None, notes)
    if checkpoint_budget is not None:
        _check_name(checkpoint_budget, BUDGETS, "checkpoint_budget")
    if temporal_split_factor < 2:
        raise ModelArgumentError(f"temporal_split_factor is 2 or more, not {temporal_split_factor}")
    check_model(net)
    undo_rewrites(net)
    summary = ReductionSummary(
        profile=profile, checkpoint_budget=checkpoint_budget, prefer=prefer,
        device=str(next((p.device for p in net.parameters()), "cpu")),
        requested_level=options.level if level is None else level, applied_level=options.level,
        compress_x=compress_x, allow_expensive_profiling=options.is_thorough, notes=notes,
        options={
            "max_split_rounds": options.max_rounds,
            "max_candidates_per_round": options.max_candidates,
            "temporal_split_factor": temporal_split_factor,
            "max_gc_wrapped_modules": max_gc_wrapped_modules,
            "gc_target_budget_ratio": gc_target_budget_ratio,
        },
    )  # fmt: skip
    search: PlanSearch | None = None
    binary: dict[str, tuple[bool, ...]] = {}
    if dummy_input is not None:
        call = CallInputs.of(dummy_input)
        step = ModelStep(
            net, "training", optimizer_named(optimizer), loss, targets, precision(amp),
            names=call.names,
        )  # fmt: skip
        if memory is not None:
            budget = budget_of(net, device_of(net, "cpu", memory), memory)
            summary.limit_bytes, summary.origin = budget.limit_bytes, budget.origin
        values = with_integers(call.values)
        search = PlanSearch(step, values, summary.limit_bytes, sys.maxsize, ("checkpoint",))
        search.unreduced()
        if compress_x and options.level:
            try:
                binary = probe_binary(bind_call(net, None, call.names), call.values)
            except (RuntimeError, TypeError, ValueError) as error:
                notes.append(f"inputs of 0 and 1 are not packed: {first_line(error)[:160]}")
    levels = _Levels(net, summary, search, temporal_split_factor, options)
    if options.level >= 1:
        paths = outermost(net, instance)
        n_chosen = how_many(
            len(paths), checkpoint_budget, max_gc_wrapped_modules, gc_target_budget_ratio
        )
        names = names_of_compressors(net, binary, compressors) if compress_x else {}
        levels.checkpoint(paths, n_chosen, names, {*(compressors or {})})
    if options.level >= 2:
        summary.spatial_split_count = levels.split("level2_spatial_split", levels.into_layers)
    if options.level >= 3:
        summary.temporal_split_count = levels.split("level3_temporal_split", levels.into_times)
    if options.level >= 4:
        levels.undo()
    levels.drop_failing()
    levels.fill()
    summary.search_s = time.perf_counter() - began - summary.check_s
    if summary.limit_bytes and not summary.fits:
        raise TooLargeError(
            f"level {options.level} needs {format_bytes(summary.needed_after_bytes)}, and there "
            f"are {format_bytes(summary.limit_bytes)} ({summary.origin}); the peak is held by "
            f"{describe_holders(summary)}. Try a higher level, or reduce_memory"
        )
    apply_rewrites(net, summary.rewrites)
    if verbose:
        print(summary)
    return (net, summary) if return_summary else net


def options_of(
    profile: str | None, explicit: tuple[Any, ...], has_inputs: bool, notes: list[str]
) -> LevelOptions:
    """Options of a profile, overridden by explicit ones.

    Parameters
    ----------
    profile : str, optional
        One of `PROFILES`.
    explicit : tuple
        Fields of `LevelOptions`, or None for those of the profile.
    has_inputs : bool
        Whether there are inputs to replay.
    notes : list of str
        List to which a note on each decision is added.

    Raises
    ------
    ModelArgumentError
        If a name is unknown, or if a level above 1 is requested without inputs.
    """
    options = LevelOptions()
    if profile is not None:
        _check_name(profile, PROFILES, "profile")
        options = PROFILES[profile]
        notes.append(f"profile:{profile}")
    fields = zip(LevelOptions._fields, explicit, strict=True)
    options = options._replace(**{name: value for name, value in fields if value is not None})
    if options.level not in range(5):
        raise ModelArgumentError(f"level {options.level!r} is not one of 0, 1, 2, 3, 4")
    if not options.is_thorough and options.level > 1:
        options = options._replace(max_rounds=1, max_candidates=1)
    if not has_inputs and options.level > 1:
        if profile is None:
            raise ModelArgumentError(
                f"level {options.level} needs inputs: splits are chosen by replays"
            )
        notes.append("fallback:level>1_requires_inputs")
        options = options._replace(level=1, max_rounds=0, max_candidates=0)
    return options


def _check_name(value: str, choices: Mapping[str, object], name: str) -> None:
    if value not in choices:
        raise ModelArgumentError(f"{name} {value!r} is not one of {', '.join(choices)}")


def how_many(
    n_candidates: int,
    checkpoint_budget: str | None,
    max_gc_wrapped_modules: int | None,
    gc_target_budget_ratio: float | None,
) -> int:
    """Number of candidates to checkpoint, the smallest of the bounds."""
    if gc_target_budget_ratio is None and max_gc_wrapped_modules is None and checkpoint_budget:
        gc_target_budget_ratio = BUDGETS[checkpoint_budget]
    bounds = [n_candidates]
    if max_gc_wrapped_modules is not None:
        bounds.append(max(0, max_gc_wrapped_modules))
    if gc_target_budget_ratio is not None:
        if gc_target_budget_ratio <= 0:
            return 0
        bounds.append(max(1, ceil(n_candidates * gc_target_budget_ratio)))
    return min(bounds)


def outermost(model: nn.Module, instance: type | tuple[type, ...]) -> list[str]:
    """Paths of the outermost modules of some classes."""
    paths: list[str] = []
    for path, module in model.named_modules():
        inside = any(path.startswith(p + ".") for p in paths)
        if path and isinstance(module, instance) and not inside:
            paths.append(path)
    return paths


class _Levels:
    """Rewrites of a reduction by levels, with the plan of the latest replay."""

    def __init__(
        self,
        model: nn.Module,
        summary: ReductionSummary,
        search: PlanSearch | None,
        factor: int,
        options: LevelOptions,
    ) -> None:
        self.summary, self.search = summary, search
        self.factor, self.options = factor, options
        self.modules = dict(model.named_modules())
        self.rewrites: dict[str, Rewrite] = {}
        self.checkpoints: dict[str, Candidate] = {}
        """Candidates for checkpoints, with saved bytes and costs, by path."""
        if search is None:
            return
        self.plan = search.tried[0]
        if options.level:
            search.find_candidates()
            self.checkpoints = {c.path: c for c in search.candidates}

    def _saved(self, path: str) -> int:
        return self.checkpoints[path].saved_bytes if path in self.checkpoints else 0

    def _cost(self, path: str) -> float:
        return self.checkpoints[path].cost_s if path in self.checkpoints else 0.0

    def _replayed(self, rewrites: dict[str, Rewrite]) -> ReductionPlan:
        assert self.search is not None
        chosen = []
        for path, rewrite in rewrites.items():
            candidate = self.checkpoints.get(path) or Candidate(path, rewrite, 0, (0, 0), [])
            chosen.append(replace(candidate, rewrite=rewrite))
        trace = self.search.trace(rewrites)
        return ReductionPlan(
            chosen, trace, self.summary.limit_bytes, sum(map(self._cost, rewrites))
        )

    def checkpoint(
        self, paths: list[str], n: int, names: Mapping[str, tuple[str, ...]], requested: set[str]
    ) -> None:
        """Level 1: checkpoint the n modules that save most at the peak."""
        summary = self.summary
        chosen, policy = paths, "all_candidates"
        if n < len(paths):
            policy = "fallback_module_order" if self.search is None else "most_saved_at_peak"
            policy = policy if n else "explicit_zero_budget"
            chosen = sorted(paths, key=lambda path: -self._saved(path))[:n]
        for path in chosen:
            its = names.get(path, ())
            self.rewrites[path] = Rewrite("checkpoint", its if set(its) - {"none"} else ())
            is_asked = (
                path in requested or getattr(self.modules[path], "x_compressor", None) is not None
            )
            n_bits = its.count("bit")
            if is_asked:
                summary.manual_compressor_count += max(1, len(its))
            else:
                summary.bit_compressor_count += n_bits
                summary.null_compressor_count += max(1, len(its)) - n_bits
        summary.gc_candidate_count = len(paths)
        summary.gc_wrap_count = summary.gc_selected_count = len(chosen)
        summary.gc_selected_modules = chosen
        summary.gc_selection_policy = policy
        summary.gc_selection_explanation = (
            f"{len(chosen)} of {len(paths)} matching modules are checkpointed ({policy})."
        )
        summary.applied_steps.append("level1_gc")
        if self.search is not None:
            self.plan = self._replayed(self.rewrites)

    def split(self, name: str, parts_of: Callable[[str], dict[str, Rewrite] | None]) -> int:
        """Levels 2 and 3: split the largest holders at the peak while that lowers it.

        Returns the number of splits.
        """
        summary, n_splits = self.summary, 0
        if not self.rewrites:
            summary.skipped_steps.append(f"{name.split('_')[0]}:no_checkpoints")
            return 0
        blocked: set[str] = set()
        summary.applied_steps.append(name)
        rounds = sys.maxsize if self.options.max_rounds is None else self.options.max_rounds
        for _ in range(rounds):
            if summary.limit_bytes and self.plan.needed_bytes <= summary.limit_bytes:
                break
            heavy = [path for path in self._heaviest() if path not in blocked]
            for path in heavy[: self.options.max_candidates]:
                blocked.add(path)
                parts = parts_of(path)
                if parts is None:
                    continue
                rewrites = {p: t for p, t in self.rewrites.items() if p != path} | parts
                plan = self._replayed(rewrites)
                if plan.trace.peak_bytes < self.plan.trace.peak_bytes:
                    self.rewrites, self.plan = rewrites, plan
                    n_splits += 1
                    blocked.discard(path)
                    break
            else:
                summary.skipped_steps.append(f"{name.split('_')[0]}:no_improving_candidate")
                break
        return n_splits

    def _heaviest(self) -> list[str]:
        """Checkpointed modules, sorted by bytes held at the peak and then by saved bytes."""
        at_peak: dict[str, int] = {}
        for module, n_bytes in self.plan.trace.peak.by_module().items():
            for path in self.rewrites:
                if module == path or module.startswith(path + "."):
                    at_peak[path] = at_peak.get(path, 0) + n_bytes
        return sorted(self.rewrites, key=lambda p: (-at_peak.get(p, 0), -self._saved(p)))

    def into_layers(self, path: str) -> dict[str, Rewrite] | None:
        """Rewrites with one checkpoint for each layer, the first with the module's compressor."""
        children = layers_of(self.modules[path])
        if len(children) < 2 or self.rewrites[path].parts > 1:
            return None
        first = self.rewrites[path].compressors
        return {
            f"{path}.{name}": Rewrite("checkpoint", first if index == 0 else ())
            for index, name in enumerate(children)
        }

    def into_times(self, path: str) -> dict[str, Rewrite] | None:
        """Rewrite with more parts of the time steps."""
        reason = refuses_time_split(self.modules[path])
        layers = [p for p, m in self.modules[path].named_modules() if takes_statistics(m)]
        if layers and not reason:
            reason = (
                f"{len(layers)} layers take the statistics of all steps, the first is "
                f"{path}.{layers[0]}"
            )
        if reason:
            self.summary.notes.append(f"{path} is not split in time: {reason}")
            return None
        rewrite = self.rewrites[path]
        return {path: replace(rewrite, parts=rewrite.parts * self.factor)}

    def undo(self) -> None:
        """Level 4: remove checkpoints that do not lower the peak, the slowest first."""
        limit = self.summary.limit_bytes
        self.summary.applied_steps.append("level4_greedy_unwrap")
        for path in sorted(self.rewrites, key=lambda p: -self._cost(p)):
            rewrites = {p: t for p, t in self.rewrites.items() if p != path}
            plan = self._replayed(rewrites)
            is_lower = plan.trace.peak_bytes <= self.plan.trace.peak_bytes
            if is_lower or (limit and plan.needed_bytes <= limit):
                self.rewrites, self.plan = rewrites, plan
                self.summary.unwrap_count += 1

    def drop_failing(self) -> None:
        """Drop rewrites that change gradients or state on small inputs."""
        search = self.search
        if search is None or not self.rewrites:
            return
        check = GradientCheck(search.step, search.inputs)
        while failing := search.drop_failing_rewrites(check, [self.plan]):
            kept = {p: r for p, r in self.rewrites.items() if (p, r.kind) not in failing}
            self.rewrites, self.plan = kept, self._replayed(kept)
        self.summary.check_s = check.check_s

    def fill(self) -> None:
        """Fill in the summary."""
        summary, level = self.summary, self.options.level
        summary.rewrites = dict(self.rewrites)
        summary.tcgc_container_count = sum(t.parts > 1 for t in self.rewrites.values())
        summary.gc_container_count = len(self.rewrites) - summary.tcgc_container_count
        if self.search is None:
            summary.recommendation = "Pass inputs: then the peak is predicted, and reduced further."
            return
        fill_summary(summary, self.search, self.plan)
        if level and not summary.gc_candidate_count:
            held = next(iter(summary.holds_peak_modules), "")
            summary.recommendation = (
                "The model has no modules of these classes, so it is unchanged. Pass the class of "
                f"{held or 'the model'}, or call reduce_memory, which needs no classes."
            )
        else:
            more = f"try level {level + 1} or reduce_memory" if level < 4 else "call reduce_memory"
            summary.recommendation = f"For a lower peak, {more}."


def layers_of(module: nn.Module) -> list[str]:
    """Paths of the layers into which a module is split: ``__spatial_split__``, or its children."""
    if hasattr(module, "__spatial_split__"):  # spikingjelly's
        named: Callable[[], Any] = module.__spatial_split__  # type: ignore[assignment]
        parts = {id(part) for part in named()}
        return [name for name, part in module.named_modules() if id(part) in parts]
    return [name for name, _ in module.named_children()]
