"""Compressors of tensors that are kept for the backward pass: whole numbers, most of all 0 and 1.

All are exact for what they are made for. What does not come back as it was is an error and
never a wrong gradient: it is checked where it is packed, on the device, without waiting for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ...errors import UsageError


@dataclass(slots=True)
class Packed:
    """A compressed tensor, and what it takes to make it again."""

    data: tuple[torch.Tensor, ...]
    shape: tuple[int, ...]
    """In order of memory."""
    order: tuple[int, ...]
    """Axis of the tensor for each axis of `shape`."""
    dtype: torch.dtype
    compressor: Compressor

    def unpack(self) -> torch.Tensor:
        """Return the tensor as it was, layout included."""
        made = self.compressor.expand(self.data, self.shape, self.dtype)
        back = [self.order.index(axis) for axis in range(len(self.order))]
        return made.permute(back)


class Compressor(ABC):
    """Packs tensors of certain values."""

    name: ClassVar[str]
    """As it is asked for."""
    binary_only: ClassVar[bool] = False
    """Whether only 0 and 1 come back."""

    def pack(self, tensor: torch.Tensor) -> Packed:
        """Return a tensor packed.

        Raises
        ------
        RuntimeError
            If it holds a value that would not come back; on a CUDA device it is raised by
            the next operation that waits for it.
        """
        with torch.no_grad():
            axes = range(tensor.dim())
            strides = tensor.stride()
            order = tuple(sorted(axes, key=lambda axis: (-strides[axis], axis)))
            dense = tensor.detach().permute(order).contiguous()
            torch._assert_async(self.is_exact(dense), self.refusal())
            data = self.shrink(dense)
        return Packed(data, tuple(dense.shape), order, tensor.dtype, self)

    def refusal(self) -> str:
        """Return what to say where values would be lost."""
        return (
            f"a tensor was to be kept by the compressor {self.name!r}, which cannot bring its "
            "values back: reduce the model again with inputs like these, or without 'pack'"
        )

    @abstractmethod
    def is_exact(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a boolean on the device: whether all values come back."""

    @abstractmethod
    def shrink(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return what is kept of a contiguous tensor."""

    @abstractmethod
    def expand(
        self, data: tuple[torch.Tensor, ...], shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the contiguous tensor."""


class BitCompressor(Compressor):
    """0 and 1 in one bit each: 1/32 of single precision."""

    name = "bit"
    binary_only = True

    def is_exact(self, tensor: torch.Tensor) -> torch.Tensor:
        """Tell whether all is 0 or 1."""
        # In one pass, with one temporary: x * x == x for 0 and 1 alone.
        return (tensor * tensor).eq_(tensor).all()

    def shrink(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return eight items a byte, the first in the lowest bit."""
        flat = tensor.view(-1)
        whole = flat.numel() // 8 * 8
        kept = torch.zeros((flat.numel() + 7) // 8, dtype=torch.uint8, device=tensor.device)
        columns = flat[:whole].view(-1, 8)
        for bit in range(8):
            kept[: whole // 8] |= columns[:, bit].to(torch.uint8) << bit
        for bit in range(flat.numel() - whole):
            kept[-1:] |= flat[whole + bit : whole + bit + 1].to(torch.uint8) << bit
        return (kept,)

    def expand(
        self, data: tuple[torch.Tensor, ...], shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the items."""
        (kept,) = data
        made = torch.empty((kept.numel(), 8), dtype=dtype, device=kept.device)
        for bit in range(8):
            made[:, bit] = (kept >> bit) & 1
        n_items = 1
        for size in shape:
            n_items *= size
        return made.view(-1)[:n_items].view(shape)


class _Cast(Compressor):
    kept_as: ClassVar[torch.dtype]

    def is_exact(self, tensor: torch.Tensor) -> torch.Tensor:
        """Tell whether all values come back."""
        return tensor.to(self.kept_as).to(tensor.dtype).eq(tensor).all()

    def shrink(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the values in another dtype."""
        return (tensor.to(self.kept_as),)

    def expand(
        self, data: tuple[torch.Tensor, ...], shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the values."""
        return data[0].to(dtype)


class BooleanCompressor(_Cast):
    """0 and 1 in one byte each."""

    name = "boolean"
    binary_only = True
    kept_as = torch.bool


class Uint8Compressor(_Cast):
    """Whole numbers from 0 to 255 in one byte each."""

    name = "uint8"
    kept_as = torch.uint8


class SparseCompressor(Compressor):
    """Places and values of what is not 0, eight bytes and an item each.

    Its size follows from the data, so it cannot be predicted: it is taken where it is asked
    for, and counted as if nothing were 0.
    """

    name = "sparse"

    def is_exact(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return true: every value comes back."""
        return torch.ones((), dtype=torch.bool, device=tensor.device)

    def shrink(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return places and values."""
        flat = tensor.view(-1)
        if flat.is_meta:  # nobody knows how many
            return torch.empty_like(flat, dtype=torch.int64), torch.empty_like(flat)
        places = flat.nonzero()[:, 0]
        return places, flat[places]

    def expand(
        self, data: tuple[torch.Tensor, ...], shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the items."""
        places, values = data
        made = torch.zeros(shape, dtype=dtype, device=values.device)
        made.view(-1)[places] = values
        return made


COMPRESSORS: dict[str, type[Compressor]] = {
    each.name: each
    for each in (BitCompressor, BooleanCompressor, Uint8Compressor, SparseCompressor)
}
"""By name. "none" keeps tensors as they are."""

_OTHER_NAMES = {
    "BitSpikeCompressor": "bit",
    "BooleanSpikeCompressor": "boolean",
    "Uint8SpikeCompressor": "uint8",
    "SparseSpikeCompressor": "sparse",
    "NullSpikeCompressor": "none",
}
"""Names of the same compressors in spikingjelly."""


def compressor_named(spec: Any) -> Compressor | None:
    """Return a compressor: one as it is, or by its name; None for "none".

    Raises
    ------
    UsageError
        If there is none of that name.
    """
    if spec is None or isinstance(spec, Compressor):
        return spec
    if isinstance(spec, type) and issubclass(spec, Compressor):
        return spec()
    name = spec if isinstance(spec, str) else type(spec).__name__
    name = _OTHER_NAMES.get(name, name)
    if name == "none":
        return None
    if name not in COMPRESSORS:
        known = ", ".join([*COMPRESSORS, "none"])
        raise UsageError(f"{spec!r} is no compressor: one of {known}, or a Compressor")
    return COMPRESSORS[name]()
