"""Real tensors and modules that replayed code uses on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .allocation_log import AllocationLog
from .attribution import user_line


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
