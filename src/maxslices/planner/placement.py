"""Budgets, and the memory of a section for a given origin and destination of its data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

from ..core import block_memory
from ..core.allocators import Device
from ..core.block_memory import Destination, InputWay, Origin, OutputWay
from ..core.memory_model import MemoryModel
from ..core.units import format_bytes
from .section_model import SectionModel


@dataclass(frozen=True, slots=True)
class Budgets:
    """Device of a run, and the memory and threads that it may use."""

    device: str
    """"cpu", "cuda" (any card) or "cuda:N"."""
    budget_bytes: int
    """Bytes on the device."""
    host_budget_bytes: int
    """Bytes of host memory. On the CPU it equals the budget."""
    reserved_bytes: int = 0
    """Part of the budget on the device that CUDA's context and libraries take."""
    n_threads: int = 1
    """Threads of the host that read and write."""
    n_workers: int | None = None
    """Number of processes that run blocks, on all machines. They share data between sections in
    files. None if this process runs them, which keeps the data in memory if possible."""
    shares_memory: bool = True
    """Whether all processes are on this machine and can share files in its memory."""

    @property
    def kind(self) -> Device:
        """Kind of device, without its number."""
        return "cuda" if self.device.startswith("cuda") else "cpu"

    def of_each(self, n_workers: int, *, is_given: bool) -> Budgets:
        """Budgets of each of several processes that share the memory of a machine.

        Parameters
        ----------
        n_workers : int
            Number of the processes.
        is_given : bool
            Whether the user set the budget on the device, which is then the one of each process.
        """
        on_device, on_host = self.budget_bytes, self.host_budget_bytes // n_workers
        if self.kind == "cpu":
            on_device = on_host = on_device if is_given else on_host
        return replace(self, budget_bytes=on_device, host_budget_bytes=on_host, n_workers=n_workers)


@dataclass(frozen=True, slots=True)
class Available:
    """Memory left for a section after the arrays between sections."""

    stores_bytes: int
    """Host memory of these arrays."""
    stored_bytes: int
    """Memory of these arrays on a device other than the host."""
    device_bytes: int
    """Bytes left on the device."""
    host_bytes: int | None
    """Bytes left on the host; None on the CPU, where the device is the host."""

    @classmethod
    def after_stores(cls, budgets: Budgets, stores_bytes: int, stored_bytes: int = 0) -> Available:
        """Memory left after `stores_bytes` on the host and `stored_bytes` on the device."""
        if budgets.kind == "cpu":
            return cls(stores_bytes, 0, budgets.budget_bytes - stores_bytes, None)
        on_device = budgets.budget_bytes - budgets.reserved_bytes - stored_bytes
        on_host = budgets.host_budget_bytes - stores_bytes
        return cls(stores_bytes, stored_bytes, on_device, on_host)


@dataclass(frozen=True, slots=True)
class Placement:
    """A section, where its data are and where its output goes.

    `maxslices.core.block_memory` defines the sizes of buffers and staging. This class sums them for
    blocks of n slices.
    """

    section: SectionModel
    """The section."""
    origin: Origin
    """Origin of its data."""
    destination: Destination
    """Destination of its output."""
    n_threads: int
    """Threads of the host that read and write."""
    in_memory: bool = False
    """Whether blocks of the scan can be used, or copied to the device, in place."""
    out_in_memory: bool = False
    """Whether the device can copy to where the output goes, without staging."""
    n_workers: int = 1
    """Processes that run its blocks."""
    overlaps: bool = True
    """Whether the next block comes, and the last result leaves, while a block is worked on."""
    _models: dict[bool, MemoryModel] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Cached peaks on the device: with a single block or with several."""

    @property
    def device(self) -> Device:
        """Where the section runs."""
        return self.section.device

    @property
    def input_way(self) -> InputWay:
        """How blocks reach the methods."""
        slice_dim = self.section.slice_dim
        return block_memory.input_way(self.device, self.origin, slice_dim, in_memory=self.in_memory)

    @property
    def output_way(self) -> OutputWay:
        """How the section's output leaves the methods."""
        return block_memory.output_way(self.device, self.destination, in_memory=self.out_in_memory)

    @property
    def keeps_output(self) -> bool:
        """True if a result is in memory while the next block is processed."""
        is_saved = self.section.steps[-1].saves_result
        return self.output_way not in ("on the device", "dropped") or is_saved

    def device_bytes(self, block: int) -> int:
        """Peak on the device with blocks of `block` slices."""
        return max(self._model(self._is_alone(block)).bytes(block), self._look_ahead_bytes())

    def host_bytes(self, block: int) -> int:
        """Host memory for staging and side data, next to another device."""
        return self._staging(self._is_alone(block)).bytes(block)

    def max_block(self, available: Available) -> int:
        """Largest block that fits, or 0."""
        total = self.section.n_slices
        return total if self.fits(total, available) else self.max_part(available)

    def max_part(self, available: Available) -> int:
        """Largest block that fits and leaves slices for another one, or 0.

        It may be far smaller than all slices even if these fit. With one block, nothing is
        prefetched. With several, the next block and the last result are in memory as well.
        """
        if self._look_ahead_bytes() > available.device_bytes:
            return 0
        is_alone, most = not self.overlaps, self.section.n_slices - 1
        block = self._model(is_alone).max_slices(available.device_bytes, most)
        if available.host_bytes is not None:
            block = self._staging(is_alone).max_slices(available.host_bytes, block)
        return block

    def fits(self, block: int, available: Available) -> bool:
        """True if a block fits."""
        if self.device_bytes(block) > available.device_bytes:
            return False
        return available.host_bytes is None or self.host_bytes(block) <= available.host_bytes

    def bound(self, available: Available) -> str:
        """Memory that limits the block, in words such as "16.0 GB on the device"."""
        if available.host_bytes is None:
            return f"{format_bytes(available.device_bytes)} of memory"
        if self.max_block(available) < self.max_block(replace(available, host_bytes=None)):
            return f"{format_bytes(available.host_bytes)} of host memory"
        return f"{format_bytes(available.device_bytes)} on the device"

    def with_best_overlap(self, available: Available) -> Placement:
        """Placement with one block at a time if this saves more time than it costs.

        If memory is short and the halo wide, the next block and the last result may leave so little
        memory that most computed slices belong to the halo. Processing one block at a time takes at
        most twice as long, so it must save half of the slices.
        """
        extra, in_turns = sum(self.section.halo), self.in_turns()
        block, alone = self.max_block(available), in_turns.max_block(available)
        if block == 0 or (block + extra) * alone > 2 * (alone + extra) * block:
            return in_turns
        return self

    def in_turns(self) -> Placement:
        """Copy of the placement with one block at a time, which takes less memory."""
        return replace(self, overlaps=False)

    def _is_alone(self, block: int) -> bool:
        return not self.overlaps or block >= self.section.n_slices

    def _look_ahead_bytes(self) -> int:
        """Peak on the device while side results are computed before the first block."""
        n_bytes = self.section.look_ahead_bytes
        return n_bytes + self._python_bytes() if n_bytes else 0

    def _python_bytes(self) -> int:
        return block_memory.PYTHON_BYTES if self.device == "cpu" else 0

    def _model(self, is_alone: bool) -> MemoryModel:
        """Peak on the device, with a single block or with several."""
        if is_alone not in self._models:
            self._models[is_alone] = MemoryModel(cache(self._peak(is_alone).bytes))
        return self._models[is_alone]

    def _peak(self, is_alone: bool) -> MemoryModel:
        """Peak on the device: the maximum of methods and copies, plus all other memory in use."""
        section, block = self.section, self.section.input_block
        n_buffers = block_memory.input_buffers(
            self.input_way, 0, overlaps=not is_alone, n_blocks=1 if is_alone else 2
        ).count
        # The input buffer stays while methods run. The model of the first method includes it.
        own = _times(block, min(n_buffers, 1))
        models = [
            step.memory if number == 0 else step.memory + own
            for number, step in enumerate(s for s in section.steps if not s.n_sampled)
        ]
        models.append(block)
        models += [section.block_of(output) + own for output in section.saved]
        if self.output_way != "dropped" and self.destination != "result":
            models.append(section.block_of(section.output) + own)
        peak = MemoryModel.maximum(models) + section.side
        peak = peak + _times(block, max(0, n_buffers - 1))  # the next block
        if not is_alone and self.keeps_output:
            peak = peak + section.block_of(section.output)  # the last result
        if self.device == "cpu":
            peak = peak + self._thread_buffers()
        return peak.plus(self._python_bytes())

    def _staging(self, is_alone: bool) -> MemoryModel:
        """Host memory of a run on another device."""
        section = self.section
        side = section.side + _upload_staging(section.side)
        total = side + self._thread_buffers()
        own = section.host_block_of(section.input)
        read = block_memory.read_staging(
            self.input_way, 0, overlaps=not is_alone, n_blocks=1 if is_alone else 2
        )
        total = total + _times(own, read.count)
        staged = {section.slice_bytes(output) for output in section.saved}
        if self.output_way == "staged":
            staged.add(section.slice_bytes(section.output))
        for slice_bytes in staged:
            total = total + _result_staging(
                slice_bytes, overlaps=not is_alone, is_shared=self.n_workers > 1
            )
        n_sampled = section.most_sampled
        if n_sampled and self.origin != "device":  # before the first block, without staging
            ahead = own.bytes(n_sampled)
            ahead += block_memory.upload_staging(ahead).total_bytes
            total = MemoryModel.maximum([total, side.plus(ahead)])
        return total.plus(block_memory.PYTHON_BYTES)

    def _thread_buffers(self) -> MemoryModel:
        """Buffers of threads that read a scan or write files. Reading scratch files needs none."""
        section, model = self.section, MemoryModel.linear(0, 0)
        moved = []
        if self.origin == "scan" and not self.in_memory:
            moved.append(section.host_block_of(section.input))
        if self.destination in ("result", "scratch file"):
            moved.append(section.host_block_of(section.output))
        for block in moved:
            model = model + _thread_buffers(section.slice_dim, block, self.n_threads)
        return model


def _times(model: MemoryModel, factor: int) -> MemoryModel:
    return MemoryModel(lambda n: factor * model.bytes(n))


def _upload_staging(frames: MemoryModel) -> MemoryModel:
    return MemoryModel(lambda n: block_memory.upload_staging(frames.bytes(n)).total_bytes)


def _result_staging(slice_bytes: int, *, overlaps: bool, is_shared: bool) -> MemoryModel:
    # It is unknown before the run whether a whole result must leave at once, so assume it.
    return MemoryModel(
        lambda n: (
            block_memory.result_staging(
                n, slice_bytes, overlaps=overlaps, is_shared=is_shared
            ).most.total_bytes
        )
    )


def _thread_buffers(slice_dim: int, block: MemoryModel, n_threads: int) -> MemoryModel:
    return MemoryModel(
        lambda n: block_memory.thread_buffer_bytes(slice_dim, block.bytes(n), n_threads)
    )
