"""The U-Net of `denoise_unet`: a small network, applied tile by tile.

A smaller version of the network of Ronneberger, Fischer and Brox (MICCAI 2015). It downsamples by
averages instead of maxima and upsamples by nearest neighbours, and the output of the last
convolution is subtracted from the input. All layers have a finite receptive field, so the result of
tiles is that of the whole image.
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
    """Random initial weights for data with this mean and standard deviation.

    The last layer is 0, so the untrained network returns images unchanged.
    """
    by_name = {}
    for name, shape in size.weights().items():
        weights = torch.zeros(shape)
        if name.endswith(".weight") and not name.startswith("last"):
            torch.nn.init.kaiming_normal_(weights, nonlinearity="relu")
        by_name[name] = weights
    by_name["mean"].fill_(mean)
    by_name["scale"].fill_(scale)
    return by_name


def denoise(weights: Weights, size: UNetShape, images: torch.Tensor) -> torch.Tensor:
    """Denoise images (n, 1, y, x) whose sides are multiples of ``size.step``."""
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
    """Read weights as float32 from a file to a device, with the size of their network.

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
        # With channels last, oneDNN writes its result without another copy.
        order = torch.channels_last if on_cpu and each.ndim == 4 else torch.preserve_format
        weights[name] = torch.from_numpy(each).to(
            device, torch.float32, copy=True, memory_format=order
        )
    return weights, size


def denoise_slice(
    weights: Weights, size: UNetShape, plane: torch.Tensor, out: torch.Tensor, tile: int
) -> None:
    """Denoise a slice tile by tile.

    All tiles have the same shape, and the slice is mirrored at its edges. The result depends only
    on the slice.
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
            denoised = denoise(weights, size, plane[y[:, None], x][None, None])[0, 0]
            core = out[top : top + tall, left : left + wide]
            core.copy_(denoised[halo : halo + core.shape[0], halo : halo + core.shape[1]])
            del denoised, core
