"""Device of this process, and real steps on it."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from ...devices.out_of_memory import is_out_of_memory
from ..memory_budget import limit
from ..nn_errors import NoDeviceError
from ..replay.meta_copy import materialize
from ..replay.nested import total_of
from ..step.layer_state import reset_states
from ..step.model_step import ModelStep, meta_optimizer, real_tensors

RANK_VARIABLES = (
    "LOCAL_RANK",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
)
"""Environment variables of launchers with the number of this process's device, in order."""
N_WARM = 3
"""Steps that are not timed: they load kernels and allocate memory of device and host."""
N_STEPS = (6, 24)
"""Minimum and maximum number of steps, the first `N_WARM` included. Under a limit, two plans for
ResNet50 ran out of memory only in the fourth and in the sixth step."""
TIMED_S = 0.4
"""No further step begins when the timed ones took as long: about ten steps of the networks in
docs/benchmarks/reductions.md."""


def resolve_device() -> torch.device:
    """Device of this process.

    It is the CPU if there is no CUDA device; else the device of the first of `RANK_VARIABLES` that
    is set; else that of the process group's rank, modulo the number of devices; else the current
    device.

    Raises
    ------
    NoDeviceError
        If the variable is not a device's number.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    n_devices = torch.cuda.device_count()
    for name in RANK_VARIABLES:
        text = os.environ.get(name)
        if text is None:
            continue
        try:
            rank = int(text)
        except ValueError:
            rank = -1
        if not 0 <= rank < n_devices:
            raise NoDeviceError(
                f"{name} is {text!r}: it must be the number of a CUDA device, 0 to {n_devices - 1}"
            )
        return torch.device("cuda", rank)
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return torch.device("cuda", distributed.get_rank() % n_devices)
    return torch.device("cuda", torch.cuda.current_device())


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """Steps that ran on the device."""

    allocated_bytes: int
    """Peak of allocated memory."""
    reserved_bytes: int
    """Peak of memory held by the allocator."""
    step_s: float
    """Median duration of a step, without the first ones."""


def run_for_real(
    step: ModelStep,
    inputs: Sequence[Any],
    device: torch.device,
    limit_bytes: int | None = None,
) -> MeasuredStep | None:
    """Run steps of a copy of the model, with zeros for weights, on a CUDA device.

    Parameters
    ----------
    limit_bytes : int, optional
        Limit of the allocator, for the copy and its step.

    Returns
    -------
    Measured or None
        None if the memory does not suffice.
    """
    gc.collect()
    torch.cuda.synchronize(device)
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    beside = torch.cuda.memory_allocated(device)
    held = torch.cuda.memory_reserved(device)
    guard = nullcontext() if limit_bytes is None else limit(limit_bytes + held, device)
    found: list[float] | None = None
    try:
        with guard:
            found = _steps(step, inputs, device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    allocated = torch.cuda.max_memory_allocated(device) - beside
    reserved = torch.cuda.max_memory_reserved(device) - held
    gc.collect()
    torch.cuda.empty_cache()
    if found is None:
        return None
    return MeasuredStep(allocated, reserved, sorted(found)[len(found) // 2])


def placed(inputs: Any, device: torch.device) -> Any:
    """Inputs with their real tensors on a device; torch reads lengths of sequences on the host."""

    def moved(item: Any) -> Any:
        if isinstance(item, PackedSequence):
            indices = [i if i is None else i.to(device) for i in item[2:]]
            return PackedSequence(item.data, item.batch_sizes, *indices)
        return item.to(device) if torch.is_tensor(item) else item

    return tree_map(moved, inputs, is_leaf=lambda item: isinstance(item, PackedSequence))


def _steps(step: ModelStep, inputs: Sequence[Any], device: torch.device) -> list[float]:
    model = step.meta_copy()
    optimizer = meta_optimizer(step.optimizer, step.model, model)
    made = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
    materialize(model, device, made)
    if made is None and optimizer is not None:
        made = optimizer([p for p in model.parameters() if p.requires_grad])
    given = real_tensors(placed(tuple(inputs), device), device)
    wanted = real_tensors(step.target_specs(inputs), device)
    durations: list[float] = []
    with torch.cuda.device(device):
        while len(durations) < N_STEPS[0] or (
            len(durations) < N_STEPS[1] and sum(durations[N_WARM:]) < TIMED_S
        ):
            torch.cuda.synchronize(device)
            began = time.perf_counter()
            model.zero_grad(set_to_none=True)
            casting = nullcontext() if step.amp is None else torch.autocast("cuda", dtype=step.amp)
            with casting:
                output = model(*given)
                value = total_of(output) if step.loss is None else step.loss(output, *wanted)
            value.backward()
            if made is not None:
                made.step()
            reset_states(model)
            torch.cuda.synchronize(device)
            durations.append(time.perf_counter() - began)
    return durations[N_WARM:]
