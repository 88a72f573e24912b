"""Copies on the host of tensors without data."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map


class HostTensor(torch.Tensor):
    """Tensor on the CPU without data: a copy of one on the replayed device.

    It does not count as memory of the device. Copied back, it becomes a tensor there.
    """

    without_data: torch.Tensor
    """Tensor of the same shape and dtype on the meta device."""

    @staticmethod
    def __new__(cls, without_data: torch.Tensor) -> HostTensor:
        """Wrap a tensor of the meta device."""
        made: HostTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            without_data.size(),
            strides=without_data.stride(),
            storage_offset=without_data.storage_offset(),
            dtype=without_data.dtype,
            device=torch.device("cpu"),
        )
        made.without_data = without_data
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"HostTensor({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        to_device = device is not None and torch.device(device).type in ("meta", "cuda")
        if device is not None:
            kwargs["device"] = torch.device("meta")
        plain_args, plain_kwargs = tree_map(_unwrapped, (args, kwargs))
        made = func(*plain_args, **plain_kwargs)
        if to_device:
            return made
        if func._schema.is_mutable:
            return args[0] if isinstance(made, torch.Tensor) else made
        return tree_map(_wrapped, made)


def _unwrapped(item: Any) -> Any:
    if isinstance(item, HostTensor):
        return item.without_data
    if isinstance(item, torch.Tensor) and not item.is_meta and item.dim():
        return item.to("meta")
    return item


def _wrapped(item: Any) -> Any:
    return HostTensor(item) if isinstance(item, torch.Tensor) and item.is_meta else item
