"""Tensors saved for the backward pass, kept compressed or on the host.

Compressors are for integers, mostly 0 and 1, and exact for the values that they support. Values are
checked on the device when they are packed, without a synchronization. A value that cannot be
restored is an error, never a wrong gradient.
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
    """A compressed tensor, with the layout for restoring it."""

    data: tuple[torch.Tensor, ...]
    shape: tuple[int, ...]
    """Shape in order of memory."""
    order: tuple[int, ...]
    """Axis of the tensor for each axis of `shape`."""
    dtype: torch.dtype
    compressor: Compressor

    def unpack(self) -> torch.Tensor:
        """Restore the tensor, its memory layout included."""
        dense = self.compressor.expand(self.data, self.shape, self.dtype)
        back = [self.order.index(axis) for axis in range(len(self.order))]
        return dense.data.permute(back)  # `data` has version 0, as a tensor that was never changed


@dataclass(frozen=True, slots=True)
class Compressor:
    """A way to keep tensors of some values in less memory."""

    name: str
    shrink: Callable[[torch.Tensor], tuple[tuple[torch.Tensor, ...], torch.Tensor]]
    """Compresses a contiguous tensor. Also returns a boolean tensor on the device, which is True if
    all values can be restored."""
    expand: Callable[[tuple[torch.Tensor, ...], tuple[int, ...], torch.dtype], torch.Tensor]
    """Restores the contiguous tensor of a shape and dtype."""

    def pack(self, tensor: torch.Tensor) -> PackedTensor:
        """Compress a tensor.

        Raises
        ------
        RuntimeError
            If a value cannot be restored. On a CUDA device, the next synchronization raises it.
        """
        with torch.no_grad():
            axes = range(tensor.dim())
            strides = tensor.stride()
            order = tuple(sorted(axes, key=lambda axis: (-strides[axis], axis)))
            dense = tensor.detach().permute(order).contiguous()
            data, is_exact = self.shrink(dense)
            torch._assert_async(
                is_exact,
                f"the compressor {self.name!r} cannot restore the values of a tensor. Reduce the "
                "model again with inputs like these, or with compress_x=False",
            )
        return PackedTensor(data, tuple(dense.shape), order, tensor.dtype, self)


def _to_bits(tensor: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Pack eight items into a byte, the first in the lowest bit."""
    # Few operators, with temporaries of one byte an item, as there are many small tensors.
    flat = tensor.view(-1)
    ones = flat == 1
    zeros = flat == 0
    is_exact = zeros.logical_or_(ones).all()
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
    """Indices and values of the nonzero items; in a replay all items count as nonzero."""
    flat = tensor.view(-1)
    is_exact = torch.ones((), dtype=torch.bool, device=tensor.device)
    if flat.is_meta:  # the number is unknown
        return (torch.empty_like(flat, dtype=torch.int64), torch.empty_like(flat)), is_exact
    indices = flat.nonzero()[:, 0]
    return (indices, flat[indices]), is_exact


def _from_indices(
    data: tuple[torch.Tensor, ...], shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    indices, values = data
    dense = torch.zeros(shape, dtype=dtype, device=values.device)
    dense.view(-1)[indices] = values
    return dense


COMPRESSORS = {
    each.name: each
    for each in (
        Compressor("bit", _to_bits, _from_bits),
        _cast("boolean", torch.bool),
        _cast("uint8", torch.uint8),
        Compressor("sparse", _to_indices, _from_indices),
    )
}
"""Compressors by name. "bit" takes one bit for each 0 or 1, which is 1/32 of single precision.
"boolean" takes one byte for each 0 or 1, and "uint8" one byte for each integer from 0 to 255.
"sparse" keeps index and value of each nonzero item. Its size depends on the data, so it is never
chosen by default. The name "none" keeps tensors unchanged."""

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
        If the name is unknown.
    """
    name = _OTHER_NAMES.get(name, name)
    if name != "none" and name not in COMPRESSORS:
        names = ", ".join([*COMPRESSORS, "none"])
        raise UsageError(f"{name!r} is not a compressor. Choose one of {names}")
    return COMPRESSORS.get(name)


SMALL_BYTES = 2**20
"""Size below which tensors stay on the device. A copy of 1 MiB takes 19 µs at 55 GB/s, as long as
the host needs to issue it."""


def packed_inputs(
    inputs: Sequence[torch.Tensor], compressors: Sequence[Compressor | None]
) -> AbstractContextManager[Any]:
    """Compress the inputs of a module that are saved inside.

    Parameters
    ----------
    inputs : sequence of tensor
        Tensor inputs of the module.
    compressors : sequence
        Compressor of each input, or None for an input that is kept unchanged.
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
        """Number of operators that saved the tensor and have not unpacked it yet."""
        self.back: torch.Tensor | None = None
        """Copy on the device, while other operators still need it."""
        self.like: Any = None
        if tensor.is_meta:  # a replay: nothing is on the host
            self.like = tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype
            return
        self.data = torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, pin_memory=tensor.is_cuda
        )
        self.data.copy_(tensor, non_blocking=True)  # in order on the stream that computes

    def unpack(self) -> torch.Tensor:
        """Copy the tensor to its device, where it stays until all operators have unpacked it."""
        copy = self.back
        if copy is None:
            copy = self._copied()
        self.n_awaited -= 1
        self.back = copy if self.n_awaited > 0 else None
        return copy

    def _copied(self) -> torch.Tensor:
        if self.like is not None:
            size, stride, dtype = self.like
            return torch.empty_strided(size, stride, dtype=dtype, device="meta")
        return self.data.to(self.device, non_blocking=True)


_known: WeakKeyDictionary[torch.UntypedStorage, WeakValueDictionary[tuple[Any, ...], _HostCopy]]
_known = WeakKeyDictionary()
"""Copies on the host of storages that still exist. A tensor that two operators save, even in two
modules, is copied once. torch's own weak references to storages are not used: with torch 2.6, a
replay does not notice when their storages are freed."""


def offloaded(module: nn.Module) -> AbstractContextManager[Any]:
    """Keep tensors saved inside a module on the host, except parameters and buffers."""
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
