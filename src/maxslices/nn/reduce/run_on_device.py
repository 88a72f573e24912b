"""Device of this process, and steps of plans that run on it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..fit.real_step import run_within
from ..nn_errors import NoDeviceError
from ..step.model_step import ModelStep
from .rewrite import apply_rewrites, undo_rewrites
from .search import PlanSearch, ReductionPlan

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
"""Minimum and maximum number of steps, including the first `N_WARM`. Under a limit, two plans for
ResNet50 ran out of memory only in the fourth and in the sixth step."""
TIMED_S = 0.4
"""Duration of the timed steps after which no further step begins, about ten steps of the networks
in docs/benchmarks/reductions.md."""
REPEATS = 2
"""Number of runs of each plan, whose shortest time counts. Hosts differ from minute to minute: one
plan for ResNet50 took 40.4 and then 49.3 ms."""


def resolve_device() -> torch.device:
    """Device of this process.

    Without a CUDA device, it is the CPU. Otherwise the first of these counts: one of
    `RANK_VARIABLES` that is set, the process group's rank modulo the number of devices, the current
    device.

    Raises
    ------
    NoDeviceError
        If the variable is not the number of a device.
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
    MeasuredStep or None
        None if memory runs out.
    """
    durations: list[float] = []
    peak = run_within(step, inputs, device, limit_bytes, _timed(durations, device))
    if peak is None:
        return None
    times = sorted(durations[N_WARM:])
    return MeasuredStep(peak.allocated_bytes, peak.reserved_bytes, times[len(times) // 2])


def _timed(durations: list[float], device: torch.device) -> Iterator[int]:
    """Count steps and record their durations, until enough are timed."""
    while len(durations) < N_STEPS[0] or (
        len(durations) < N_STEPS[1] and sum(durations[N_WARM:]) < TIMED_S
    ):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        yield len(durations)
        torch.cuda.synchronize(device)
        durations.append(time.perf_counter() - began)


def fastest(
    plans: Sequence[ReductionPlan],
    search: PlanSearch,
    device: torch.device,
) -> tuple[ReductionPlan, MeasuredStep] | None:
    """Run steps of plans within the limit, and return the fastest plan that runs, if any.

    Plans take turns, as a host may be slow for a while.
    """
    left = [*plans]
    measured: dict[int, tuple[ReductionPlan, MeasuredStep]] = {}
    for _ in range(REPEATS):
        for plan in list(left):
            apply_rewrites(search.step.model, plan.rewrites)
            try:
                limit_bytes = search.limit_bytes or None
                steps = run_for_real(search.step, search.inputs, device, limit_bytes)
            finally:
                undo_rewrites(search.step.model)
            if steps is None:
                left.remove(plan)
                measured.pop(id(plan), None)
            elif id(plan) not in measured or steps.step_s < measured[id(plan)][1].step_s:
                measured[id(plan)] = plan, steps
        if len(left) < 2:
            break
    return min(measured.values(), key=lambda each: each[1].step_s, default=None)


def run_unreduced(search: PlanSearch, device: torch.device) -> MeasuredStep | None:
    """Run the unreduced step, if there is enough memory for it.

    It runs before any step with a limit. Where memory for a workspace is lacking, cuDNN chooses
    another kernel and keeps it for the rest of the process.
    """
    free_bytes = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    if search.tried[0].needed_bytes >= free_bytes:
        return None
    return run_for_real(search.step, search.inputs, device)
