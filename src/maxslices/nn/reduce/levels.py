"""Reduction by levels: modules of given classes are checkpointed, split and restored in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ..memory_budget import check_model
from ..nn_errors import ModelArgumentError, TooLargeError
from ..step.call_inputs import CallInputs, called
from ..step.layer_state import ResettingStep
from ..step.model_step import optimizer_named, precision
from .binary_inputs import may_be_binary, probe_binary
from .confirm import describe_holders
from .level_rounds import LevelReduction
from .model_inputs import names_of_compressors
from .presets import how_many, resolve
from .reduction import with_targets
from .reduction_summary import ReductionSummary
from .rewrite import apply_rewrites, undo_rewrites


def reduce_by_level(
    model: nn.Module,
    instance: type | tuple[type, ...],
    inputs: Any = None,
    *,
    level: int | None = None,
    profile: str | None = None,
    prefer: str | None = None,
    checkpoint_budget: str | None = None,
    max_gc_wrapped_modules: int | None = None,
    gc_target_budget_ratio: float | None = None,
    max_split_rounds: int | None = None,
    max_candidates_per_round: int | None = None,
    temporal_split_factor: int = 2,
    compress_x: bool | None = None,
    compressors: Mapping[str, Any] | None = None,
    allow_expensive_profiling: bool | None = None,
    memory: str | int | None = None,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Callable[..., Any] | None = None,
    optimizer: Any = "adam",
    amp: torch.dtype | bool | None = None,
    return_summary: bool = False,
) -> nn.Module | tuple[nn.Module, ReductionSummary]:
    """Reduce the memory of training by levels, as spikingjelly's memopt pipeline does.

    Every peak is that of a replay: the search runs nothing on a device, so no candidate can
    exhaust it. A model that is on a CUDA device is run there afterwards, unreduced if there is
    room, and reduced.

    Parameters
    ----------
    model : torch.nn.Module
        Model, changed in place on the device where it is.
    instance : type or tuple of types
        Classes of the modules to checkpoint; of nested ones the outermost.
    inputs : tensor, Spec or tuple of them, optional
        Arguments of the model; needed above level 1.
    level : {0, 1, 2, 3, 4}, optional
        0: nothing. 1: checkpoints, with compressed inputs. 2: checkpoints that hold most at the
        peak become checkpoints of their layers. 3: checkpoints are run in parts of the time
        steps. 4: checkpoints that do not lower the peak are removed, the slowest first.
    profile : {"safe", "balanced", "memory", "exhaustive"}, optional
        Level 1, 2, 3 or 4 with 0, 1, 2 or any number of split rounds, and of candidates each.
    prefer : {"speed", "balanced", "memory"}, optional
        Profile "safe", "balanced" or "memory", with the checkpoint budget of the same name.
    checkpoint_budget : {"speed", "balanced", "memory"}, optional
        Half, three quarters or all of the candidates are checkpointed.
    max_gc_wrapped_modules, gc_target_budget_ratio : int, float, optional
        Number, or fraction, of the candidates that is checkpointed; the smaller counts.
    max_split_rounds, max_candidates_per_round : int, optional
        Bounds of levels 2 and 3.
    temporal_split_factor : int
        Factor by which each split in time raises the number of parts.
    compress_x : bool, optional
        Whether inputs of checkpoints are compressed; by default they are.
    compressors : mapping, optional
        As for `reduce_memory`.
    allow_expensive_profiling : bool, optional
        If False, there is one split round of one candidate.
    memory : str or int, optional
        Memory of a card; the search stops as soon as the step fits.
    loss, targets, optimizer, amp
        As for `reduce_memory`.
    return_summary : bool
        Whether to return the summary too.

    Raises
    ------
    TooLargeError
        If `memory` is given and the level does not reach it, as predicted or on the device.
    ModelArgumentError
        If an option is unknown, or inputs are missing.

    Notes
    -----
    Gradients and state are compared as by `reduce_memory`, and rewrites that change them left out.
    """
    began = time.perf_counter()
    options = resolve(
        level=level, profile=profile, prefer=prefer, checkpoint_budget=checkpoint_budget,
        compress_x=compress_x, max_split_rounds=max_split_rounds,
        max_candidates_per_round=max_candidates_per_round,
        allow_expensive_profiling=allow_expensive_profiling, has_inputs=inputs is not None,
    )  # fmt: skip
    if temporal_split_factor < 2:
        raise ModelArgumentError(f"temporal_split_factor is 2 or more, not {temporal_split_factor}")
    check_model(model)
    undo_rewrites(model)
    summary = ReductionSummary(
        profile=options.profile, checkpoint_budget=options.checkpoint_budget, prefer=prefer,
        device=str(next((p.device for p in model.parameters()), "cpu")),
        requested_level=level if level is not None else options.level,
        applied_level=options.level, compress_x=options.compress_x,
        allow_expensive_profiling=options.allow_expensive_profiling, notes=options.notes,
        options={
            "max_split_rounds": options.max_split_rounds,
            "max_candidates_per_round": options.max_candidates_per_round,
            "temporal_split_factor": temporal_split_factor,
            "max_gc_wrapped_modules": max_gc_wrapped_modules,
            "gc_target_budget_ratio": gc_target_budget_ratio,
        },
    )  # fmt: skip
    work = LevelReduction(model, summary, temporal_split_factor, options.max_split_rounds,
                 options.max_candidates_per_round)  # fmt: skip
    binary: dict[str, tuple[bool, ...]] = {}
    if inputs is not None:
        call = CallInputs.of(inputs)
        step = with_targets(
            ResettingStep(
                model, "training", optimizer_named(optimizer), loss, targets, precision(amp),
                names=call.names,
            )
        )  # fmt: skip
        work.prepare(step, call.specs, memory)
        if options.compress_x and options.level and work.now and may_be_binary(model, work.now):
            binary = probe_binary(called(model, None, call.names), call.values)
    names = names_of_compressors(model, binary, compressors) if options.compress_x else {}
    if options.level >= 1:
        found = work.outermost(instance)
        n_chosen = how_many(
            len(found), options.checkpoint_budget, max_gc_wrapped_modules, gc_target_budget_ratio
        )
        work.checkpoint(found, n_chosen, names, {*(compressors or {})})
    if options.level >= 2:
        work.rounds("spatial", "level2_spatial_split", work.by_layers)
    if options.level >= 3:
        work.rounds("temporal", "level3_temporal_split", work.by_time)
    if options.level >= 4:
        work.undo()
    if work.plan:
        work.check()
    work.finish()
    summary.search_s = time.perf_counter() - began - summary.check_s
    if summary.limit_bytes and not summary.fits:
        raise TooLargeError(
            f"level {options.level} reaches {summary.needed_after_bytes:,} bytes, and "
            f"{summary.limit_bytes:,} are there ({summary.origin}); held by "
            f"{describe_holders(summary)}. Try a higher level, or reduce_memory"
        )
    work.confirm()
    apply_rewrites(model, summary.rewrites)
    return (model, summary) if return_summary else model
