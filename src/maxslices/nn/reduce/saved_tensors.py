"""Tensors saved for the backward pass, kept compressed or on the host."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from .compress import Compressor, PackedTensor

SMALL_BYTES = 2**20
"""Smaller tensors stay on the device: a copy of 1 MiB takes 19 µs at 55 GB/s, as long as the
host needs to issue it."""


def packed_inputs(
    inputs: Sequence[torch.Tensor], compressors: Sequence[Compressor | None]
) -> AbstractContextManager[Any]:
    """Compress the inputs of a module that are saved inside.

    Parameters
    ----------
    inputs : sequence of tensor
        Tensor inputs of the module.
    compressors : sequence
        Compressor of each input; inputs with None, or without one, are kept as they are.
    """
    wanted = {
        tensor.untyped_storage()._cdata: compressor
        for tensor, compressor in zip(inputs, compressors, strict=False)
        if compressor is not None
    }

    def pack(tensor: torch.Tensor) -> Any:
        compressor = wanted.get(tensor.untyped_storage()._cdata)
        if compressor is None or not tensor.is_floating_point():
            return tensor
        return compressor.pack(tensor)

    return saved_tensors_hooks(pack, _unpack)


def _unpack(kept: Any) -> torch.Tensor:
    return kept.unpack() if isinstance(kept, PackedTensor | _HostCopy) else kept


class _HostCopy:
    """A tensor's data in pinned memory of the host, with the device it came from."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device = tensor.device
        self.n_awaited = 0
        """Number of operators that saved it and have not asked for it yet."""
        self.back: torch.Tensor | None = None
        """Copy on the device, while other operators are expected to ask for it."""
        self.like: Any = None
        if tensor.is_meta:  # a replay: nothing is on the host
            self.like = tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype
            return
        self.data = torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, pin_memory=tensor.is_cuda
        )
        self.data.copy_(tensor, non_blocking=True)  # in order on the stream that computes

    def unpack(self) -> torch.Tensor:
        """Copy it to its device, where it stays until all operators have asked for it."""
        made = self.back
        if made is None:
            made = self._copied()
        self.n_awaited -= 1
        self.back = made if self.n_awaited > 0 else None
        return made

    def _copied(self) -> torch.Tensor:
        if self.like is not None:
            size, stride, dtype = self.like
            return torch.empty_strided(size, stride, dtype=dtype, device="meta")
        return self.data.to(self.device, non_blocking=True)


_known: WeakKeyDictionary[torch.UntypedStorage, WeakValueDictionary[tuple[Any, ...], _HostCopy]]
_known = WeakKeyDictionary()
"""What is on the host of storages that are still there: what two operators save, be it in two
modules, is copied once. Not with torch's own weak references to storages: with torch 2.6, a
replay does not see what they refer to die."""


def offloaded(module: nn.Module) -> AbstractContextManager[Any]:
    """Keep what is saved inside on the host; parameters and buffers stay on the device."""
    own = {t.untyped_storage()._cdata for t in (*module.parameters(), *module.buffers())}

    def pack(tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage()
        small = tensor.nbytes < SMALL_BYTES
        if small or tensor.device.type == "cpu" or storage._cdata in own:
            return tensor
        key = (
            tensor._version, tensor.dtype, tensor.storage_offset(),
            tuple(tensor.size()), tuple(tensor.stride()),
        )  # fmt: skip
        copies = _known.setdefault(storage, WeakValueDictionary())
        on_host = copies.get(key)
        if on_host is None:
            on_host = copies[key] = _HostCopy(tensor.detach())
        on_host.n_awaited += 1
        return on_host

    return saved_tensors_hooks(pack, _unpack)
