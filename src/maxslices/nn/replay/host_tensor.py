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
    made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    return made.requires_grad_(tensor.requires_grad)


@dataclass(slots=True)
class ToMeta:
    """Replaces real tensors and modules by copies without data, each once."""

    log: AllocationLog
    copy_model: Callable[[torch.nn.Module], torch.nn.Module]
    """Makes a copy of a module without data whose weights are counted."""
    _tensors: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    _modules: dict[int, tuple[torch.nn.Module, torch.nn.Module]] = field(default_factory=dict)

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace a real tensor, as if it had been on the device from now on."""
        key = tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape
        known = self._tensors.get(key)
        if known is None:
            with self.log.paused():
                made = without_data(tensor)
            self.log.count(made, "weights", "")
            # The real tensor is kept alive so that no other gets its address, which is in the key.
            known = self._tensors[key] = made, tensor
            self.log.note(
                f"{user_line() or 'a function'} uses a tensor on the host together with the "
                "data: counted as if it were on the device"
            )
        return known[0]

    def method(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Make a `Module.to` or `Module.cuda` that leaves real modules unchanged.

        A real module that is moved to the replayed device is copied without data, once.
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
            known = self._modules.get(id(module))
            if known is None:
                known = self._modules[id(module)] = self.copy_model(module), module
            return known[0] if dtype is None else real(known[0], dtype)

        return move


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
