"""Weights, receptive field and memory of the U-Net of `denoise_unet`, without torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from maxslices.core.ledger import Ledger

from ._safetensors import read_shapes

Shapes = dict[str, tuple[int, ...]]
LARGE_BYTES, SPARE_BYTES = 2**20, 2**19
"""For requests above `LARGE_BYTES`, torch's allocator may return an unsplit block with up to 1 MiB
to spare (see `maxslices.core.allocators`), `SPARE_BYTES` on average."""
UNFOLDED_ITEMS = 20480
"""Items of the largest image that torch convolves on a CPU by unfolding it. oneDNN convolves larger
images."""


@dataclass(frozen=True, slots=True)
class UNetShape:
    """Size of a U-Net with two 3x3 convolutions at each level, on the way down and up."""

    channels: int
    """Number of channels at full resolution. It doubles at each further level."""
    levels: int
    """Number of resolutions. A pixel of the lowest is ``step`` pixels wide."""

    @property
    def step(self) -> int:
        """Pixels of which the sides of an input must be multiples."""
        return int(2 ** (self.levels - 1))

    @property
    def halo(self) -> int:
        """Pixels around a tile that affect its result, rounded up to a multiple of `step`."""
        down: int = 2 * (2**self.levels - 1)
        up: int = 2 * (2 ** (self.levels - 1) - 1)
        return (-(-(down + up) // self.step) + 1) * self.step

    def convolutions(self) -> list[tuple[str, int, int, int]]:
        """Name, input channels, output channels and kernel side of each convolution, in order."""
        widths = [self.channels * 2**level for level in range(self.levels)]
        layers = []
        before = 1
        for level, width in enumerate(widths):
            layers += [(f"down.{level}.0", before, width, 3), (f"down.{level}.1", width, width, 3)]
            before = width
        for level in reversed(range(self.levels - 1)):
            width = widths[level]
            layers += [
                (f"up.{level}.0", before + width, width, 3),
                (f"up.{level}.1", width, width, 3),
            ]
            before = width
        return [*layers, ("last", before, 1, 1)]

    def weights(self) -> Shapes:
        """Shapes of all weights by name."""
        shapes: Shapes = {"mean": (), "scale": ()}
        for name, inputs, outputs, side in self.convolutions():
            shapes[f"{name}.weight"] = (outputs, inputs, side, side)
            shapes[f"{name}.bias"] = (outputs,)
        return shapes

    def tile_dims(self, dims: tuple[int, int], tile: int) -> tuple[int, int]:
        """Sides of the tiles that a slice is cut into, without their halo."""
        step = self.step
        tall, wide = (-(-min(n, tile) // step) * step for n in dims)
        return tall, wide


def shape_of_file(path: str) -> UNetShape:
    """Size of the U-Net whose weights a file holds.

    Raises
    ------
    ValueError
        If the file is missing, is not a safetensors file, or has the weights of another model. The
        message lists the first names and shapes that differ.
    """
    try:
        changed = os.stat(path).st_mtime_ns
    except OSError:
        changed = 0
    return _shape_of_file(os.fspath(path), changed)


@lru_cache(maxsize=16)
def _shape_of_file(path: str, changed: int) -> UNetShape:
    shapes = read_shapes(path)
    return shape_of_weights(shapes, path)


def shape_of_weights(shapes: Shapes, where: str) -> UNetShape:
    """Size of the U-Net that has weights of these shapes, as `shape_of_file`."""
    levels = 1
    while f"down.{levels}.0.weight" in shapes:
        levels += 1
    first = shapes.get("down.0.0.weight", ())
    size = UNetShape(int(first[0]) if first else 16, levels)
    wanted = size.weights()
    faults = [
        f"{name} is {_text(shapes[name])} instead of {_text(shape)}"
        if name in shapes
        else f"{name} {_text(shape)} is missing"
        for name, shape in wanted.items()
        if shapes.get(name) != shape
    ]
    faults += [
        f"{name} {_text(shape)} is unknown" for name, shape in shapes.items() if name not in wanted
    ]
    if faults:
        more = f", and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise ValueError(
            f"{where} does not have the weights of denoise_unet: {', '.join(faults[:3])}{more}"
        )
    return size


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a number"


def account(m: Ledger, size: UNetShape, dims: tuple[int, int], tile: int) -> None:
    """Enter the allocations of the network for a slice, including the weights, and free them."""
    held = [m.alloc(shape, np.float32) for shape in size.weights().values()]
    tall, wide = (n + 2 * size.halo for n in size.tile_dims(dims, tile))

    def image(channels: int, level: int) -> Any:
        return alloc_tensor(m, (channels, tall >> level, wide >> level))

    kernels = iter([size.weights()[f"{name}.weight"] for name, *_ in size.convolutions()])

    def convolution(before: Any, width: int, level: int) -> Any:
        after, (outputs, inputs, *sides) = image(width, level), next(kernels)
        if m.device == "cpu":
            pixels = (tall >> level) * (wide >> level)
            if inputs * pixels <= UNFOLDED_ITEMS:
                m.free(m.alloc((inputs, *sides, pixels), np.float32))
            else:  # oneDNN reorders the weights
                m.free(m.alloc((outputs, inputs, *sides), np.float32))
        if before not in skipped:
            m.free(before)
        return after

    source = image(1, 0)
    skipped = []
    x = image(1, 0)
    for level in range(size.levels):
        width = size.channels * 2**level
        if level:
            pooled = image(width // 2, level)
            skipped.append(x)
            x = pooled
        for _ in range(2):
            x = convolution(x, width, level)
    for level in reversed(range(size.levels - 1)):
        width = size.channels * 2**level
        widened = image(2 * width, level)
        m.free(x)
        joined = image(3 * width, level)
        m.free(widened, skipped.pop())
        x = joined
        for _ in range(2):
            x = convolution(x, width, level)
    noise = convolution(x, 1, 0)
    result = image(1, 0)
    m.free(result, noise, source, *held)


def alloc_tensor(m: Ledger, shape: tuple[int, ...]) -> Any:
    """Enter a tensor of float32.

    On a GPU, a large tensor may occupy up to 1 MiB more than its size, because torch does not split
    off smaller remainders of a block.
    """
    allocation = m.alloc(shape, np.float32)
    if m.device == "cuda" and allocation.n_bytes > LARGE_BYTES:
        m.free(allocation)
        return m.alloc_bytes(allocation.n_bytes + SPARE_BYTES)
    return allocation
