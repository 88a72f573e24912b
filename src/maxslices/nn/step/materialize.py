"""Memory for models without data: parameters and buffers become zeros on a device."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def materialize(
    model: nn.Module, device: torch.device, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Replace parameters and buffers without data by zeros on a device.

    Shared parameters and buffers stay shared, and the optimizer refers to the new ones. Zeros
    are valid for every dtype: as indices they stay in range.
    """
    made: dict[int, torch.Tensor] = {}

    def on_device(tensor: torch.Tensor) -> torch.Tensor:
        known = made.get(id(tensor))
        if known is None:
            known = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device
            ).zero_()
            if isinstance(tensor, nn.Parameter):
                known = nn.Parameter(known, tensor.requires_grad)
            made[id(tensor)] = known
        return known

    for module in model.modules():
        for table in (module._parameters, module._buffers):
            kept: dict[str, Any] = table
            for name, tensor in kept.items():
                if tensor is not None and tensor.is_meta:
                    kept[name] = on_device(tensor)
    if optimizer is not None:
        for group in optimizer.param_groups:
            group["params"] = [made.get(id(p), p) for p in group["params"]]
