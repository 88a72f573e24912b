"""Non-local means on torch tensors, a few slices at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def denoise_slices(
    planes: torch.Tensor, strength: float, noise: float, patch: int, search: int
) -> torch.Tensor:
    """Average pixels with similar surroundings, in float32 slices (n, y, x)."""
    _, rows, columns = planes.shape
    beside, reach = patch // 2, search // 2
    margin = beside + reach
    y = mirrored(-margin, rows + margin, rows, planes.device)
    x = mirrored(-margin, columns + margin, columns, planes.device)
    wide = planes[:, y[:, None], x]
    total, weights = torch.zeros_like(planes), torch.zeros_like(planes)
    here = wide[:, reach : rows + margin + beside, reach : columns + margin + beside]
    squares = torch.empty(here.shape, dtype=here.dtype, device=here.device)
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            top, left = reach + dy, reach + dx
            there = wide[:, top : top + rows + 2 * beside, left : left + columns + 2 * beside]
            torch.sub(here, there, out=squares).square_()
            weight = F.avg_pool2d(squares, (patch, 1), stride=1)
            weight = F.avg_pool2d(weight, (1, patch), stride=1)
            # exp(-max(distance - 2 noise^2, 0) / strength^2)
            weight.sub_(2 * noise**2).clamp_(min=0).mul_(-1 / strength**2).exp_()
            middle = there[:, beside : beside + rows, beside : beside + columns]
            total.addcmul_(weight, middle)
            weights.add_(weight)
            del weight
    return total.div_(weights)


def mirrored(first: int, stop: int, n: int, device: torch.device) -> torch.Tensor:
    """Indices `first` to `stop` into n values that are mirrored beyond both ends."""
    indices = torch.arange(first, stop, device=device).remainder_(2 * n)
    return torch.minimum(indices, 2 * n - 1 - indices)
