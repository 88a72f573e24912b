"""Largest patch that fits, grown equally or along the axes that have room."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ...core.memory_model import last_true
from ...tuning.garbage_collection import quick_collections
from ..memory_budget import MemoryBudget, budget_of, capability_of, device_of
from ..nn_errors import ModelArgumentError
from ..replay import DataDependentError, Spec, StepFamily, Trace, TraceError, Workspaces
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
from ..step.model_step import ModelStep, Targets
from .answers import PatchShape
from .batch import make_step
from .input_trials import example_of, input_channels, input_divisors
from .size_search import MOST, SizeSearch

Shape = tuple[int, ...]

DOUBLINGS = 10
"""Sizes that are tried for the smallest patch: 1, 2, 4 ... 512 times the divisors."""


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
    search = _PatchSearch(step, budget, (batch, *channels), dtype, divisors, bound, volume)
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


class _PatchSearch(SizeSearch[Shape]):
    """Patches, which grow from the least by increments of each axis."""

    kind = "patch shape"
    smaller = "batch"

    def __init__(
        self,
        step: ModelStep,
        budget: MemoryBudget,
        first_axes: Shape,
        dtype: torch.dtype,
        divisors: Shape,
        bound: int,
        volume: Sequence[int] | None,
    ) -> None:
        super().__init__(step, budget, divisors)
        self.first_axes, self.dtype, self.increments = first_axes, dtype, divisors
        self.has_volume = volume is not None
        whole = None if volume is None else shape_of(volume, "volume", len(divisors))
        self.ends = tuple(
            size * (bound if whole is None else max(1, -(-whole[axis] // size)))
            for axis, size in enumerate(divisors)
        )
        """Largest size of each axis."""
        self._traces: dict[Shape, Trace] = {}
        self._families: dict[tuple[Shape, Shape], StepFamily] = {}
        self._places: dict[Shape, tuple[StepFamily, int]] = {}

    def begin(self) -> None:
        """Begin with the smallest patch that the model accepts.

        A norm cannot be trained on a single value, and the innermost level of a U-Net has only one
        for the smallest patch; a convolution without padding needs as much as its kernel. So
        patches of twice the size are tried, and twice again.
        """
        first: TraceError | ModelArgumentError | None = None
        shape, tried = self.least, list[str]()
        while len(tried) < DOUBLINGS and shape not in self._traces:
            tried.append("x".join(map(str, shape)))
            try:
                self._trace(shape)
            except DataDependentError:
                raise
            except (TraceError, ModelArgumentError) as error:
                first = first or error
                if shape == self.ends:
                    break
                shape = tuple(map(min, (2 * size for size in shape), self.ends))
            else:
                self.least = shape
                return
        assert first is not None
        raise type(first)(
            f"{first}; patches of {', '.join(tried)} do not run: name a size that the model takes "
            "as min_divisible (--divisible): the smallest patch, and what larger ones are "
            "multiples of"
        ) from first

    def _trace(self, shape: Shape) -> Trace:
        if shape not in self._traces:
            self._traces[shape] = self.step.trace(self.inputs(shape), Workspaces.allowance())
        return self._traces[shape]

    def _grown(self, shape: Shape, axes: Sequence[int], n: int) -> Shape:
        """Patch grown by increments along some axes, each up to its end."""
        grown = [size + n * self.increments[a] * (a in axes) for a, size in enumerate(shape)]
        return tuple(map(min, grown, self.ends))

    def _room(self, shape: Shape, axis: int) -> int:
        """Number of increments by which an axis may still grow."""
        return (self.ends[axis] - shape[axis]) // self.increments[axis]

    def _along(self, shape: Shape, axes: tuple[int, ...], limit_bytes: int) -> Shape | None:
        """Largest patch that a patch can grow to along some axes; None if it does not fit."""
        most = 1 + max(self._room(shape, axis) for axis in axes)
        if (shape, axes) not in self._families:
            family = StepFamily(lambda n: self._trace(self._grown(shape, axes, n - 1)), most=most)
            self._families[shape, axes] = self.measured(family, most)
        family = self._families[shape, axes]
        self._places.setdefault(shape, (family, 1))
        low, high = 0, 1
        while high <= most and limit_bytes > 0 and family.lasts(high, limit_bytes):
            low, high = high, 2 * high
        if not low:
            return None
        n = last_true(lambda n: family.lasts(n, limit_bytes), low, min(high, most + 1))
        made = self._grown(shape, axes, n - 1)
        self._places.setdefault(made, (family, n))
        return made

    def inputs(self, size: Shape) -> tuple[Spec, ...]:
        return (Spec((*self.first_axes, *size), self.dtype),)

    @quick_collections()
    def largest(self, limit_bytes: int, failed: Shape | None = None) -> Shape | None:
        axes = tuple(range(len(self.least)))
        shape = self._along(self.least, axes, limit_bytes)
        if shape is None:
            return None
        # One axis may have room where all axes together have none.
        for _ in axes if self.has_volume else ():
            open_axes = [axis for axis in axes if self._room(shape, axis)]
            grown = [self._along(shape, (axis,), limit_bytes) for axis in open_axes]
            best = max([shape, *filter(None, grown)], key=math.prod)
            if best == shape:
                break
            shape = best
        return shape if failed is None or math.prod(shape) < math.prod(failed) else failed

    def at_bound(self, size: Shape) -> bool:
        return not self.has_volume and size == self.ends

    def with_factor(self, predicted: Shape, safety_factor: float) -> Shape:
        asked = self.largest(int(self.budget.limit_bytes * safety_factor)) or self.least
        if self.has_volume:
            return asked
        # Never less than the part of the multiple itself.
        family, n = self.place(predicted)
        more = self.least[0] // self.increments[0] - 1
        part = max(1, int((n + more) * safety_factor) - more)
        shape = self._grown(self.least, range(len(asked)), part - 1)
        if shape > asked and family.lasts(part, self.budget.limit_bytes):
            self._places[shape] = family, part
            return shape
        return asked

    def place(self, size: Shape) -> tuple[StepFamily, int]:
        return self._places[size]

    def least_text(self) -> str:
        return f"a patch of {'x'.join(map(str, self.least))}, the smallest,"
