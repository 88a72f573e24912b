"""The U-Net of `denoise_unet`: a small network, applied tile by tile.

Ronneberger, Fischer and Brox (MICCAI 2015), smaller: averages in place of maxima, nearest
neighbours on the way up, and what the last convolution returns is taken away from the input. No
layer looks at more than a neighbourhood, so that tiles give what the whole does.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from ._nlm import mirrored
from ._safetensors import read_tensors, write_tensors
from ._unet_shape import UNetShape, shape_of_weights

Weights = Mapping[str, torch.Tensor]


def new_weights(size: UNetShape, mean: float, scale: float) -> dict[str, torch.Tensor]:
    """Return weights to train: random ones for data of this mean and standard deviation.

    The last layer begins with 0, so that the network begins by leaving images as they are.
    """
    found = {}
    for name, shape in size.weights().items():
        weights = torch.zeros(shape)
        if name.endswith(".weight") and not name.startswith("last"):
            torch.nn.init.kaiming_normal_(weights, nonlinearity="relu")
        found[name] = weights
    found["mean"].fill_(mean)
    found["scale"].fill_(scale)
    return found


def denoise(weights: Weights, size: UNetShape, images: torch.Tensor) -> torch.Tensor:
    """Return images (n, 1, y, x) without the noise; sides are multiples of ``size.step``."""
    names = iter(size.convolutions())

    def convolved(x: torch.Tensor) -> torch.Tensor:
        name, _, _, side = next(names)
        kernel, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return F.conv2d(x, kernel, bias, padding=side // 2)

    x = (images - weights["mean"]).div_(weights["scale"])
    skipped: list[torch.Tensor] = []
    for level in range(size.levels):
        if level:
            skipped.append(x)
            x = F.avg_pool2d(x, 2)
        for _ in range(2):
            x = F.relu_(convolved(x))
    for _ in range(size.levels - 1):
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        x = torch.cat([skipped.pop(), x], dim=1)
        for _ in range(2):
            x = F.relu_(convolved(x))
    return torch.addcmul(images, convolved(x), weights["scale"], value=-1)


def save_weights(weights: Weights, path: str) -> None:
    """Write weights to a safetensors file."""
    write_tensors(path, {name: each.detach().cpu().numpy() for name, each in weights.items()})


def load_weights(
    path: str, device: torch.device | str = "cpu"
) -> tuple[dict[str, torch.Tensor], UNetShape]:
    """Return the weights that a file holds, float32 on a device, and the network's size.

    Raises
    ------
    ValueError
        As `maxslices_methods._unet_shape.shape_of_file`.
    """
    tensors = read_tensors(path)
    size = shape_of_weights({name: each.shape for name, each in tensors.items()}, path)
    on_cpu = torch.device(device).type == "cpu"
    weights = {}
    for name, each in tensors.items():
        # In this order oneDNN writes results in place of copies of them.
        order = torch.channels_last if on_cpu and each.ndim == 4 else torch.preserve_format
        weights[name] = torch.from_numpy(each).to(
            device, torch.float32, copy=True, memory_format=order
        )
    return weights, size


def denoise_slice(
    weights: Weights, size: UNetShape, plane: torch.Tensor, out: torch.Tensor, tile: int
) -> None:
    """Write a slice without its noise, tile by tile.

    All tiles are of one shape, and the slice is mirrored beyond its edges, so that what is
    computed does not depend on anything but the slice.
    """
    rows, columns = plane.shape
    tall, wide = size.tile_dims((rows, columns), tile)
    halo = size.halo
    at_y = mirrored(-halo, rows + -rows % tall + halo, rows, plane.device)
    at_x = mirrored(-halo, columns + -columns % wide + halo, columns, plane.device)
    for top in range(0, rows, tall):
        for left in range(0, columns, wide):
            y = at_y[top : top + tall + 2 * halo]
            x = at_x[left : left + wide + 2 * halo]
            found = denoise(weights, size, plane[y[:, None], x][None, None])[0, 0]
            core = out[top : top + tall, left : left + wide]
            core.copy_(found[halo : halo + core.shape[0], halo : halo + core.shape[1]])
            del found, core
