"""Inference on images that do not fit: the largest tiles with the halo that the network needs.

What a result depends on is found by running the network, not guessed: one item of a small
input is made not-a-number, and every result that is one afterwards depends on it. The result
of tiles with that halo is the untiled one, but for the rounding of kernels that are chosen by
size.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import nn

from ..tracing import Spec, WorkAreas
from ..units import format_bytes
from .errors import ModelArgumentError, TooLargeError
from .memory import budget_of, device_of
from .step import Step, precision

STRIDES = (1, 2, 4, 8, 16, 32)
"""Steps of the grid that are tried."""
LARGEST_PROBE = {1: 4096, 2: 512, 3: 128}
"""Side of the largest input that is run to find the receptive field, by number of axes."""
PLACES = 16
"""How many neighbouring places of the input are tried, on a diagonal."""


Places = tuple["slice[int, int, None]", ...]
"""On each axis of the image."""


@dataclass(frozen=True, slots=True)
class Field:
    """What a result depends on."""

    before: tuple[int, ...]
    """Items of the input before the result's place, on each axis."""
    after: tuple[int, ...]
    """Items after it."""
    stride: int
    """Tiles begin at multiples of this, and their sizes are multiples of it."""


def receptive_field(model: nn.Module, channels: int, ndim: int) -> Field:
    """Find what a result of a network depends on, by running a copy of it on the CPU.

    Parameters
    ----------
    model : torch.nn.Module
        Of inputs (batch, channel, axes), with results of the same axes and sizes.
    channels : int
        Of the input.
    ndim : int
        Number of axes: 1, 2 or 3.

    Raises
    ------
    ModelArgumentError
        If a result depends on all of the input (instance norm, attention, pooling over all),
        or has other sizes: there are no tiles then.
    """
    real = copy.deepcopy(model).cpu().double().eval()
    side = 64 if ndim > 1 else 256
    while side <= LARGEST_PROBE[ndim]:
        found = _extent(real, channels, ndim, side)
        if found is not None:
            stride = _stride(real, channels, ndim, side, max(max(found[0]), max(found[1])))
            return Field(found[0], found[1], stride)
        side *= 2
    raise ModelArgumentError(
        f"{type(model).__name__}: a result depends on all of an input of {side // 2} items a side "
        "(a norm over the image, attention, or a very deep network): it has no exact tiles; "
        "overlapping ones that are blended are an approximation: see Tiling.monai_inferer"
    )


def _extent(
    model: nn.Module, channels: int, ndim: int, side: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return (before, after); None if what depends on an item reaches a border."""
    before, after = [0] * ndim, [0] * ndim
    generator = torch.Generator().manual_seed(0)
    base = torch.rand((1, channels, *(side,) * ndim), dtype=torch.float64, generator=generator)
    for offset in range(PLACES):
        place = side // 2 - PLACES // 2 + offset
        x = base.clone()
        x[_index(0, slice(None), *(place,) * ndim)] = math.nan
        with torch.no_grad():
            y = model(x)
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
            after[axis] = max(after[axis], place - first)
            before[axis] = max(before[axis], last - place)
    return tuple(before), tuple(after)


def _stride(model: nn.Module, channels: int, ndim: int, side: int, reach: int) -> int:
    """Return the smallest shift of the input that does nothing but shift the result."""
    generator = torch.Generator().manual_seed(1)
    size = 2 * (reach // 32 + 1) * 32 + 64
    x = torch.rand((1, channels, *(size,) * ndim), dtype=torch.float64, generator=generator)
    with torch.no_grad():
        whole = model(x)
        for stride in STRIDES:
            if size % stride:
                continue
            # Both sizes are multiples of 32, as deep networks want them.
            part = (slice(None), slice(None), *(slice(stride, size - 32 + stride),) * ndim)
            middle = (slice(None), slice(None), *(slice(reach, size - 32 - reach),) * ndim)
            shifted = model(x[part])
            if torch.allclose(shifted[middle], whole[part][middle], rtol=1e-9, atol=1e-12):
                return stride
    raise ModelArgumentError(
        f"{type(model).__name__}: no shift of up to {STRIDES[-1]} items of the input shifts the "
        "result: it has no exact tiles"
    )


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tiles of an image, and how the network is run on them."""

    shape: tuple[int, ...]
    """Of the image, without batch and channels."""
    parts: tuple[int, ...]
    """Number of tiles on each axis."""
    tile: tuple[int, ...]
    """Size of a tile, without its halo; the last ones may be smaller."""
    field: Field
    amp: torch.dtype | None
    """Lower precision of autocast."""
    channels_last: bool
    peak_bytes: int
    """Predicted ``max_memory_allocated`` of the largest tile, weights included."""
    needed_bytes: int
    """Least limit of the allocator."""
    limit_bytes: int
    overhead: float
    """Items computed for the halo, as a part of the image's."""

    def windows(self) -> Iterator[tuple[Places, Places, Places]]:
        """Yield, for each tile, its place, the place with halo, and the first in the second."""
        for index in product(*(range(n) for n in self.parts)):
            cores, reads, insides = [], [], []
            for axis, i in enumerate(index):
                core, read = self._cut(axis, i)
                cores.append(core)
                reads.append(read)
                insides.append(slice(core.start - read.start, core.stop - read.start))
            yield tuple(cores), tuple(reads), tuple(insides)

    def _cut(self, axis: int, i: int) -> tuple[slice[int, int, None], slice[int, int, None]]:
        size, tile, stride = self.shape[axis], self.tile[axis], self.field.stride
        start, stop = i * tile, min((i + 1) * tile, size)
        first = max(0, start - _up(self.field.before[axis], stride))
        last = min(size, stop + _up(self.field.after[axis], stride))
        return slice(start, stop), slice(first, last)

    def run(self, model: nn.Module, image: torch.Tensor) -> torch.Tensor:
        """Run a network on an image, tile by tile.

        Parameters
        ----------
        model : torch.nn.Module
            In eval mode, on the device where the tiles are to be computed.
        image : (batch, channels, axes) tensor
            On any device; only one tile of it at a time is on the model's.

        Returns
        -------
        tensor
            On the image's device.
        """
        if tuple(image.shape[2:]) != self.shape:
            raise ModelArgumentError(f"these tiles are for {self.shape}, not {image.shape[2:]}")
        device = next((p.device for p in model.parameters()), image.device)
        if self.channels_last:
            model = model.to(memory_format=_format(len(self.shape)))  # type: ignore[call-overload]
        result: torch.Tensor | None = None
        casting = nullcontext() if self.amp is None else torch.autocast(device.type, self.amp)
        with torch.no_grad(), casting:
            for core, read, inside in self.windows():
                x = image[_index(..., *read)].to(device)
                if self.channels_last:
                    x = x.contiguous(memory_format=_format(len(self.shape)))
                made = model(x)[_index(..., *inside)]
                if result is None:
                    sizes = (*made.shape[:2], *self.shape)
                    result = torch.empty(sizes, dtype=made.dtype, device=image.device)
                result[_index(..., *core)] = made.to(image.device)
        assert result is not None
        return result

    def monai_inferer(self, overlap: float = 0.25, mode: str = "gaussian") -> Any:
        """Return MONAI's sliding-window inferer with tiles of this size, blended.

        Its result is an average of tiles and not the untiled one.
        """
        from monai.inferers import SlidingWindowInferer  # type: ignore[import-not-found]

        roi = [
            min(size, tile + _up(a, self.field.stride) + _up(b, self.field.stride))
            for size, tile, a, b in zip(
                self.shape, self.tile, self.field.before, self.field.after, strict=True
            )
        ]
        return SlidingWindowInferer(roi_size=roi, overlap=overlap, mode=mode, sw_batch_size=1)

    def __str__(self) -> str:
        tiles = "x".join(map(str, self.tile))
        text = f"{math.prod(self.parts)} tiles of {tiles} with a halo of {self.field.before} before"
        text += f" and {self.field.after} after, {format_bytes(self.peak_bytes)} each"
        text += f"; {self.overhead:.1%} computed twice"
        if self.channels_last:
            text += "; channels last"
        return text + (f"; autocast to {self.amp}" if self.amp else "")


def best_tiles(
    model: nn.Module,
    image: Any,
    memory: str | int | None = None,
    *,
    amp: torch.dtype | bool | None = None,
    may_channels_last: bool = True,
    device: torch.device | str | None = None,
    field: Field | None = None,
) -> Tiling:
    """Return the tiling with the least computed twice that fits.

    Parameters
    ----------
    model : torch.nn.Module
        Not changed; it is run in eval mode.
    image : tensor or Spec
        (batch, channels, axes); not read.
    memory : str or int, optional
        Of the card; by default what is free.
    amp : torch.dtype or bool, optional
        Autocast that may be used where larger tiles follow; True is float16.
    may_channels_last : bool
        Whether the order of channels may be changed where larger tiles follow.
    device : torch.device or str, optional
        By default the model's.
    field : Field, optional
        If it is known, of `receptive_field`.

    Raises
    ------
    TooLargeError
        If not even the smallest tile fits.
    ModelArgumentError
        If the network has no exact tiles.
    """
    shape, n_batch, channels = tuple(image.shape[2:]), image.shape[0], image.shape[1]
    budget = budget_of(model, device_of(model, device, memory), memory)
    known = receptive_field(model, channels, len(shape)) if field is None else field
    uneven = [size for size in shape if size % known.stride]
    if uneven:
        raise ModelArgumentError(
            f"{uneven[0]} is no multiple of {known.stride}, the network's grid"
        )
    choices: list[tuple[torch.dtype | None, bool]] = [(None, False)]
    if may_channels_last and len(shape) > 1:
        choices.append((None, True))
    low = precision(amp)
    if low is not None:
        choices += [(low, last) for _, last in list(choices)]
    best: Tiling | None = None
    for lower, last in choices:
        found = _largest(
            model, shape, n_batch, channels, image.dtype, known, lower, last, budget.limit_bytes
        )
        # What is nearer to the untiled result comes first.
        if found is not None and (best is None or found.overhead < 0.9 * best.overhead):
            best = found
        if best is not None and best.overhead == 0:
            break
    if best is None:
        raise TooLargeError(
            f"not even tiles of {known.stride} fit into {format_bytes(budget.limit_bytes)} "
            f"({budget.origin}): the halo is {known.before} before and {known.after} after"
        )
    return best


def _largest(
    model: nn.Module,
    shape: tuple[int, ...],
    n_batch: int,
    channels: int,
    dtype: torch.dtype,
    field: Field,
    amp: torch.dtype | None,
    channels_last: bool,
    limit_bytes: int,
) -> Tiling | None:
    """Cut where it costs least, until a tile fits."""
    step = Step(model, "inference", amp=amp)
    parts = [1] * len(shape)

    def tiling(parts: Sequence[int]) -> Tiling:
        tile = tuple(_up(-(-size // n), field.stride) for size, n in zip(shape, parts, strict=True))
        parts = tuple(-(-size // t) for size, t in zip(shape, tile, strict=True))
        made = Tiling(shape, parts, tile, field, amp, channels_last, 0, 0, limit_bytes, 0.0)
        computed = sum(math.prod(s.stop - s.start for s in read) for _, read, _ in made.windows())
        overhead = computed / math.prod(shape) - 1
        return Tiling(shape, parts, tile, field, amp, channels_last, 0, 0, limit_bytes, overhead)

    def change(twin: nn.Module) -> None:
        if channels_last:
            twin.to(memory_format=_format(len(shape)))  # type: ignore[call-overload]

    while True:
        made = tiling(parts)
        reads = max(
            (tuple(s.stop - s.start for s in read) for _, read, _ in made.windows()), key=math.prod
        )
        x: Any = Spec((n_batch, channels, *reads), dtype)
        if channels_last:
            x = x.empty().contiguous(memory_format=_format(len(shape)))
        trace = step.trace([x], WorkAreas.allowance(), change=change)
        if trace.needed_bytes <= limit_bytes:
            return Tiling(
                shape, made.parts, made.tile, field, amp, channels_last, trace.allocated_bytes,
                trace.needed_bytes, limit_bytes, made.overhead,
            )  # fmt: skip
        # About as many more as the excess asks for, and then one by one.
        more = max(1, int(math.prod(parts) * (trace.needed_bytes / limit_bytes - 1) / 2))
        for _ in range(more):
            cuts = [
                [n + (i == axis) for i, n in enumerate(parts)]
                for axis in range(len(shape))
                if parts[axis] * field.stride < shape[axis]
            ]
            if not cuts:
                return None
            parts = min(cuts, key=lambda cut: (tiling(cut).overhead, -max(cut)))


def _index(*parts: Any) -> tuple[Any, ...]:
    return parts


def _up(size: int, stride: int) -> int:
    return -(-size // stride) * stride


def _format(ndim: int) -> torch.memory_format:
    return torch.channels_last_3d if ndim == 3 else torch.channels_last


__all__ = ["Field", "Tiling", "best_tiles", "receptive_field"]
