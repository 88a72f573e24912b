"""Reduction of a training step to a memory limit, for the least added time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ...core.units import format_bytes
from ..memory_budget import budget_of, capability_of, check_model, device_of
from ..nn_errors import ModelArgumentError, TooLargeError
from ..replay import Spec
from ..replay.nested import mapped
from ..replay.replay_step import precision
from ..step.call_inputs import CallInputs
from ..step.model_step import ModelStep, optimizer_named
from .gradient_check import OTHER_DRAWS, GradientCheck
from .reduction_summary import ReductionSummary
from .rewrite import apply_rewrites, undo_rewrites
from .run_on_device import (
    confirm,
    fastest,
    resolve_device,
    run_unreduced,
    too_large_message,
)
from .search import PlanSearch, ReductionPlan, has_expandable_segments

MEANS = ("selective", "checkpoint", "split", "offload")
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
        Arguments of the model in the step that is to fit; a mapping has keyword arguments.
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
    given = with_integers(call.values)
    undo_rewrites(model)
    cuda_device = device_of(model, device or _own_device(model), memory)
    budget = budget_of(model, cuda_device, memory)
    step = ModelStep(
        model, "training", optimizer_named(optimizer), loss, targets, precision(amp),
        prediction_function, names=call.names, capability=capability_of(cuda_device, memory),
    )  # fmt: skip
    began = time.perf_counter()
    search = PlanSearch(step, given, budget.limit_bytes, max_replays, means, cuda_device)
    check = GradientCheck(step, given)
    before = best = search.unreduced()
    if not search.fits(before):
        search.measure_times()
        best = search.without_wrong(check)
    summary = ReductionSummary(
        device=str(cuda_device or next((p.device for p in model.parameters()), "cpu")),
        limit_bytes=budget.limit_bytes,
        origin=budget.origin,
        peak_before_bytes=before.trace.allocated_bytes,
        needed_before_bytes=before.needed_bytes,
        options={"means": tuple(means), "memory": memory},
        check_s=check.check_s,
        search_s=time.perf_counter() - began - search.measuring_s - check.check_s,
    )
    made = whole = None
    if cuda_device is not None:
        whole = run_unreduced(summary, step, given, cuda_device)
        found = fastest(search.finalists(best), search, cuda_device)
        best, made = found or (best, None)
    if check.draws_differ(best.rewrites):
        search.notes.append(OTHER_DRAWS)
    fill_summary(summary, search, best)
    summary.applied_steps += dict.fromkeys(c.rewrite.kind for c in best.chosen)
    if made is None and (cuda_device is not None or not summary.fits):
        raise TooLargeError(too_large_message(summary, best.trace))
    if made is not None:
        confirm(summary, made, whole)
    apply_rewrites(model, summary.rewrites)
    return model, summary


def restore(model: nn.Module, summary: ReductionSummary) -> nn.Module:
    """Undo the rewrites of `reduce_memory`, and return the model."""
    undo_rewrites(model)
    return model


def _own_device(model: nn.Module) -> torch.device | None:
    first = next(iter(model.parameters()), None)
    if first is not None and first.device.type == "cuda":
        return first.device
    own = resolve_device()
    return own if own.type == "cuda" else None


def fill_summary(summary: ReductionSummary, search: PlanSearch, plan: ReductionPlan) -> None:
    """Enter a plan into a summary."""
    after = plan.trace
    summary.rewrites = plan.rewrites
    summary.notes += dict.fromkeys(search.notes)
    summary.workspaces, summary.times_origin = search.workspaces.origin, search.times.origin
    summary.peak_after_bytes = after.allocated_bytes
    summary.needed_after_bytes = plan.needed_bytes
    summary.forward_flops = search.forward_flops
    summary.recomputed_flops = sum(c.recomputed_flops for c in plan.chosen)
    summary.predicted_added_s = plan.added_s
    summary.holds_peak = after.peak.by_category()
    summary.holds_peak_modules = dict(list(after.peak.by_module().items())[:8])
    summary.n_replays = search.n_replays
    lost = after.needed_bytes - after.peak_bytes
    if plan.chosen and not has_expandable_segments():
        summary.recommendation = (
            f"{format_bytes(lost)} are needed for gaps between blocks: "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, set before the process starts, "
            "avoids them, and a cheaper plan may then fit"
        )


def with_integers(values: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments with a `Spec` for each tensor but those of integers, whose values decide.

    They are lengths of sequences, indices or classes. Numbers are random wherever they are needed:
    the zeros of a made-up input have hardly any gradients.
    """

    def converted(item: Any) -> Any:
        if not torch.is_tensor(item) or item.is_meta or not item.is_floating_point():
            is_number = torch.is_tensor(item) and item.is_meta
            return Spec(tuple(item.shape), item.dtype) if is_number else item
        return Spec(tuple(item.shape), item.dtype, item.requires_grad)

    return tuple(mapped(converted, value) for value in values)
