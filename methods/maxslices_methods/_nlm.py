"""Non-local means on torch tensors, a few slices at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def denoise_slices(
    planes: torch.Tensor, strength: float, noise: float, patch: int, search: int
) -> torch.Tensor:
    """Denoise slices (n, y, x), float32, by averages of pixels with similar surroundings."""
    _, rows, columns = planes.shape
    radius, reach = patch // 2, search // 2
    margin = radius + reach
    y = mirrored(-margin, rows + margin, rows, planes.device)
    x = mirrored(-margin, columns + margin, columns, planes.device)
    wide = planes[:, y[:, None], x]
    total, weights = torch.zeros_like(planes), torch.zeros_like(planes)
    here = wide[:, reach : rows + margin + radius, reach : columns + margin + radius]
    squares = torch.empty(here.shape, dtype=here.dtype, device=here.device)
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            top, left = reach + dy, reach + dx
            there = wide[:, top : top + rows + 2 * radius, left : left + columns + 2 * radius]
            torch.sub(here, there, out=squares).square_()
            weight = F.avg_pool2d(squares, (patch, 1), stride=1)
            weight = F.avg_pool2d(weight, (1, patch), stride=1)
            # exp(-max(distance - 2 noise^2, 0) / strength^2)
            weight.sub_(2 * noise**2).clamp_(min=0).mul_(-1 / strength**2).exp_()
            middle = there[:, radius : radius + rows, radius : radius + columns]
            total.addcmul_(weight, middle)
            weights.add_(weight)
            del weight
    return total.div_(weights)


def mirrored(first: int, stop: int, n: int, device: torch.device) -> torch.Tensor:
    """Indices for positions `first` to `stop` in n values that are mirrored at both ends."""
    indices = torch.arange(first, stop, device=device).remainder_(2 * n)
    return torch.minimum(indices, 2 * n - 1 - indices)
