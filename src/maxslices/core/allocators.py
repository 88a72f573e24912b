"""Bytes that an allocator reserves for an array, which on a GPU exceed the array's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .memory_model import MemoryModel

Device = Literal["cuda", "cpu"]
"""Kind of device: a GPU or the host."""

CUDA_GRANULE_BYTES = 512
"""CuPy's pool and torch's caching allocator allocate multiples of this: ``_allocation_unit_size``
in CuPy's memory.pyx, and ``kMinBlockSize`` in torch's CUDACachingAllocator."""

TORCH_UNSPLIT_BYTES = 2**20
"""torch's allocator does not split a free block if the rest would be at most this large
(``kSmallSize`` in its source). Smaller arrays come from blocks that it always splits."""


def round_to_granule(n_bytes: int) -> int:
    """Bytes that a CUDA allocator reserves for an allocation of `n_bytes`."""
    return -(-n_bytes // CUDA_GRANULE_BYTES) * CUDA_GRANULE_BYTES


@dataclass(frozen=True, slots=True)
class ArrayAllocator:
    """The allocator of the arrays of a run."""

    device: Device
    """Device of its memory."""
    is_torchs: bool = False
    """Whether all arrays on a GPU are from torch's allocator, because a method uses torch."""

    def taken_bytes(self, n_bytes: int) -> int:
        """Most bytes reserved for one array of `n_bytes`."""
        if self.device == "cpu":
            return n_bytes
        rounded = round_to_granule(n_bytes)
        if self.is_torchs and rounded > TORCH_UNSPLIT_BYTES:
            return rounded + TORCH_UNSPLIT_BYTES
        return rounded

    def array(self, bytes_per_slice: int) -> MemoryModel:
        """Model of one array of n slices."""
        if self.device == "cpu":
            return MemoryModel.linear(0, bytes_per_slice)
        return MemoryModel(lambda n: self.taken_bytes(n * bytes_per_slice))

    def method(self, model: MemoryModel, slice_bytes: int, total: int) -> MemoryModel:
        """Model of a method, including the parts of blocks that torch's allocator does not split.

        A model does not have the number of arrays. They are assumed to be as large as the method's
        input or output, whichever is smaller. Their number then follows from the model's growth
        per slice, and is at least two. One more array of constant size is added.

        Parameters
        ----------
        model : MemoryModel
            Peak bytes, with each array rounded to the granule.
        slice_bytes : int
            A slice of its input or output, whichever is smaller.
        total : int
            Slices of the whole array.
        """
        if not self.is_torchs or self.device == "cpu":
            return model
        per_slice = -(-(model.bytes(2 * total) - model.bytes(total)) // total)
        n_arrays = max(2, -(-per_slice // slice_bytes))
        unsplit_bytes = TORCH_UNSPLIT_BYTES * (n_arrays + 1)

        def unsplit(n: int) -> int:
            return unsplit_bytes if model.bytes(n) > TORCH_UNSPLIT_BYTES else 0

        return model + MemoryModel(unsplit)
