"""Tensors saved for the backward pass, kept compressed or on the host.

Compressors are for integers, above all 0 and 1. Each is exact for the values it is made for. A
value that cannot be restored is an error and never a wrong gradient: values are checked on the
device when they are packed, without a synchronization.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from ...errors import UsageError


@dataclass(slots=True)
class PackedTensor:
    """A compressed tensor, with what is needed to restore it."""

    data: tuple[torch.Tensor, ...]
    shape: tuple[int, ...]
    """Shape in order of memory."""
    order: tuple[int, ...]
    """Axis of the tensor for each axis of `shape`."""
    dtype: torch.dtype
    compressor: Compressor

    def unpack(self) -> torch.Tensor:
        """Restore the tensor, its memory layout included."""
        made = self.compressor.expand(self.data, self.shape, self.dtype)
        back = [self.order.index(axis) for axis in range(len(self.order))]
        return made.data.permute(back)  # `data`: nobody changed it in place yet


@dataclass(frozen=True, slots=True)
class Compressor:
    """A way to keep tensors of some values in less memory."""

    name: str
    shrink: Callable[[torch.Tensor], tuple[tuple[torch.Tensor, ...], torch.Tensor]]
    """Compresses a contiguous tensor; also returns whether all values can be restored, as a boolean
    tensor on the device."""
    expand: Callable[[tuple[torch.Tensor, ...], tuple[int, ...], torch.dtype], torch.Tensor]
    """Restores the contiguous tensor of a shape and dtype."""

    def pack(self, tensor: torch.Tensor) -> PackedTensor:
        """Compress a tensor.

        Raises
        ------
        RuntimeError
            If a value cannot be restored; on a CUDA device the next synchronization raises it.
        """
        with torch.no_grad():
            axes = range(tensor.dim())
            strides = tensor.stride()
            order = tuple(sorted(axes, key=lambda axis: (-strides[axis], axis)))
            dense = tensor.detach().permute(order).contiguous()
            data, is_exact = self.shrink(dense)
            torch._assert_async(
                is_exact,
                f"a tensor was to be kept by the compressor {self.name!r}, which cannot bring its "
                "values back: reduce the model again with inputs like these, or with "
                "compress_x=False",
            )
        return PackedTensor(data, tuple(dense.shape), order, tensor.dtype, self)


def _to_bits(tensor: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Pack eight items into a byte, the first in the lowest bit."""
    # Few operators with temporaries of one byte an item: spikes come in many small tensors.
    flat = tensor.view(-1)
    ones = flat == 1
    known = flat == 0
    is_exact = known.logical_or_(ones).all()
    n_more = -flat.numel() % 8
    if n_more:
        ones = nn.functional.pad(ones, (0, n_more))
    bits = ones.view(torch.uint8).view(-1, 8)
    bits *= _weights(flat.device)
    return (bits.sum(1, dtype=torch.uint8),), is_exact


def _from_bits(
    data: tuple[torch.Tensor, ...], shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    bits = data[0][:, None] & _weights(data[0].device)
    return bits.view(-1)[: math.prod(shape)].view(shape).ne(0).to(dtype)


@lru_cache(maxsize=16)
def _weights(device: torch.device) -> torch.Tensor:
    return torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=device)


_weights(torch.device("meta"))  # cached now, or the first replay that packs would count them


def _cast(name: str, kept_as: torch.dtype) -> Compressor:
    def shrink(tensor: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        kept = tensor.to(kept_as)
        return (kept,), kept.to(tensor.dtype).eq(tensor).all()

    return Compressor(name, shrink, lambda data, _shape, dtype: data[0].to(dtype))


def _to_indices(tensor: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Indices and values of the items that are not 0, as many as there are items in a replay."""
    flat = tensor.view(-1)
    is_exact = torch.ones((), dtype=torch.bool, device=tensor.device)
    if flat.is_meta:  # nobody knows how many
        return (torch.empty_like(flat, dtype=torch.int64), torch.empty_like(flat)), is_exact
    indices = flat.nonzero()[:, 0]
    return (indices, flat[indices]), is_exact


def _from_indices(
    data: tuple[torch.Tensor, ...], shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    indices, values = data
    made = torch.zeros(shape, dtype=dtype, device=values.device)
    made.view(-1)[indices] = values
    return made


COMPRESSORS = {
    each.name: each
    for each in (
        Compressor("bit", _to_bits, _from_bits),
        _cast("boolean", torch.bool),
        _cast("uint8", torch.uint8),
        Compressor("sparse", _to_indices, _from_indices),
    )
}
"""Compressors by name: one bit for each 0 or 1, 1/32 of single precision; one byte; one byte for
each integer from 0 to 255; index and value of each item that is not 0. The size of the last depends
on the data, so it is used only where it is asked for. The name "none" keeps tensors unchanged."""

_OTHER_NAMES = {
    "BitSpikeCompressor": "bit",
    "BooleanSpikeCompressor": "boolean",
    "Uint8SpikeCompressor": "uint8",
    "SparseSpikeCompressor": "sparse",
    "NullSpikeCompressor": "none",
}
"""Names of the same compressors in spikingjelly."""


def compressor_named(name: str) -> Compressor | None:
    """Compressor of a name, here or in spikingjelly; None for "none".

    Raises
    ------
    UsageError
        If there is none of that name.
    """
    name = _OTHER_NAMES.get(name, name)
    if name != "none" and name not in COMPRESSORS:
        known = ", ".join([*COMPRESSORS, "none"])
        raise UsageError(f"{name!r} is not a compressor: one of {known}")
    return COMPRESSORS.get(name)


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
