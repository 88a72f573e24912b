"""Receptive field of a network, found by running it.

One item of a small input is set to NaN: the results that become NaN are those that depend on it.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..nn_errors import ModelArgumentError, first_line

STRIDES = (1, 2, 4, 8, 16, 32)
"""Strides of the grid that are tried: networks of up to five levels that halve each axis."""
LARGEST_PROBE = {1: 4096, 2: 512, 3: 128}
"""Side of the largest input that is run, by number of axes. One of float64 has at most 16 MiB a
channel, so that a CPU takes seconds for it."""
N_POSITIONS = 16
"""Number of neighbouring input positions that are marked, on a diagonal. Results of a network
with pooling depend on the position within a pooling window; four levels of halving have
windows of 16."""


@dataclass(frozen=True, slots=True)
class ReceptiveField:
    """Input that a result depends on."""

    before: tuple[int, ...]
    """Items of the input before the position of the result, along each axis."""
    after: tuple[int, ...]
    """Items after that position."""
    stride: int
    """Tiles begin at multiples of the stride, and have multiples of it as sizes."""


def receptive_field(model: nn.Module, channels: int, ndim: int) -> ReceptiveField:
    """Receptive field of a network, by running a copy of it on the CPU.

    Parameters
    ----------
    model : torch.nn.Module
        Network of inputs (batch, channel, axes), whose results have the same axes and sizes.
    channels : int
        Channels of the input.
    ndim : int
        Number of axes: 1, 2 or 3.

    Raises
    ------
    ModelArgumentError
        If a result depends on all of the input (instance norm, attention, pooling over all),
        has other sizes, or the network takes images of one size alone: there are no tiles then.
    """
    if ndim not in LARGEST_PROBE:
        raise ModelArgumentError(
            f"tiles are for images with batch, channels and 1, 2 or 3 axes, not {ndim} axes"
        )
    real = copy.deepcopy(model).cpu().double().eval()
    side = 64 if ndim > 1 else 256
    # Layers of torch take a sample without its batch axis too: only one of the two runs then.
    _result(real, torch.zeros((2, channels, *(side,) * ndim), dtype=torch.float64))
    while side <= LARGEST_PROBE[ndim]:
        found = _extent(real, channels, ndim, side)
        if found is not None:
            stride = _stride(real, channels, ndim, max(max(found[0]), max(found[1])))
            return ReceptiveField(found[0], found[1], stride)
        side *= 2
    raise ModelArgumentError(
        f"{type(model).__name__}: a result depends on all of an input of {side // 2} items a side "
        "(a norm over the image, attention, or a very deep network): it has no exact tiles; "
        "overlapping ones that are blended are an approximation: see InferenceTiling.monai_inferer"
    )


def _extent(
    model: nn.Module, channels: int, ndim: int, side: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Extent (before, after) of the dependence; None if it reaches a border."""
    before, after = [0] * ndim, [0] * ndim
    generator = torch.Generator().manual_seed(0)
    base = torch.rand((1, channels, *(side,) * ndim), dtype=torch.float64, generator=generator)
    for offset in range(N_POSITIONS):
        position = side // 2 - N_POSITIONS // 2 + offset
        x = base.clone()
        x[0].view(channels, -1)[:, sum(position * side**axis for axis in range(ndim))] = math.nan
        y = _result(model, x)
        if not torch.is_tensor(y) or y.shape[2:] != x.shape[2:]:
            given = tuple(y.shape[2:]) if torch.is_tensor(y) else type(y).__name__
            raise ModelArgumentError(
                f"{type(model).__name__} makes {given} of an input of {tuple(x.shape[2:])}: tiles "
                "are for networks whose result has the sizes of the input"
            )
        hit = y.isnan().any(dim=1)[0]
        for axis in range(ndim):
            others = [a for a in range(ndim) if a != axis]
            line = (hit.any(dim=others) if others else hit).nonzero()[:, 0]
            if not line.numel():
                continue
            first, last = int(line[0]), int(line[-1])
            if first == 0 or last == side - 1:
                return None
            after[axis] = max(after[axis], position - first)
            before[axis] = max(before[axis], last - position)
    return tuple(before), tuple(after)


def _result(model: nn.Module, x: torch.Tensor) -> Any:
    """What a network makes of an input.

    Raises
    ------
    ModelArgumentError
        If it does not run on one of this size.
    """
    try:
        with torch.no_grad():
            return model(x)
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError) as error:
        raise ModelArgumentError(
            f"{type(model).__name__} does not run on {'x'.join(map(str, x.shape))}, with which its "
            f"receptive field is looked for: {first_line(error)}. Tiles are for networks that take "
            "images (batch, channels, axes) of any size"
        ) from error


def _stride(model: nn.Module, channels: int, ndim: int, reach: int) -> int:
    """Smallest shift of the input that only shifts the result."""
    generator = torch.Generator().manual_seed(1)
    size = 2 * (reach // 32 + 1) * 32 + 64
    x = torch.rand((1, channels, *(size,) * ndim), dtype=torch.float64, generator=generator)
    whole = _result(model, x)
    for stride in STRIDES:
        if size % stride:
            continue
        # Sizes are multiples of 32, as networks with five levels need them.
        part = (slice(None), slice(None), *(slice(stride, size - 32 + stride),) * ndim)
        middle = (slice(None), slice(None), *(slice(reach, size - 32 - reach),) * ndim)
        shifted = _result(model, x[part])
        if torch.allclose(shifted[middle], whole[part][middle], rtol=1e-9, atol=1e-12):
            return stride
    raise ModelArgumentError(
        f"{type(model).__name__}: no shift of up to {STRIDES[-1]} items of the input shifts the "
        "result: it has no exact tiles"
    )
