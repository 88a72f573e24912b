"""Copies on the host of tensors without data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_map

from .allocation_log import AllocationLog, user_line


def without_data(tensor: torch.Tensor) -> torch.Tensor:
    """Make a tensor of the same shape, strides and dtype on the meta device."""
    meta = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    return meta.requires_grad_(tensor.requires_grad)


@dataclass(slots=True)
class ToMeta:
    """Replaces real tensors and modules by copies without data. Each has one copy."""

    log: AllocationLog
    copy_model: Callable[[torch.nn.Module], torch.nn.Module]
    """Copies a module without data, and counts the weights of the copy."""
    _tensors: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    _modules: dict[int, tuple[torch.nn.Module, torch.nn.Module]] = field(default_factory=dict)

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace a real tensor by one that counts as memory of the device from now on."""
        key = tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape
        entry = self._tensors.get(key)
        if entry is None:
            with self.log.paused():
                meta = without_data(tensor)
            self.log.count(meta, "weights", "")
            # Keeping the real tensor alive prevents the reuse of its address, which is in the key.
            entry = self._tensors[key] = meta, tensor
            self.log.note(
                f"{user_line() or 'a function'} uses a tensor on the host together with the "
                "data: counted as if it were on the device"
            )
        return entry[0]

    def method(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Make a `Module.to` or `Module.cuda` that leaves real modules unchanged.

        A real module that is moved to the replayed device is copied once without data.
        """

        def move(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self.log.is_paused:
                return real(module, *args, **kwargs)
            if name == "cuda":
                device, dtype = torch.device("cuda"), None
            else:
                device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
            tensors = (*module.parameters(), *module.buffers())
            if device is None or device.type not in ("meta", "cuda"):
                return real(module, *args, **kwargs)
            if all(t.device.type == "meta" for t in tensors):
                return module if dtype is None else real(module, dtype)
            entry = self._modules.get(id(module))
            if entry is None:
                entry = self._modules[id(module)] = self.copy_model(module), module
            return entry[0] if dtype is None else real(entry[0], dtype)

        return move


class HostTensor(torch.Tensor):
    """Copy on the CPU, without data, of a tensor on the replayed device.

    It does not count as memory of the device. A copy back is a tensor on the device.
    """

    without_data: torch.Tensor
    """Tensor of the same shape and dtype on the meta device."""

    @staticmethod
    def __new__(cls, without_data: torch.Tensor) -> HostTensor:
        """Wrap a tensor of the meta device."""
        tensor: HostTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            without_data.size(),
            strides=without_data.stride(),
            storage_offset=without_data.storage_offset(),
            dtype=without_data.dtype,
            device=torch.device("cpu"),
        )
        tensor.without_data = without_data
        return tensor

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
        meta_args, meta_kwargs = tree_map(_unwrap, (args, kwargs))
        result = func(*meta_args, **meta_kwargs)
        if to_device:
            return result
        if func._schema.is_mutable:
            return args[0] if isinstance(result, torch.Tensor) else result
        return tree_map(_wrap, result)


def _unwrap(item: Any) -> Any:
    if isinstance(item, HostTensor):
        return item.without_data
    if isinstance(item, torch.Tensor) and not item.is_meta and item.dim():
        return item.to("meta")
    return item


def _wrap(item: Any) -> Any:
    return HostTensor(item) if isinstance(item, torch.Tensor) and item.is_meta else item
