"""Largest patch that fits, grown equally or along the axes that have room."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..memory_budget import budget_of, capability_of, device_of
from ..replay import Spec
from ..replay.replay_step import Mode
from ..step.call_inputs import (
    SAFETY_FACTOR,
    check_safety,
    divisors_of,
    dtype_of,
    ndim_of,
    positive,
    shape_of,
)
from ..step.model_step import Targets
from .answers import PatchShape
from .batch import make_step
from .input_trials import example_of, input_channels, input_divisors
from .size_search import MOST, SizeSearch


def max_patch_shape(
    model: nn.Module,
    ndim: int | None = None,
    batch_size: int = 1,
    min_divisible: Sequence[int] | None = None,
    in_channels: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    safety_factor: float = SAFETY_FACTOR,
    max_scale_factor: int | None = None,
    prediction_function: Callable[..., Any] | str | None = None,
    *,
    memory: str | int | None = None,
    volume: Sequence[int] | None = None,
    mode: Mode = "inference",
    optimizer: Any = None,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Targets | None = None,
    amp: torch.dtype | bool | None = None,
    keep_output: bool = True,
    accumulate: int = 1,
    optimizer_state_bytes: str | int | None = None,
) -> PatchShape:
    """Largest patch that fits on a device, or on a card that is not present.

    The arguments up to `prediction_function` are those of torch_em's
    ``compute_max_patch_shape``: shapes are multiples of `min_divisible`, the same multiple for
    each axis. With `volume` the patch grows equally along all axes as far as it fits, and then
    along single axes.

    Parameters
    ----------
    model, in_channels, device, dtype, prediction_function, memory
        As for `max_batch_size`.
    ndim : int, optional
        Number of spatial axes; by default that of the model's convolutions.
    batch_size : int
        Number of patches in a batch.
    min_divisible : sequence of int, optional
        Divisor of each axis: the smallest patch, and the increment. By default 2 to the power
        of the model's ``depth``, else the smallest power of 2 of which multiples are found to run.
    safety_factor : float
        Part of the memory that may be used, above 0 and at most 1. At least that part of the
        largest multiple is returned, and at least the smallest patch.
    max_scale_factor : int, optional
        Upper bound of the multiple, which else grows up to the memory; a warning is given if it
        is reached.
    volume : sequence of int, optional
        Shape of the volume that patches are cut from. No axis grows beyond the first multiple
        that covers it.
    mode, optimizer, loss, targets, amp, keep_output, accumulate, optimizer_state_bytes
        As for `max_batch_size`.

    Returns
    -------
    PatchShape
        A `tuple` of `int`; its `result` is the log of the search.

    Raises
    ------
    ModelArgumentError, NoDeviceError, TooLargeError
        As for `max_batch_size`.
    """
    ndim = ndim_of(model) if ndim is None else positive(ndim, "ndim")
    check_safety(safety_factor)
    bound = MOST if max_scale_factor is None else positive(max_scale_factor, "max_scale_factor")
    cuda_device = device_of(model, device, memory)
    dtype = dtype_of(model) if dtype is None else dtype
    batch = positive(batch_size, "batch_size")
    step = make_step(
        model, mode, optimizer, loss, targets, amp, prediction_function, keep_output, accumulate,
        None, optimizer_state_bytes,
    )  # fmt: skip
    step = replace(step, capability=capability_of(cuda_device, memory))
    if min_divisible is None and not hasattr(model, "depth"):
        channels, divisors = input_divisors(step, in_channels, ndim, batch, dtype)
    else:
        divisors = divisors_of(model, ndim, min_divisible)
        channels = input_channels(step, in_channels, example_of(divisors), dtype)
    budget = budget_of(model, cuda_device, memory)
    whole = None if volume is None else shape_of(volume, "volume", len(divisors))
    ends = tuple(
        size * (bound if whole is None else max(1, -(-whole[axis] // size)))
        for axis, size in enumerate(divisors)
    )
    search = SizeSearch(
        "patch shape", step, budget, lambda size: (Spec((batch, *channels, *size), dtype),),
        divisors, ends, volume is not None,
    )  # fmt: skip
    search.begin()
    log = search.answer(safety_factor)
    found = log.found
    assert isinstance(found, tuple)
    if log.at_bound and found == log.predicted:
        warnings.warn(
            f"the search reached its bound, max_scale_factor={bound}, before the memory's: "
            "more may fit; raise max_scale_factor to know",
            stacklevel=2,
        )
    return PatchShape(found, log)


compute_max_patch_shape = max_patch_shape
"""torch_em's name."""
