"""Real steps on the device within a limit.

They run on a copy of the model with zeros for weights. Inference of a model that is already on the
device runs on the model itself, so its weights need no second copy.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from ...devices.out_of_memory import is_out_of_memory
from ..memory_budget import foreign_bytes, limit
from ..replay.meta_copy import materialize, optimizers_in
from ..step.model_step import ModelStep, meta_optimizer, real_tensors, run_step


class StepPeak(NamedTuple):
    """Memory of steps that ran."""

    allocated_bytes: int
    """Peak of allocated memory, the model's weights included."""
    reserved_bytes: int
    """Peak of memory held by the allocator for them."""


def run_within(
    step: ModelStep,
    inputs: Sequence[Any],
    device: torch.device,
    limit_bytes: int | None = None,
    turns: Iterable[int] | None = None,
) -> StepPeak | None:
    """Run steps on a CUDA device within a limit.

    Parameters
    ----------
    inputs : sequence of Spec
        Arguments of the model.
    limit_bytes : int, optional
        Memory that torch's allocator may hold for the model and its steps.
    turns : iterable of int, optional
        One item for each step. By default, steps run until they take no memory from the device.

    Returns
    -------
    StepPeak or None
        None if memory runs out.

    Raises
    ------
    Exception
        Any error of the model other than a lack of memory.
    """
    _clear(device)
    real = (*step.model.parameters(), *step.model.buffers())
    is_own = step.mode == "inference" and bool(real) and all(t.device == device for t in real)
    own = foreign_bytes(step.model, device) if is_own else torch.cuda.memory_allocated(device)
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    guard = nullcontext() if limit_bytes is None else limit(limit_bytes + own + held, device)
    try:
        with guard, torch.cuda.device(device):
            if is_own:
                _run_own(step, inputs, device, turns)
            else:
                run_copy(step, inputs, device, turns)
            torch.cuda.synchronize(device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None
    else:
        return StepPeak(
            torch.cuda.max_memory_allocated(device) - own,
            torch.cuda.max_memory_reserved(device) - own - held,
        )
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def run_copy(
    step: ModelStep,
    inputs: Sequence[Any],
    device: torch.device,
    turns: Iterable[int] | None = None,
) -> None:
    """Run steps of a copy of the model, with zeros for weights."""
    model = step.meta_copy()
    optimizer = meta_optimizer(step.optimizer, step.model, model)
    if optimizer is not step.optimizer:
        optimizer = optimizer(None)
    materialize(model, device, optimizer)
    if optimizer is not None and not optimizers_in(optimizer) and step.mode == "training":
        optimizer = optimizer([p for p in model.parameters() if p.requires_grad])
    tensors = real_tensors(tuple(inputs), device)
    # Zeros, as any loss can take them.
    targets = real_tensors(step.target_specs(inputs), device, random=False)
    run_step(model, tensors, step.loop, optimizer, targets, turns)


def _run_own(
    step: ModelStep, inputs: Sequence[Any], device: torch.device, turns: Iterable[int] | None
) -> None:
    with _modes_kept(step.model):
        model = step.prepared(step.model)
        run_step(model, real_tensors(tuple(inputs), device), step.loop, None, (), turns)


@contextmanager
def _modes_kept(model: torch.nn.Module) -> Any:
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _clear(device: torch.device) -> None:
    """Return unused memory to the device, including cuBLAS' workspaces, and reset the peaks."""
    gc.collect()
    torch.cuda.synchronize(device)
    getattr(torch._C, "_cuda_clearCublasWorkspaces", int)()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
