"""Parts of a batch and of time steps: candidates that run modules in parts, and steps in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ...core.allocators import round_to_granule
from ..nn_errors import ModelArgumentError
from ..replay import Replay, Spec, Workspaces
from ..replay.nested import leaves, mapped
from ..step.layer_state import refuses_time_split, stateful
from ..step.model_step import ModelStep
from .block_state import BlockState, StateWatch, takes_statistics
from .candidates import SMALL_BYTES, Candidate
from .rewrite import Rewrite
from .study import ForwardCall, StepStudy, modules_and_ranges

PARTS = (2, 4, 8)
"""Numbers of parts that are offered, each half the size of the one before."""


def batch_statistics(module: nn.Module) -> list[str]:
    """Layers whose statistics would differ in parts of a batch."""
    return [path for path, each in module.named_modules() if takes_statistics(each)]


def time_candidates(
    study: StepStudy, model: nn.Module, compressors: dict[str, tuple[str, ...]]
) -> list[Candidate]:
    """Candidates that run stateful modules in parts of their time steps, with states carried on.

    Neurons that see all time steps at once, and layers that take the statistics of all time
    steps, are left whole.
    """
    made: list[Candidate] = []
    modules = modules_and_ranges(model)
    for call in study.calls:
        module = modules.get(call.path)
        if module is None or not stateful(module):
            continue
        if refuses_time_split(module) or batch_statistics(module):
            continue
        begin = study.begins.get(call.path)
        names = compressors.get(call.path, ())
        names = names if set(names) - {"none"} else ()
        for parts in PARTS:
            if begin is not None and parts <= call.n_first:
                rewrite = Rewrite("checkpoint", names, parts)
                made += _candidate(study, call, begin, rewrite)
    return made


def layer_candidates(study: StepStudy, model: nn.Module) -> list[Candidate]:
    """Candidates that run convolutions in parts of their first axis, for a smaller workspace.

    Nothing is recomputed; results and gradients of the parts are concatenated.
    """
    made: list[Candidate] = []
    modules = dict(model.named_modules())
    trace, usage = study.trace, study.usage
    workspaces: dict[str, list[tuple[int, int]]] = {}
    for event, (kind, index) in enumerate(trace.events):
        if kind == "call" and event:
            n_bytes = int(usage[event] - usage[event - 1])
            if n_bytes >= SMALL_BYTES:
                workspaces.setdefault(trace.calls[index].module, []).append((event, n_bytes))
    n_calls = [call.path for call in study.calls]
    for call in study.calls:
        module = modules.get(call.path)
        if not isinstance(module, nn.modules.conv._ConvNd) or n_calls.count(call.path) > 1:
            continue
        begin, its = study.begins.get(call.path), workspaces.get(call.path)
        if begin is None or its is None:
            continue
        moved = sum(trace.storages[i].n_bytes for i in (*call.inputs, *call.outputs))
        results = sum(round_to_granule(trace.storages[i].n_bytes) for i in call.outputs)
        given = {trace.storages[i].n_bytes for i in call.inputs}
        # Gradients of the parts are put together after the last workspace is freed,
        # and after the gradient of the result.
        together = sum(
            round_to_granule(s.n_bytes)
            for s in trace.storages
            if s.born >= begin and s.module == call.path and s.n_bytes in given
            and s.category != "gradients"
        )  # fmt: skip
        for parts in PARTS:
            if parts > call.n_first:
                continue
            over = [
                (
                    event,
                    event + 1,
                    max(n_bytes // parts, (together - results) * (event >= begin)) - n_bytes,
                )
                for event, n_bytes in its
            ]
            changes = [*over, (call.end - 1, call.end, results)]
            rewrite = Rewrite("split", (), parts)
            made.append(
                Candidate(
                    call.path, rewrite, begin, (call.first, call.end), changes,
                    recomputed_bytes=3 * moved, recomputed_ops=3 * parts + 2,
                )
            )  # fmt: skip
    return made


def batch_parts(step: ModelStep, inputs: Sequence[Any]) -> tuple[list[int], str]:
    """Numbers of parts of its batch in which the whole model can be run, or why it cannot."""
    model = step.model
    size = _batch_size(inputs)
    if size < 2 or any(getattr(m, "step_mode", "") == "m" for m in model.modules()):
        return [], ""  # the first axis is time: that is split by `time_candidates`
    layers = batch_statistics(model)
    if layers:
        return [], (
            f"the batch is not run in parts: {len(layers)} layers take its statistics, the first "
            f"is {layers[0]}"
        )
    with Replay(workspaces=Workspaces.none(), lines=False) as record:
        made = record.model(step.meta_copy(), is_on_meta=True)
        watch = StateWatch(BlockState(made))
        made(*record.input(tuple(inputs)))
        changed = watch.changed_by_part()
    if changed:
        return [], f"the batch is not run in parts: the forward pass changes {changed}"
    return [parts for parts in PARTS if parts <= size], ""


def part_of(inputs: Sequence[Any], parts: int) -> tuple[Any, ...]:
    """Inputs of the largest part of a batch."""
    size = _batch_size(inputs)

    def part(item: Any) -> Any:
        if isinstance(item, Spec) and item.shape and item.shape[0] == size:
            return replace(item, shape=(-(-size // parts), *item.shape[1:]))
        if torch.is_tensor(item) and item.dim() and len(item) == size:
            return item[: -(-size // parts)]
        return item

    return tuple(mapped(part, item) for item in inputs)


def _batch_size(inputs: Sequence[Any]) -> int:
    return next((i.shape[0] for i in leaves(tuple(inputs)) if getattr(i, "shape", ())), 1)


def _candidate(
    study: StepStudy, call: ForwardCall, begin: int, rewrite: Rewrite
) -> list[Candidate]:
    trace = study.trace
    kept = [
        (i, s)
        for i, s in enumerate(trace.storages)
        if call.first <= s.born < call.end
        and s.category == "activations"
        and i not in call.outputs
        and s.died is not None
        and s.died >= begin
    ]
    size = sum(round_to_granule(s.n_bytes) for _, s in kept)
    if size < SMALL_BYTES:
        return []
    # Of what is kept for the backward pass, one part exists at a time.
    changes = [(call.end, begin, -size)]
    # States are passed from part to part, and kept.
    states = sum(
        round_to_granule(s.n_bytes)
        for s in trace.storages
        if call.first <= s.born < call.end and s.category == "activations" and s.died is None
    )
    changes.append((call.end, begin, (rewrite.parts - 1) * states))
    over = size - size // rewrite.parts
    for _, storage in kept:
        share = round_to_granule(storage.n_bytes) * over // size
        if storage.died is not None and storage.died > begin:
            changes.append((begin, storage.died, -share))
    # In the forward pass, too, one part exists at a time.
    for _, storage in kept:
        changes.append(
            (storage.born, call.end, -(round_to_granule(storage.n_bytes) * over // size))
        )
    born = [s.n_bytes for s in trace.storages if call.first <= s.born < call.end]
    again = (3 * sum(born), call.n_operators)
    its = (call.first, call.end)
    return [Candidate(call.path, rewrite, begin, its, changes, 0, 0.0, *again)]


def backward_in_parts(
    model: nn.Module,
    loss: Callable[..., torch.Tensor],
    inputs: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
    parts: int,
    *,
    amp: torch.dtype | None = None,
    scale: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Run the forward and backward passes of a step, one part of the batch at a time.

    Replaces ``loss(model(*inputs), *targets).backward()`` in a training loop, and needs the
    activations of one part only.

    Parameters
    ----------
    model : torch.nn.Module
        Model without layers that take the statistics of a batch.
    loss : callable
        Mean over the batch, or a sum if its attribute ``reduction`` is "sum".
    inputs, targets : sequence of tensor
        Arguments of the model and of the loss; the first axis of each is the batch.
    parts : int
        Number of parts, at most the number of samples.
    amp : torch.dtype, optional
        Lower precision of autocast.
    scale : callable, optional
        Function such as ``torch.amp.GradScaler.scale``.

    Returns
    -------
    tensor
        Loss of the whole batch, without its graph.

    Raises
    ------
    ModelArgumentError
        If the model takes a batch's statistics, which differ in parts, or if there are more
        parts than samples.

    Notes
    -----
    Gradients are those of the whole batch, summed in another order.
    """
    layers = batch_statistics(model)
    if layers:
        raise ModelArgumentError(
            f"{len(layers)} layers take the statistics of the batch ({layers[0]}): in parts they "
            "would be others; use reduce_memory, or a norm that does not (group norm)"
        )
    size = inputs[0].shape[0]
    if not 1 <= parts <= size:
        raise ModelArgumentError(f"{parts} parts of a batch of {size}: 1 to {size} would do")
    is_sum = getattr(loss, "reduction", "mean") == "sum"
    device = inputs[0].device.type
    total: torch.Tensor | None = None
    cuts = [t.tensor_split(parts) for t in (*inputs, *targets)]
    for some in zip(*cuts, strict=True):
        with nullcontext() if amp is None else torch.autocast(device, dtype=amp):
            value = loss(model(*some[: len(inputs)]), *some[len(inputs) :])
        if not is_sum:
            value = value * (some[0].shape[0] / size)
        (value if scale is None else scale(value)).backward()
        total = value.detach() if total is None else total + value.detach()
        del value
    assert total is not None
    return total
