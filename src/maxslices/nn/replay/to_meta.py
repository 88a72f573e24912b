"""Real tensors and modules that the code itself brings to the device that is replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from .attribution import user_line

if TYPE_CHECKING:
    from .recorder import Replay


def without_data(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor like a real one on the meta device."""
    made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    return made.requires_grad_(tensor.requires_grad)


@dataclass(slots=True)
class ToMeta:
    """What was brought to the device, each thing once."""

    owner: Replay
    _tensors: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    _modules: dict[int, tuple[torch.nn.Module, torch.nn.Module]] = field(default_factory=dict)

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a real tensor without data, as if it had been on the device from here on."""
        key = tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape
        known = self._tensors.get(key)
        if known is None:
            with self.owner.paused():
                made = without_data(tensor)
            self.owner.count(made, "weights", "")
            # The real one is kept too, so that nothing else gets its address.
            known = self._tensors[key] = made, tensor
            self.owner.note(
                f"{user_line() or 'a function'} uses a tensor on the host together with the "
                "data: counted as if it were on the device"
            )
        return known[0]

    def method(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return `Module.to` or `Module.cuda` that leaves a real module where it is.

        What goes to the device that is replayed is a copy without data, once for a module.
        """

        def move(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self.owner.is_paused:
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
                known = self._modules[id(module)] = self.owner.model(module), module
            return known[0] if dtype is None else real(known[0], dtype)

        return move
