"""Bytes that an allocator takes for an array: on a GPU more than the array has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .memory_model import MemoryModel

Device = Literal["cuda", "cpu"]
"""Whose memory is meant: a GPU's or the host's."""

CUDA_GRANULE_BYTES = 512
"""CuPy's pool and torch's caching allocator hand out multiples of this: ``_allocation_unit_size``
in CuPy's memory.pyx, ``kMinBlockSize`` in torch's CUDACachingAllocator."""

TORCH_UNSPLIT_BYTES = 2**20
"""torch's allocator leaves a free block whole if splitting it would leave no more than this
(``kSmallSize`` in its source); arrays below that size come from blocks that it always splits."""


def round_to_granule(n_bytes: int) -> int:
    """Bytes that a CUDA allocator takes for an allocation of `n_bytes`."""
    return -(-n_bytes // CUDA_GRANULE_BYTES) * CUDA_GRANULE_BYTES


@dataclass(frozen=True, slots=True)
class ArrayAllocator:
    """The allocator that the arrays of a run come from."""

    device: Device
    """Whose memory it hands out."""
    is_torchs: bool = False
    """Whether a GPU's arrays all come from torch's allocator: a method of the run is for torch."""

    def taken_bytes(self, n_bytes: int) -> int:
        """Most bytes taken for one array of `n_bytes`."""
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
        """Model of a method with what torch's allocator leaves unsplit.

        A model has the number of bytes alive, not the number of arrays. They are assumed to be
        arrays of the size of the method's input or output, whichever is smaller: as many as
        the model's growth per slice makes, at least two, and one more of constant size.

        Parameters
        ----------
        model : MemoryModel
            Bytes alive, each array rounded to the granule.
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
