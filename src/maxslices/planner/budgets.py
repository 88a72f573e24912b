"""Memory and threads that a run may use, and what of it is left for a section."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..core.allocators import Device
from ..core.units import format_bytes
from .placement import Placement


@dataclass(frozen=True, slots=True)
class Budgets:
    """Device of a run, with the memory and threads that it may use."""

    device: str
    """"cpu", "cuda" (any card) or "cuda:N"."""
    budget_bytes: int
    """Bytes on the device."""
    host_budget_bytes: int
    """Bytes of host memory; on the CPU the same as the budget."""
    reserved_bytes: int = 0
    """Part of the budget on the device that the framework itself holds."""
    n_threads: int = 1
    """Threads of the host that read and write."""
    n_workers: int | None = None
    """Processes that run blocks, on all machines: what they share between sections is in files.
    None if this one does, which keeps it in memory where it can."""
    shares_memory: bool = True
    """Whether all processes are on this machine, so that files in its memory are for all."""

    @property
    def kind(self) -> Device:
        """Kind of device, without its number."""
        return "cuda" if self.device.startswith("cuda") else "cpu"

    def of_each(self, n_workers: int, *, is_given: bool) -> Budgets:
        """Budgets of each of several processes on a machine, which share what the host has.

        Parameters
        ----------
        n_workers : int
            Number of the processes.
        is_given : bool
            Whether the budget on the device is that of each as it stands.
        """
        on_device, on_host = self.budget_bytes, self.host_budget_bytes // n_workers
        if self.kind == "cpu":
            on_device = on_host = on_device if is_given else on_host
        return replace(self, budget_bytes=on_device, host_budget_bytes=on_host, n_workers=n_workers)

    def without(self, n_bytes: int) -> Budgets:
        """Budgets less `n_bytes`, on the device and on the host."""
        return replace(
            self,
            budget_bytes=self.budget_bytes - n_bytes,
            host_budget_bytes=self.host_budget_bytes - n_bytes,
        )


@dataclass(frozen=True, slots=True)
class Available:
    """Memory left for a section beside the arrays between sections."""

    stores_bytes: int
    """Host memory of these arrays."""
    stored_bytes: int
    """Memory of these arrays on a device other than the host."""
    device_bytes: int
    """Bytes left on the device."""
    host_bytes: int | None
    """Bytes left on the host; None on the CPU, where the device is the host."""

    @classmethod
    def beside(cls, budgets: Budgets, stores_bytes: int, stored_bytes: int = 0) -> Available:
        """Memory left beside `stores_bytes` on the host and `stored_bytes` on the device."""
        if budgets.kind == "cpu":
            return cls(stores_bytes, 0, budgets.budget_bytes - stores_bytes, None)
        on_device = budgets.budget_bytes - budgets.reserved_bytes - stored_bytes
        on_host = budgets.host_budget_bytes - stores_bytes
        return cls(stores_bytes, stored_bytes, on_device, on_host)

    def max_block(self, placement: Placement) -> int:
        """Largest block that fits; 0 if there is none."""
        return placement.max_block(self.device_bytes, self.host_bytes)

    def max_part(self, placement: Placement) -> int:
        """Largest block that fits and leaves slices for another one; 0 if there is none."""
        return placement.max_part(self.device_bytes, self.host_bytes)

    def fits(self, placement: Placement, block: int) -> bool:
        """True if a block fits."""
        return placement.fits(block, self.device_bytes, self.host_bytes)

    def settled(self, placement: Placement) -> Placement:
        """Placement with one block on its way at a time if that saves more than it costs.

        If memory is short and the halo wide, the next block and the last result leave so little
        memory that most slices computed are those of the halo. With one block at a time a section
        takes at most twice as long, so it has to save half of the slices.
        """
        extra, in_turns = sum(placement.section.halo), placement.in_turns()
        block, alone = self.max_block(placement), self.max_block(in_turns)
        if block == 0 or (block + extra) * alone > 2 * (alone + extra) * block:
            return in_turns
        return placement

    def bound(self, placement: Placement) -> str:
        """Memory that bounds the block, in words such as "16.0 GB on the device"."""
        if self.host_bytes is None:
            return f"{format_bytes(self.device_bytes)} of memory"
        if self.max_block(placement) < placement.max_block(self.device_bytes, None):
            return f"{format_bytes(self.host_bytes)} of host memory"
        return f"{format_bytes(self.device_bytes)} on the device"
