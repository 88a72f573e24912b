"""What a run may use, and how much of it a section finds free."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.allocators import Device
from ..model.units import format_bytes
from .placement import Placement


@dataclass(frozen=True, slots=True)
class Budgets:
    """What a run may use, and on what."""

    device: str
    """"cpu", "cuda" (any card) or "cuda:N"."""
    budget_bytes: int
    """Bytes on the device."""
    host_budget_bytes: int
    """Bytes of host memory; on the CPU the same as the budget."""
    reserved_bytes: int = 0
    """Part of the budget that the framework itself holds on the device."""
    n_threads: int = 1
    """Threads of the host that read and write."""

    @property
    def kind(self) -> Device:
        """Return which allocator is meant."""
        return "cuda" if self.device.startswith("cuda") else "cpu"


@dataclass(frozen=True, slots=True)
class Available:
    """Memory that is left for a section beside the arrays between sections."""

    stores_bytes: int
    """Host memory that these arrays take."""
    stored_bytes: int
    """Memory on the device that they take, where that is not the host."""
    device_bytes: int
    """Bytes on the device."""
    host_bytes: int | None
    """Bytes of host memory; None on the CPU, where they are the same."""

    @classmethod
    def beside(cls, budgets: Budgets, stores_bytes: int, stored_bytes: int = 0) -> Available:
        """Return what is left beside stores of so many bytes on the host, and on the device."""
        if budgets.kind == "cpu":
            return cls(stores_bytes, 0, budgets.budget_bytes - stores_bytes, None)
        on_device = budgets.budget_bytes - budgets.reserved_bytes - stored_bytes
        on_host = budgets.host_budget_bytes - stores_bytes
        return cls(stores_bytes, stored_bytes, on_device, on_host)

    def max_block(self, placement: Placement) -> int:
        """Return the largest block that fits; 0 if there is none."""
        return placement.max_block(self.device_bytes, self.host_bytes)

    def max_part(self, placement: Placement) -> int:
        """Return the largest block that fits and is not all; 0 if there is none."""
        return placement.max_part(self.device_bytes, self.host_bytes)

    def fits(self, placement: Placement, block: int) -> bool:
        """Tell whether a block fits."""
        return placement.fits(block, self.device_bytes, self.host_bytes)

    def settled(self, placement: Placement) -> Placement:
        """Return the placement as it is, or in turns where that pays for what does not overlap.

        Where memory is short and the halo wide, the blocks on their way leave so little for
        the one at work that slices of the halo are most of what is computed. A section in
        turns takes at most twice as long; it is worth it if that saves more.
        """
        extra, in_turns = sum(placement.section.halo), placement.in_turns()
        block, alone = self.max_block(placement), self.max_block(in_turns)
        if block == 0 or (block + extra) * alone > 2 * (alone + extra) * block:
            return in_turns
        return placement

    def bound(self, placement: Placement) -> str:
        """Say which of the two bounds the block, as in "16.0 GB on the device"."""
        if self.host_bytes is None:
            return f"{format_bytes(self.device_bytes)} of memory"
        if self.max_block(placement) < placement.max_block(self.device_bytes, None):
            return f"{format_bytes(self.host_bytes)} of host memory"
        return f"{format_bytes(self.device_bytes)} on the device"
