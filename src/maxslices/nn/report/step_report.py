"""Memory report of a step: by category, stage by stage, module by module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ...core.block_memory import CONTEXT_BYTES
from ...tuning.garbage_collection import quick_collections
from ..fit.largest import make_step
from ..memory_budget import budget_of, capability_of
from ..replay import Workspaces
from ..replay.measure_workspaces import measured_workspaces
from ..replay.nested import leaves
from ..replay.replay_step import Mode
from ..replay.trace import unused_ends_bytes
from ..step.call_inputs import SAFETY_FACTOR, CallInputs, is_sized
from ..step.model_step import shape_text
from .breakdown import (
    add_buckets,
    categories_of,
    groups_of,
    holders_of,
    last_forward,
    parts_of,
    stages_of,
)
from .report_text import MemoryReport


@quick_collections()
def memory_report(
    model: nn.Module,
    inputs: Any,
    mode: Mode = "training",
    optimizer: Any = None,
    amp: torch.dtype | bool | None = False,
    ddp: bool = False,
    *,
    loss: Any = None,
    targets: Any = None,
    prediction_function: Callable[..., Any] | str | None = None,
    memory: str | int | None = None,
    device: torch.device | str | None = None,
    workspaces: Workspaces | None = None,
    keep_output: bool = True,
    accumulate: int = 1,
    step: Callable[..., Any] | None = None,
    optimizer_state_bytes: str | int | None = None,
    safety_factor: float = SAFETY_FACTOR,
) -> MemoryReport:
    """Report what holds the memory of a step.

    Parameters
    ----------
    model : torch.nn.Module
        Model, which is not changed. It is replayed in the train or eval mode that it is in; for
        training, in train mode.
    inputs : shape, Spec, tensor, or a tuple or mapping of them
        Arguments of the model: (4, 1, 256, 256) is one input of float32; a mapping, such as what a
        tokenizer returns, has keyword arguments.
    mode : {"training", "forward", "inference"}
        Two training steps, or two forward passes without gradients, of which the second is
        reported; or a forward pass with gradients.
    optimizer, loss, amp
        As for `max_batch_size`.
    ddp : bool
        Whether gradient buckets of ``DistributedDataParallel`` are included.
    targets : Spec, tensor, a tuple of them, or callable, optional
        Targets of the loss, or a function as for `max_batch_size`.
    prediction_function : callable or str, optional
        ``prediction_function(model, *inputs)``, or the name of a method of the model, called in
        place of the model.
    memory : str or int, optional
        Memory of a card, such as "24GB", or its name, such as "RTX 4090": the report says whether
        the step fits.
    device : torch.device or str, optional
        CUDA device on which workspaces are measured; by default an allowance is made for them.
    workspaces : Workspaces, optional
        Workspaces to use instead.
    keep_output, accumulate, step, optimizer_state_bytes
        As for `max_batch_size`.
    safety_factor : float
        Part of the memory that `max_batch_size` would use.

    Returns
    -------
    MemoryReport
        Report, with a text for ``print``.

    Raises
    ------
    ModelArgumentError
        If the model does not run on such inputs, with torch's message.
    TraceError
        If the model cannot be replayed without data; the message names the line.
    """
    call = CallInputs.of(inputs)
    given = call.values
    wanted = targets if targets is None or callable(targets) else (lambda *_: targets)
    whole = make_step(
        model, mode, optimizer, loss, wanted, amp, prediction_function, keep_output, accumulate,
        step, optimizer_state_bytes,
    )  # fmt: skip
    on_device = None if device is None else torch.device(device)
    whole = replace(
        whole,
        evaluate=False,
        names=call.names,
        capability=capability_of(on_device, memory),
    )
    change = add_buckets if ddp and mode == "training" else None
    known = Workspaces.allowance() if workspaces is None else workspaces
    trace = whole.trace(given, known, change=change, lines=True)
    if workspaces is None and on_device is not None and on_device.type == "cuda":
        known, _ = measured_workspaces(trace.calls, on_device)
        trace = trace.with_workspaces(known)
    names = groups_of(model, trace)
    unused = unused_ends_bytes(trace)
    after = trace.marks[last_forward(trace)].event
    held = trace.moment(after)
    return MemoryReport(
        type(model).__name__,
        sum(p.numel() for p in model.parameters()),
        sum(p.numel() for p in model.parameters() if p.requires_grad),
        tuple(
            f"{shape_text(item)} {str(item.dtype).removeprefix('torch.')}"
            for item in leaves(given)
            if is_sized(item)
        ),
        mode,
        _name(whole.optimizer),
        "" if whole.amp is None else str(whole.amp).removeprefix("torch."),
        ddp,
        trace,
        {
            **categories_of(trace.peak, ddp),
            "unused ends of blocks": unused,
        },
        trace.peak_bytes + unused,
        max(trace.reserved_bytes, trace.peak_bytes + unused),
        max(trace.needed_bytes, trace.peak_bytes + unused),
        CONTEXT_BYTES,
        known.origin,
        stages_of(trace),
        parts_of(model, trace, names, held),
        holders_of(model, trace.peak, names),
        safety_factor,
        None if memory is None else budget_of(model, None, memory),
    )


def _name(optimizer: Any) -> str:
    if optimizer is None:
        return ""
    if isinstance(optimizer, torch.optim.Optimizer):
        return type(optimizer).__name__
    function = getattr(optimizer, "func", optimizer)  # of a partial
    momentum = getattr(optimizer, "keywords", {}).get("momentum")
    return getattr(function, "__name__", "optimizer") + (" with momentum" if momentum else "")
