"""Parts of a batch: the whole model in parts, and candidates that run convolutions in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ...core.allocators import round_to_granule
from ..replay import Replay, Spec, Workspaces
from ..replay.nested import leaves, mapped
from ..step.model_step import ModelStep
from .block_state import BlockState, StateWatch, takes_statistics
from .candidates import SMALL_BYTES, Candidate
from .rewrite import Rewrite
from .study import StepStudy

PARTS = (2, 4, 8)
"""Numbers of parts that are offered, each half the size of the one before."""


def batch_statistics(module: nn.Module) -> list[str]:
    """Layers whose statistics would differ in parts of a batch."""
    return [path for path, each in module.named_modules() if takes_statistics(each)]


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
        return [], ""  # the first axis is time
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
