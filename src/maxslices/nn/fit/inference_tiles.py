"""Inference on images that do not fit: the largest exact tiles, with the halo they need.

With the halo of the `receptive_field`, the result is the untiled one, but for the rounding of
kernels that are selected by size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import nn

from ...core.units import format_bytes
from ..memory_budget import budget_of, device_of
from ..nn_errors import ModelArgumentError, TooLargeError
from ..replay import Spec, Trace, Workspaces
from ..step.call_inputs import is_sized
from ..step.model_step import ModelStep, precision, shape_text
from ..step.receptive_field import ReceptiveField, receptive_field

Slices = tuple["slice[int, int, None]", ...]
"""Slices of an image, one for each axis."""


@dataclass(frozen=True, slots=True)
class InferenceTiling:
    """Tiles of an image, and the settings they are computed with."""

    shape: tuple[int, ...]
    """Shape of the image, without batch and channels."""
    parts: tuple[int, ...]
    """Number of tiles along each axis."""
    tile: tuple[int, ...]
    """Size of a tile without its halo; the last tile of an axis may be smaller."""
    field: ReceptiveField
    amp: torch.dtype | None
    """Lower precision of autocast; None without it."""
    channels_last: bool
    peak_bytes: int
    """Predicted ``max_memory_allocated`` of the largest tile, weights included."""
    needed_bytes: int
    """Smallest limit of the allocator under which that tile runs."""
    limit_bytes: int
    overhead: float
    """Items computed for halos, as a fraction of the image's items."""

    def windows(self) -> Iterator[tuple[Slices, Slices, Slices]]:
        """Yield the slices of each tile, those with its halo, and the former in the latter."""
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
            Network in eval mode, on the device that computes the tiles.
        image : (batch, channels, axes) tensor
            Image on any device; one tile at a time is copied to the model's.

        Returns
        -------
        tensor
            Result on the image's device.
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
        """MONAI's sliding-window inferer with tiles of this size.

        It blends overlapping tiles, so its result is not the untiled one.
        """
        from monai.inferers import SlidingWindowInferer  # type: ignore[import-not-found]

        roi = [
            min(size, tile + _up(a, self.field.stride) + _up(b, self.field.stride))
            for size, tile, a, b in zip(
                self.shape, self.tile, self.field.before, self.field.after, strict=True
            )
        ]
        return SlidingWindowInferer(roi_size=roi, overlap=overlap, mode=mode, sw_batch_size=1)

    def to_dict(self) -> dict[str, Any]:
        """Figures in plain lists and dicts."""
        return {
            "shape": list(self.shape),
            "n_tiles": math.prod(self.parts),
            "parts": list(self.parts),
            "tile": list(self.tile),
            "halo_before": list(self.field.before),
            "halo_after": list(self.field.after),
            "amp": None if self.amp is None else str(self.amp).removeprefix("torch."),
            "channels_last": self.channels_last,
            "peak_bytes": self.peak_bytes,
            "needed_bytes": self.needed_bytes,
            "limit_bytes": self.limit_bytes,
            "overhead": self.overhead,
        }

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
    field: ReceptiveField | None = None,
) -> InferenceTiling:
    """Tiling with the smallest overhead that fits.

    Parameters
    ----------
    model : torch.nn.Module
        Network, run in eval mode; it is not changed.
    image : tensor or Spec
        Image (batch, channels, axes); its values are not read.
    memory : str or int, optional
        Memory of the card; by default what is free.
    amp : torch.dtype or bool, optional
        Autocast that may be used if it allows larger tiles; True is float16.
    may_channels_last : bool
        Whether channels-last order may be used if it allows larger tiles.
    device : torch.device or str, optional
        Device of the tiles; by default the model's.
    field : ReceptiveField, optional
        Result of `receptive_field`, if known.

    Raises
    ------
    TooLargeError
        If not even the smallest tile fits.
    ModelArgumentError
        If the network has no exact tiles.
    """
    if not is_sized(image) or len(image.shape) < 3:
        given = shape_text(image) if is_sized(image) else repr(image)
        raise ModelArgumentError(
            "image is a tensor or Spec with batch, channels and axes, such as "
            f"Spec((1, 1, 4096, 4096)), not {given}"
        )
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
    best: InferenceTiling | None = None
    for lower, last in choices:
        found = _largest(
            model, shape, n_batch, channels, image.dtype, known, lower, last, budget.limit_bytes
        )
        # Settings nearer to the untiled result come first, and are left only for a tenth less
        # overhead.
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
    field: ReceptiveField,
    amp: torch.dtype | None,
    channels_last: bool,
    limit_bytes: int,
) -> InferenceTiling | None:
    """Tiling with the fewest cuts that fits, cutting along the cheapest axis first."""
    step = ModelStep(model, "inference", amp=amp)
    parts = [1] * len(shape)

    def tiling(parts: Sequence[int]) -> InferenceTiling:
        tile = tuple(_up(-(-size // n), field.stride) for size, n in zip(shape, parts, strict=True))
        parts = tuple(-(-size // t) for size, t in zip(shape, tile, strict=True))
        made = InferenceTiling(
            shape, parts, tile, field, amp, channels_last, 0, 0, limit_bytes, 0.0
        )
        computed = sum(math.prod(s.stop - s.start for s in read) for _, read, _ in made.windows())
        overhead = computed / math.prod(shape) - 1
        return InferenceTiling(
            shape, parts, tile, field, amp, channels_last, 0, 0, limit_bytes, overhead
        )

    def change(copy: nn.Module) -> None:
        if channels_last:
            copy.to(memory_format=_format(len(shape)))  # type: ignore[call-overload]

    def replayed(sizes: Sequence[int]) -> Trace:
        x: Any = Spec((n_batch, channels, *sizes), dtype)
        if channels_last:
            x = x.empty().contiguous(memory_format=_format(len(shape)))
        return step.trace([x], Workspaces.allowance(), change=change)

    smallest = [
        min(size, field.stride + _up(before, field.stride) + _up(after, field.stride))
        for size, before, after in zip(shape, field.before, field.after, strict=True)
    ]
    if replayed(smallest).needed_bytes > limit_bytes:
        return None  # no number of cuts helps
    while True:
        made = tiling(parts)
        reads = max(
            (tuple(s.stop - s.start for s in read) for _, read, _ in made.windows()), key=math.prod
        )
        trace = replayed(reads)
        if trace.needed_bytes <= limit_bytes:
            return InferenceTiling(
                shape, made.parts, made.tile, field, amp, channels_last, trace.allocated_bytes,
                trace.needed_bytes, limit_bytes, made.overhead,
            )  # fmt: skip
        # First as many cuts as half the excess suggests, then one at a time.
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


__all__ = ["InferenceTiling", "ReceptiveField", "best_tiles", "receptive_field"]
