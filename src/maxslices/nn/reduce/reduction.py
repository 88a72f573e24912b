"""Reduction of a training step to a memory limit, for the least added time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ...core.units import format_bytes
from ..memory_budget import budget_of, capability_of, check_model, device_of
from ..nn_errors import ModelArgumentError, TooLargeError
from ..replay import Workspaces
from ..step.call_inputs import CallInputs, called
from ..step.layer_state import ResettingStep
from ..step.model_step import optimizer_named, precision
from .binary_inputs import may_be_binary, probe_binary
from .confirm import confirm, fastest, finalists, run_unreduced, too_large_message
from .device_rates import DeviceRates, ForwardTimes
from .gradient_check import OTHER_DRAWS, GradientCheck
from .inplace import safe_in_place, set_in_place
from .model_inputs import names_of_compressors, with_targets
from .plan_search import PlanSearch
from .reduction_plan import ReductionPlan, has_expandable_segments
from .reduction_summary import ReductionSummary
from .rewrite import apply_rewrites, undo_rewrites
from .rewrite_cost import flops_by_module
from .rewrite_search import RewriteSearch, rewrites_of
from .run_on_device import resolve_device

MEANS = ("in-place", "pack", "selective", "checkpoint", "split", "offload")
"""Kinds of rewrites, all exact; "split" sums weights' gradients in another order."""


def reduce_memory(
    model: nn.Module,
    inputs: Any,
    memory: str | int | None = None,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Callable[..., Any] | None = None,
    optimizer: Any = "adam",
    amp: torch.dtype | bool | None = None,
    prediction_function: Callable[..., Any] | str | None = None,
    means: Sequence[str] = MEANS,
    compressors: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
    max_replays: int = 64,
) -> tuple[nn.Module, ReductionSummary]:
    """Rewrite a model so that a training step fits into the memory of a card.

    Parameters
    ----------
    model : torch.nn.Module
        Model, changed in place on the device where it is. Parameters, their names and results
        stay the same; `restore` undoes the rewrites.
    inputs : shape, Spec, tensor, or a tuple or mapping of them
        Arguments of the model in the step that is to fit; a mapping has keyword arguments. Their
        values are read only to find binary inputs.
    memory : str or int, optional
        Memory of the card, such as "12GB", or its name, such as "RTX 4090"; by default what is free
        on the device. CUDA's context (0.6 GB) is subtracted.
    loss : callable, optional
        ``loss(output, *targets)``; by default the model's own, a scalar ``loss`` in its output,
        else the sum of the output.
    targets : callable, optional
        Function of the inputs' `Spec` that returns the targets' `Spec`; by default by the loss.
    optimizer : str, torch.optim.Optimizer, callable or None
        As for `maxslices.nn.max_batch_size`.
    amp : torch.dtype or bool, optional
        Lower precision of autocast; True is float16.
    prediction_function : callable or str, optional
        ``prediction_function(model, *inputs)``, or the name of a method of the model, called in
        place of the model.
    means : sequence of str
        Kinds of rewrites that may be used, of `MEANS`.
    compressors : mapping, optional
        Compressor of a module's inputs, by its path: a name in
        `maxslices.nn.reduce.COMPRESSORS`, or "none". By default "bit" where all tried inputs
        held only 0 and 1. A module's attribute ``x_compressor`` counts too.
    device : torch.device or str, optional
        Device that confirms the plan; by default the model's, else this process's.
    max_replays : int
        Replays of plans after which the best one so far is taken; as many again after each plan
        that the comparison of gradients refused. The same call finds the same plan, however long a
        replay takes.

    Returns
    -------
    torch.nn.Module
        The same object.
    ReductionSummary
        Rewrites, and memory and times before and after, predicted and (with a device) measured.

    Raises
    ------
    TooLargeError
        If no plan fits; the message has the smallest memory that would do and what holds it.
        The model is left unchanged.
    ModelArgumentError
        If an argument is wrong, or the model does not run on the inputs.

    Notes
    -----
    With deterministic kernels, gradients are those of the unreduced model to the bit, except
    with "split", which sums weights' gradients in parts. Before a plan is returned, a step of a
    copy of the model with it is compared with an unreduced one, on small inputs and where the
    model is: results, gradients and state dict. Rewrites that change them are not used, and the
    summary's notes name them.
    """
    check_model(model)
    unknown = [means] if isinstance(means, str) else [m for m in means if m not in MEANS]
    if unknown:
        raise ModelArgumentError(f"means is a list of some of {MEANS}, not {unknown[0]!r}")
    if max_replays < 1:
        raise ModelArgumentError(f"max_replays is 1 or more, not {max_replays}")
    call = CallInputs.of(inputs)
    specs = call.specs
    undo_rewrites(model)
    cuda_device = device_of(model, device or _own_device(model), memory)
    budget = budget_of(model, cuda_device, memory)
    step = with_targets(
        ResettingStep(
            model, "training", optimizer_named(optimizer), loss, targets, precision(amp),
            prediction_function, names=call.names, capability=capability_of(cuda_device, memory),
        )
    )  # fmt: skip
    workspaces = Workspaces.allowance()
    began = time.perf_counter()
    before = step.trace(specs, workspaces)
    limit = budget.limit_bytes
    searcher = RewriteSearch(step, specs, workspaces, limit, max_replays, cuda_device)
    before = searcher.measured(before)
    best = ReductionPlan([], before, limit)
    summary = ReductionSummary(
        device=str(cuda_device or next((p.device for p in model.parameters()), "cpu")),
        limit_bytes=limit,
        origin=budget.origin,
        workspaces=searcher.workspaces.origin,
        peak_before_bytes=before.allocated_bytes,
        needed_before_bytes=best.needed_bytes,
        options={"means": tuple(means), "memory": memory},
        notes=list(before.notes),
    )
    rates = DeviceRates.stated(step.amp)
    search = PlanSearch(
        searcher,
        means,
        {},
        flops_by_module(step, specs),
        ForwardTimes(rates, origin=rates.origin),
    )
    check = GradientCheck(step, specs)
    if best.needed_bytes > limit:
        if "in-place" in means:
            searcher.in_place = check.in_place = safe_in_place(step, specs)
            if check.in_place and (wrong := check.difference({})) is not None:
                summary.notes.append(f"activations do not work in place: {wrong}")
                searcher.in_place = check.in_place = ()
            if searcher.in_place:
                in_place = ReductionPlan([], searcher.trace({}), limit)
                if in_place.trace.peak_bytes < before.peak_bytes:
                    best = in_place
                else:
                    searcher.in_place = check.in_place = ()
        if best.needed_bytes > limit:
            search.measure_times()
            whole_model = called(model, prediction_function, call.names)
            probed = "pack" in means and may_be_binary(model, before)
            binary = probe_binary(whole_model, call.values) if probed else {}
            search.compressors = names_of_compressors(model, binary, compressors)
            best = search.best(before, summary)
            while search.refuse_wrong(
                check, _handed_over(searcher, best, cuda_device), summary.notes
            ):
                searcher.max_replays = searcher.n_replays + max_replays  # it begins anew
                best = search.best(before, summary)
    summary.check_s = check.check_s
    summary.search_s = time.perf_counter() - began - searcher.measuring_s - check.check_s
    made = whole = None
    if cuda_device is not None:
        whole = run_unreduced(summary, step, specs, cuda_device)
        found = fastest(finalists(searcher, best), searcher, specs, cuda_device)
        best, made = found or (best, None)
    if check.draws_differ(rewrites_of(best.chosen)):
        summary.notes.append(OTHER_DRAWS)
    _fill(summary, searcher, best, search)
    if made is None and (cuda_device is not None or not summary.fits):
        raise TooLargeError(too_large_message(summary, best.trace))
    if made is not None:
        confirm(summary, made, whole)
    set_in_place(model, summary.in_place)
    apply_rewrites(model, summary.rewrites)
    return model, summary


def restore(model: nn.Module, summary: ReductionSummary) -> nn.Module:
    """Undo the rewrites of `reduce_memory`, and return the model."""
    undo_rewrites(model)
    set_in_place(model, summary.in_place, False)
    return model


def _handed_over(
    searcher: RewriteSearch, best: ReductionPlan, device: torch.device | None
) -> list[ReductionPlan]:
    """Plans of which one will be returned."""
    if device is not None:
        return finalists(searcher, best)
    return [best] if searcher.fits(best) else []


def _own_device(model: nn.Module) -> torch.device | None:
    first = next(iter(model.parameters()), None)
    if first is not None and first.device.type == "cuda":
        return first.device
    own = resolve_device()
    return own if own.type == "cuda" else None


def _fill(
    summary: ReductionSummary,
    searcher: RewriteSearch,
    best: ReductionPlan,
    search: PlanSearch,
) -> None:
    chosen, after, flops = best.chosen, best.trace, search.flops
    summary.in_place = list(searcher.in_place)
    summary.rewrites = {c.path: c.rewrite for c in chosen}
    summary.notes += dict.fromkeys(searcher.notes)
    summary.peak_after_bytes = after.allocated_bytes
    summary.needed_after_bytes = best.needed_bytes
    summary.forward_flops = flops[""].total
    summary.recomputed_flops = sum(c.recomputed_flops for c in chosen)
    summary.predicted_added_s = best.added_s
    summary.refused_s = best.refused_s
    summary.times_origin = search.times.origin
    summary.holds_peak = after.peak.by_category()
    summary.holds_peak_modules = dict(list(after.peak.by_module().items())[:8])
    summary.n_replays = searcher.n_replays + 1
    again = [c for c in chosen if c.rewrite.kind in ("checkpoint", "selective")]
    summary.gc_wrap_count = summary.gc_container_count = summary.gc_selected_count = len(again)
    summary.gc_selected_modules = [c.path for c in again]
    summary.gc_selection_explanation = (
        f"{len(again)} modules are computed again: the least time for which the traced peak "
        "stays within the limit."
    )
    lost = after.needed_bytes - after.peak_bytes
    if not chosen:
        summary.recommendation = (
            "Nothing is computed again: max_batch_size says how large a batch may be."
        )
    elif not has_expandable_segments():
        summary.recommendation = (
            f"{format_bytes(lost)} are needed for gaps between blocks: "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, set before the process starts, "
            "avoids them, and a cheaper plan may then fit"
        )
    else:
        summary.recommendation = (
            "For a faster step, run parts of the batch by backward_in_parts, or a smaller batch; "
            f"unreduced, the step needs {format_bytes(summary.needed_before_bytes)} for tensors"
        )
    names = [name for c in chosen for name in c.rewrite.compressors]
    summary.bit_compressor_count = names.count("bit")
    summary.null_compressor_count = names.count("none")
    banded = [c for c in chosen if c.rewrite.window is not None]
    summary.spatial_split_count = len(banded)
    summary.tcgc_container_count = summary.temporal_split_count = sum(
        c.rewrite.parts > 1 for c in chosen if c not in banded
    )
    for kind in dict.fromkeys(c.rewrite.kind for c in chosen):
        summary.applied_steps.append(kind)
    if summary.in_place:
        summary.applied_steps.append("in-place")
