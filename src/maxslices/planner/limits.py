"""What a run may use, and how much of it a section finds free."""

from __future__ import annotations

from dataclasses import dataclass

from ..ledger import Device
from ..units import format_bytes
from .costs import SectionCost


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may use, and on what."""

    device: str
    """"cpu", "cuda" (any card) or "cuda:N"."""
    budget_bytes: int
    """Bytes on the device."""
    host_budget_bytes: int
    """Bytes of host memory; on the CPU the same as the budget."""
    reserved_bytes: int = 0
    """Part of the budget that the framework itself holds on the device."""

    @property
    def kind(self) -> Device:
        """Return which allocator is meant."""
        return "cuda" if self.device.startswith("cuda") else "cpu"


@dataclass(frozen=True, slots=True)
class Room:
    """Memory that is left for a section beside the arrays between sections."""

    stores_bytes: int
    """Host memory that these arrays take."""
    device_bytes: int
    """Bytes on the device."""
    host_bytes: int | None
    """Bytes of host memory; None on the CPU, where they are the same."""

    @classmethod
    def beside(cls, limits: Limits, stores_bytes: int) -> Room:
        """Return what is left beside stores of this many bytes in host memory."""
        if limits.kind == "cpu":
            return cls(stores_bytes, limits.budget_bytes - stores_bytes, None)
        on_device = limits.budget_bytes - limits.reserved_bytes
        return cls(stores_bytes, on_device, limits.host_budget_bytes - stores_bytes)

    def max_block(self, cost: SectionCost) -> int:
        """Return the largest block that fits; 0 if there is none."""
        if cost.peek_bytes > self.device_bytes:
            return 0
        block = cost.device.max_slices(self.device_bytes, cost.n_slices)
        if self.host_bytes is not None:
            block = cost.staged.max_slices(self.host_bytes, block)
        return block

    def bound(self, cost: SectionCost) -> str:
        """Say which of the two bounds the block, as in "16.0 GB on the device"."""
        if self.host_bytes is None:
            return f"{format_bytes(self.device_bytes)} of memory"
        on_device = cost.device.max_slices(self.device_bytes, cost.n_slices)
        if cost.staged.max_slices(self.host_bytes, on_device) < on_device:
            return f"{format_bytes(self.host_bytes)} of host memory"
        return f"{format_bytes(self.device_bytes)} on the device"
