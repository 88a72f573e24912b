"""Reduction of a training step to a memory limit, for the least added time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ..memory_budget import budget_of, capability_of, check_model, device_of
from ..nn_errors import ModelArgumentError, TooLargeError
from ..replay import Spec
from ..replay.nested import map_leaves
from ..replay.replay_step import precision
from ..step.call_inputs import CallInputs
from ..step.model_step import ModelStep, optimizer_named
from .gradient_check import GradientCheck
from .reduction_summary import ReductionSummary, fill_summary, too_large_message
from .rewrite import apply_rewrites, undo_rewrites
from .run_on_device import fastest, resolve_device, run_unreduced
from .search import PlanSearch

MEANS = ("selective", "checkpoint", "split", "offload")
"""Kinds of rewrites. All are exact, but "split" sums weights' gradients in another order."""


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
        Model, changed in place on its device. Parameters, their names and results stay the same.
        `restore` undoes the rewrites.
    inputs : shape, Spec, tensor, or a tuple or mapping of them
        Arguments of the model in the step. A mapping has keyword arguments.
    memory : str or int, optional
        Memory of the card, such as "12GB", or its name, such as "RTX 4090". The default is the free
        memory of the device. CUDA's context (0.6 GB) is subtracted.
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
        Device that runs the plan. The default is that of the model, or of this process.
    max_replays : int
        Number of replays after which the best plan is taken. A search that starts again after a
        failed comparison of gradients has as many. The same call finds the same plan, however long
        a replay takes.

    Returns
    -------
    torch.nn.Module
        The same object.
    ReductionSummary
        Rewrites, and memory and times before and after, predicted and (with a device) measured.

    Raises
    ------
    TooLargeError
        If no plan fits. The message has the smallest sufficient memory and what holds it. The
        model is unchanged.
    ModelArgumentError
        If an argument is wrong, or the model does not run on the inputs.

    Notes
    -----
    With deterministic kernels, gradients equal those of the unreduced model to the bit, except
    with "split", which sums weights' gradients in parts. Before a plan is returned, results,
    gradients and state dict of a step of a rewritten copy are compared with those of an unreduced
    one, on small inputs on the model's device. Rewrites that change them are not used, and named
    in the summary's notes.
    """
    check_model(model)
    unknown = [means] if isinstance(means, str) else [m for m in means if m not in MEANS]
    if unknown:
        raise ModelArgumentError(
            f"unknown rewrite {unknown[0]!r} in means: choose from {', '.join(MEANS)}"
        )
    if max_replays < 1:
        raise ModelArgumentError(f"max_replays is 1 or more, not {max_replays}")
    call = CallInputs.of(inputs)
    values = with_integers(call.values)
    undo_rewrites(model)
    cuda_device = device_of(model, device or _own_device(model), memory)
    budget = budget_of(model, cuda_device, memory)
    step = ModelStep(
        model, "training", optimizer_named(optimizer), loss, targets, precision(amp),
        prediction_function, names=call.names, capability=capability_of(cuda_device, memory),
    )  # fmt: skip
    began = time.perf_counter()
    search = PlanSearch(step, values, budget.limit_bytes, max_replays, means, cuda_device)
    check = GradientCheck(step, values)
    before = best = search.unreduced()
    if not search.fits(before):
        search.find_candidates()
        best = search.cheapest_correct(check)
    summary = ReductionSummary(
        device=str(cuda_device or next((p.device for p in model.parameters()), "cpu")),
        limit_bytes=budget.limit_bytes,
        origin=budget.origin,
        options={"means": tuple(means), "memory": memory},
        check_s=check.check_s,
        search_s=time.perf_counter() - began - search.measuring_s - check.check_s,
    )
    unreduced = reduced = None
    if cuda_device is not None:
        unreduced = run_unreduced(search, cuda_device)
        best, reduced = fastest(search.finalists(best), search, cuda_device) or (best, None)
    fill_summary(summary, search, best)
    summary.applied_steps += dict.fromkeys(c.rewrite.kind for c in best.chosen)
    if reduced is None and (cuda_device is not None or not summary.fits):
        raise TooLargeError(too_large_message(summary, best.trace))
    if reduced is not None:
        summary.measured_after_bytes = reduced.allocated_bytes
        summary.measured_step_s = reduced.step_s
    if reduced is not None and unreduced is not None:
        summary.measured_before_bytes = unreduced.allocated_bytes
        summary.measured_step_before_s = unreduced.step_s
        summary.predicted_step_s = unreduced.step_s + summary.predicted_added_s
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


def with_integers(values: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments with a `Spec` in place of each floating-point tensor.

    Integers are lengths of sequences, indices or classes, so their values are kept. Numbers are
    replaced by random ones where needed, as an example input of zeros has hardly any gradients.
    """

    def converted(item: Any) -> Any:
        if not torch.is_tensor(item) or item.is_meta or not item.is_floating_point():
            is_number = torch.is_tensor(item) and item.is_meta
            return Spec(tuple(item.shape), item.dtype) if is_number else item
        return Spec(tuple(item.shape), item.dtype, item.requires_grad)

    return tuple(map_leaves(converted, value) for value in values)
