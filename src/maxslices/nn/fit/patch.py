"""Largest patch that fits, grown equally or along the axes that have room."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..memory_budget import MemoryBudget, budget_of, capability_of, device_of
from ..nn_errors import TooLargeError
from ..replay import Spec
from ..replay.replay_step import Mode
from ..step.call_inputs import SAFETY_FACTOR, check_safety, divisors_of, dtype_of, ndim_of, positive
from ..step.model_step import Targets
from .answers import PatchShape, SearchLog, VerifiedStep
from .batch import MOST, STEP_DOWN, make_step, margin_bytes, too_large
from .input_trials import example_of, input_channels, input_divisors
from .patch_finder import PatchFinder, Shape, grid_of
from .real_step import verified_step


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
    margin: str | int | None = None,
    axes: Sequence[int] | None = None,
    start: Sequence[int] | None = None,
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
    each axis. With `axes`, `start` or `volume` the patch grows equally along all axes as far
    as it fits, and then along single axes.

    Parameters
    ----------
    model, in_channels, device, dtype, prediction_function, memory, margin
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
    axes : sequence of int, optional
        Axes that grow; the others keep their size in `start`.
    start : sequence of int, optional
        The smallest patch, in place of `min_divisible`.
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
    grid = grid_of(divisors, axes, start, volume, bound)
    budget = budget_of(model, cuda_device, memory)

    def inputs(shape: Shape) -> tuple[Spec, ...]:
        return (Spec((batch, *channels, *shape), dtype),)

    began = time.perf_counter()
    finder = PatchFinder(step, inputs, budget, grid)
    if start is None:
        grid = finder.begin()
    if not finder.fits(grid.start, budget.limit_bytes):
        raise _too_large(grid.start, finder.trace(grid.start).needed_bytes, budget)
    predicted = finder.largest(budget.limit_bytes)
    at_bound = grid.at_bound(predicted)
    if margin is not None:
        kept = budget.limit_bytes - margin_bytes(margin)
        if not finder.fits(grid.start, kept):
            needed = finder.trace(grid.start).needed_bytes
            raise _too_large(grid.start, needed, budget, margin_bytes(margin))
        asked = finder.largest(kept)
    elif at_bound:
        asked = predicted
    else:
        asked = finder.largest(int(budget.limit_bytes * safety_factor))
        if grid.is_isotropic:  # never less than the part of the multiple itself
            k = int(grid.multiple(predicted) * safety_factor)
            rule = grid.scaled(max(0, k - grid.multiple(grid.start)))
            if finder.fits(rule, budget.limit_bytes):
                asked = max(asked, rule, key=math.prod)
    search = SearchLog(
        "patch shape",
        mode,
        budget.limit_bytes,
        budget.origin,
        predicted,
        asked,
        finder.trace(asked).allocated_bytes,
        (),
        finder.workspaces.origin,
        time.perf_counter() - began - finder.calibration_s,
        finder.calibration_s,
        at_bound,
        finder.notes,
        safety_factor if margin is None and not at_bound else 1.0,
    )
    found, search = _verified(search, finder)
    if at_bound and found == predicted:
        warnings.warn(
            f"the search reached its bound, max_scale_factor={grid.bound}, before the memory's: "
            "more may fit; raise max_scale_factor to know",
            stacklevel=2,
        )
    return PatchShape(found, search)


compute_max_patch_shape = max_patch_shape
"""torch_em's name."""


def _verified(search: SearchLog, finder: PatchFinder) -> tuple[Shape, SearchLog]:
    shape = search.asked
    assert isinstance(shape, tuple)
    budget = finder.budget
    if budget.device is None:
        return shape, search
    tried: list[VerifiedStep] = []
    part = 1.0
    while True:
        inputs = finder.inputs(shape)
        tried.append(verified_step(finder.step, shape, inputs, budget.device, budget.limit_bytes))
        if tried[-1].fits:
            break
        if shape == finder.grid.start or part <= STEP_DOWN:
            raise _too_large(shape, finder.trace(shape).allocated_bytes, budget)
        smaller = shape
        while smaller == shape or math.prod(smaller) > math.prod(shape):
            part -= STEP_DOWN
            smaller = finder.largest(int(budget.limit_bytes * part))
        shape = smaller
    return shape, replace(search, tried=tuple(tried))


def _too_large(shape: Shape, needed: int, budget: MemoryBudget, margin: int = 0) -> TooLargeError:
    what = f"a patch of {'x'.join(map(str, shape))}, the smallest,"
    return too_large(what, needed, budget, margin, "batch")
