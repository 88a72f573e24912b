"""What an allocator hands out for an array: on a GPU more than its bytes."""

from __future__ import annotations

from dataclasses import dataclass

from .ledger import CUDA_GRANULE_BYTES as CUDA_GRANULE_BYTES
from .ledger import Device
from .memory_model import MemoryModel

UNSPLIT_BYTES = 2**20
"""torch's allocator leaves a free piece whole if no more than this is left over; smaller arrays
come from pieces that it always splits."""


def round_to_granule(n_bytes: int) -> int:
    """Bytes that a CUDA allocator takes for an allocation of `n_bytes`."""
    return -(-n_bytes // CUDA_GRANULE_BYTES) * CUDA_GRANULE_BYTES


@dataclass(frozen=True, slots=True)
class Allocator:
    """Where the arrays of a run come from."""

    device: Device
    """Whose memory it is."""
    is_torchs: bool = False
    """Whether a GPU's arrays all come from torch's allocator: a method of the run is for torch."""

    def handed_out(self, n_bytes: int) -> int:
        """Return the most that is taken for one array."""
        if self.device == "cpu":
            return n_bytes
        rounded = round_to_granule(n_bytes)
        return rounded + UNSPLIT_BYTES if self.is_torchs and rounded > UNSPLIT_BYTES else rounded

    def array(self, bytes_per_slice: int) -> MemoryModel:
        """Return the model of an array of n slices."""
        if self.device == "cpu":
            return MemoryModel.linear(0, bytes_per_slice)
        return MemoryModel(lambda n: self.handed_out(n * bytes_per_slice))

    def method(self, model: MemoryModel, slice_bytes: int, total: int) -> MemoryModel:
        """Return a method's model with what pieces of memory have left over.

        How many arrays it holds nobody says. They are taken to be as large as the smaller one of
        its input and output, as many as it needs for a slice more; and one of constant size.

        Parameters
        ----------
        model : MemoryModel
            Its arrays, rounded as CUDA rounds them.
        slice_bytes : int
            A slice of its input or output, whichever is smaller.
        total : int
            Slices that there are.
        """
        if not self.is_torchs or self.device == "cpu":
            return model
        per_slice = -(-(model.bytes(2 * total) - model.bytes(total)) // total)
        n_arrays = max(2, -(-per_slice // slice_bytes))
        spare_bytes = UNSPLIT_BYTES * (n_arrays + 1)

        def spare(n: int) -> int:
            return spare_bytes if model.bytes(n) > UNSPLIT_BYTES else 0

        return model + MemoryModel(spare)
