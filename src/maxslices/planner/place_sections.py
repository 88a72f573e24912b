"""Places of the arrays between sections, and the memory left beside them."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.block_memory import Between, Destination, Origin
from ..estimate.section_model import SectionModel
from .block_size import BlockChoice, wanted_block
from .budgets import Available, Budgets
from .placement import Placement


def available_beside_stores(placements: list[Placement], budgets: Budgets) -> list[Available]:
    """Memory left for each section beside the arrays before and after it."""
    stores = [_stores(placement) for placement in placements]
    available = []
    for number, own in enumerate(stores):
        before = stores[number - 1] if number else (0, 0)
        available.append(Available.beside(budgets, own[0] + before[0], own[1] + before[1]))
    return available


def _stores(placement: Placement) -> tuple[int, int]:
    """Memory of a section's whole output: on the host, on the device."""
    n_bytes = placement.section.output.nbytes
    return (
        n_bytes if placement.destination == "memory" else 0,
        placement.section.allocator.taken_bytes(n_bytes)
        if placement.destination == "device"
        else 0,
    )


@dataclass(slots=True)
class PlacementSearch:
    """Chooses the places of arrays between sections, as near to the device as they fit.

    The places are the device, host memory and a scratch file. The first one is taken with which
    the sections before and after have blocks as large as with a scratch file. On the CPU arrays
    between sections take no more than half of the budget. Several processes have no memory in
    common: all is in scratch files then.
    """

    sections: list[SectionModel]
    """The sections, in order."""
    budgets: Budgets
    """Device and budgets."""
    block: BlockChoice
    """Slices in a block, as the user asks."""
    last: Destination
    """Where the last section's output goes."""
    in_memory: bool
    """Whether blocks of the scan can be used, or copied to the device, from where they lie."""
    result_is_direct: bool
    """Whether the device can copy to the result's place itself."""

    def placements(self) -> list[Placement]:
        """All sections with their origins and destinations."""
        found: list[Placement] = []
        origin: Origin = "scan"
        held = (0, 0)
        for number in range(len(self.sections) - 1):
            destination: Between = "scratch file"
            nearer: tuple[Between, ...] = ("memory",)
            if self.budgets.kind == "cuda":
                nearer = ("device", "memory")
            if self.budgets.n_workers is not None:
                nearer = ()
            for candidate in nearer:
                if self._can_be_held(number, origin, candidate, held):
                    destination = candidate
                    break
            found.append(self._placement(number, origin, destination))
            held = _stores(found[-1])
            origin = destination
        return [*found, self._placement(len(self.sections) - 1, origin, self.last)]

    def _placement(self, number: int, origin: Origin, destination: Destination) -> Placement:
        is_last = number == len(self.sections) - 1
        return Placement(
            self.sections[number],
            origin,
            destination,
            self.budgets.n_threads,
            in_memory=self.in_memory,
            out_in_memory=self.result_is_direct if is_last else destination == "memory",
            n_workers=self.budgets.n_workers or 1,
        )

    def _can_be_held(
        self, number: int, origin: Origin, candidate: Between, held: tuple[int, int]
    ) -> bool:
        """True if a section's output fits there, with blocks as large as without it."""
        own = _stores(self._placement(number, origin, candidate))
        if self.budgets.kind == "cpu" and held[0] + own[0] > self.budgets.host_budget_bytes // 2:
            return False
        last: Destination = "scratch file"
        if number == len(self.sections) - 2:
            last = self.last
        after = _stores(self._placement(number + 1, "scratch file", last))
        return self._as_large(
            self._placement(number, origin, candidate),
            self._placement(number, origin, "scratch file"),
            held,
            own,
        ) and self._as_large(
            self._placement(number + 1, candidate, last),
            self._placement(number + 1, "scratch file", last),
            after,
            own,
        )

    def _as_large(
        self,
        placement: Placement,
        without: Placement,
        beside: tuple[int, int],
        own: tuple[int, int],
    ) -> bool:
        """True if the block beside a store is as large as with a scratch file."""
        wanted = wanted_block(self.block, placement.section, placement.n_workers)
        available = Available.beside(self.budgets, *beside)
        best = available.max_block(available.settled(without))
        available = Available.beside(self.budgets, beside[0] + own[0], beside[1] + own[1])
        return 0 < min(best, wanted) <= available.max_block(available.settled(placement))
