"""What a section takes beside its methods: the blocks that are on their way to and from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from ..model.allocators import Device
from ..model.memory_model import MemoryModel
from ..system.threads import BUFFER_BYTES, N_THREADS
from .costs import SectionCost

Between = Literal["device", "memory", "scratch file"]
"""Where data are between two sections, the nearest first."""
Origin = Between | Literal["scan"]
Destination = Between | Literal["result", "nothing"]

SLABS = 2
"""Pieces of host memory each way, between a file and the device: one is read into or written
from while the other is copied."""


@dataclass(frozen=True, slots=True)
class Route:
    """A section with the place that its data come from and the one that they go to.

    While a block is worked on, the next one is on its way in, and the result of the last one
    on its way out. Both are on the device; on the CPU the device is the host.
    """

    cost: SectionCost
    """The section."""
    device: Device
    """Where it runs."""
    origin: Origin
    """Where its data are."""
    destination: Destination
    """Where its output goes."""
    in_memory: bool = False
    """Whether blocks of the scan can be used, or copied to the device, from where they are."""
    out_in_memory: bool = False
    """Whether the device can copy to where the output goes, without a slab between."""
    overlaps: bool = True
    """Whether the next block comes, and the last result goes, while one is worked on."""
    _models: dict[bool, MemoryModel] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Peaks on the device, each found when first asked for."""

    @property
    def feeds_itself(self) -> bool:
        """Tell whether a block needs no memory of its own on the CPU, as it is a view."""
        is_array = self.in_memory if self.origin == "scan" else self.origin == "memory"
        return self.device == "cpu" and is_array and self.cost.section.slice_dim == 0

    @property
    def keeps_output(self) -> bool:
        """Tell whether a result is alive while the next block is worked on."""
        return self.destination not in ("device", "nothing") or self.cost.steps[-1].step.save_result

    def device_bytes(self, block: int) -> int:
        """Return the peak on the device with blocks of this size."""
        model = self._model(self._alone(block))
        return max(model.bytes(block), self.cost.peek_bytes)

    def host_bytes(self, block: int) -> int:
        """Return the host memory through which blocks go to another device and come back."""
        return self._staged(self._alone(block)).bytes(block)

    def max_block(self, device_bytes: int, host_bytes: int | None) -> int:
        """Return the largest block that fits; 0 if there is none.

        Parameters
        ----------
        device_bytes : int
            Available on the device.
        host_bytes : int or None
            Available on the host, where that is not the device.
        """
        total = self.cost.n_slices
        if self.fits(total, device_bytes, host_bytes):
            return total
        return self.max_part(device_bytes, host_bytes)

    def max_part(self, device_bytes: int, host_bytes: int | None) -> int:
        """Return the largest block that fits and is not all; 0 if there is none.

        It may be smaller by far where all fit: only a block of all has none on its way beside it.
        """
        if self.cost.peek_bytes > device_bytes:
            return 0
        is_alone = not self.overlaps
        block = self._model(is_alone).max_slices(device_bytes, self.cost.n_slices - 1)
        if host_bytes is not None:
            block = self._staged(is_alone).max_slices(host_bytes, block)
        return block

    def fits(self, block: int, device_bytes: int, host_bytes: int | None) -> bool:
        """Tell whether a block fits."""
        if self.device_bytes(block) > device_bytes:
            return False
        return host_bytes is None or self.host_bytes(block) <= host_bytes

    def _alone(self, block: int) -> bool:
        """Tell whether a block is the only one that is on its way."""
        return not self.overlaps or block >= self.cost.n_slices

    def in_turns(self) -> Route:
        """Return this route with one block on its way at a time, which takes less memory."""
        return replace(self, overlaps=False)

    def _model(self, is_alone: bool) -> MemoryModel:
        """Return the peak on the device, with other blocks on their way or without."""
        if is_alone not in self._models:
            self._models[is_alone] = MemoryModel(cache(self._peak(is_alone).bytes))
        return self._models[is_alone]

    def _peak(self, is_alone: bool) -> MemoryModel:
        cost, own = self.cost, self.cost.input_block
        resident = MemoryModel.linear(0, 0)
        if self.origin != "device" and not self.feeds_itself:
            resident = own  # the place that blocks are copied to stays, whatever methods do
        models = [
            cost.model if number == 0 else cost.model + resident
            for number, cost in enumerate(c for c in self.cost.steps if not c.looked_at)
        ]
        models.append(own)
        models += [cost.block_of(output) + resident for output in cost.kept]
        if self.destination not in ("result", "nothing"):
            models.append(cost.block_of(cost.output) + resident)
        peak = MemoryModel.maximum(models) + cost.side
        if not is_alone:
            peak = peak + resident
            if self.keeps_output:
                peak = peak + cost.block_of(cost.output)
        if self.device == "cpu":
            peak = peak + self._moved()
        return peak.plus(cost.own_bytes)

    def _moved(self) -> MemoryModel:
        """Return what the threads hold that read and write: at most a buffer each.

        A block of projections needs none, as it lies in a file as it does in memory.
        """
        model = MemoryModel.linear(0, 0)
        if self.cost.section.slice_dim == 0:
            return model
        if self.origin == "scan" and not self.in_memory:
            model = model + self.cost.input_block.at_most(N_THREADS * BUFFER_BYTES)
        if self.destination in ("result", "scratch file"):
            out = self.cost.block_of(self.cost.output)
            model = model + out.at_most(N_THREADS * BUFFER_BYTES)
        return model

    def _staged(self, is_alone: bool) -> MemoryModel:
        cost, slabs = self.cost, 1 if is_alone else SLABS
        sides = cost.side + cost.host_side
        sides = sides + sides.at_most(STAGED_BYTES)
        total = sides + cost.on_host
        reads = self.origin == "scratch file" or (self.origin == "scan" and not self.in_memory)
        if reads:
            total = total + _times(cost.host_block_of(cost.input), slabs)
        writes = list(cost.kept)
        if self.destination in ("scratch file", "memory") and not self.out_in_memory:
            writes.append(cost.output)
        for output in writes:
            one_slice = output.with_slices(cost.section.slice_dim, 1).nbytes
            total = total + _times(cost.host_block_of(output), slabs).plus(one_slice)
        looked = max((each.looked_at for each in cost.steps), default=0)
        if looked and self.origin != "device":  # before the first block, and without slabs
            ahead = cost.host_block_of(cost.input).bytes(looked)
            total = MemoryModel.maximum([total, sides.plus(ahead + min(ahead, STAGED_BYTES))])
        return total.plus(HOST_BYTES + 2 * N_THREADS * BUFFER_BYTES)


STAGED_BYTES = 2**25
"""Pinned memory through which large arrays go to a GPU that are not blocks."""
HOST_BYTES = 2**19
"""What Python itself takes on the host during a section: file handles, small arrays."""


def _times(model: MemoryModel, factor: int) -> MemoryModel:
    return MemoryModel(lambda n: factor * model.bytes(n))
