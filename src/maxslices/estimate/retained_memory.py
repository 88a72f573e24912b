"""Memory that calls leave allocated, in or outside the pool: constants, caches, plans, leaks."""

from __future__ import annotations

from ..core.allocators import CUDA_GRANULE_BYTES
from ..core.memory_model import MemoryModel
from ..core.units import format_bytes
from ..trial.trial import MeasuredCall, Trial

LEAST_BYTES = CUDA_GRANULE_BYTES
"""Fewer bytes than an allocator's granule are not counted as left by a call."""


class RetainedMemory:
    """Memory that stays allocated from call to call, the first of which has been made."""

    def __init__(self, trial: Trial, first: MeasuredCall) -> None:
        self._trial = trial
        self.left_bytes = first.left_bytes
        """Bytes that the first call left allocated for good."""
        self.lost_bytes = 0
        """Bytes that a leak takes in a whole scan."""
        self.accumulates = self.leaks = False
        """`accumulates`: each new number of slices leaves something; `leaks`: every call does."""
        self._kept: dict[int, int] = {}
        self._lost: dict[int, int] = {}
        self._entry = 0, 0

    def judge(self, again: MeasuredCall, more: MeasuredCall | None, other: MeasuredCall) -> None:
        """Decide whether what stays is a constant, a cache or a leak.

        A cache with an entry for each number of slices grows when a new, smaller number is run; a
        workspace kept for the most slices does not. What grows when nothing is new is a leak.

        `again` repeats the slices of the first call, and `other` some that were run before; `more`
        are slices not run before, fewer than others that were, or None if these were not run.
        """
        self.leaks = min(again.left_bytes, other.left_bytes) >= LEAST_BYTES
        if self.leaks:
            self.left_bytes = max(0, self.left_bytes - again.left_bytes)
        elif more is not None:
            self.accumulates = more.left_bytes >= LEAST_BYTES
            # Part of what the first call left is the entry of its own slices, and no constant.
            entry = more.left_bytes * again.n_slices // more.n_slices if self.accumulates else 0
            self._entry = again.n_slices, min(entry, self.left_bytes)
            self.left_bytes -= self._entry[1]

    def enter(self, rung: MeasuredCall) -> int:
        """Enter a call; the bytes in the pool that earlier calls of a run would have left."""
        before_bytes = max(self.left_bytes, rung.before_bytes)
        if self.leaks or self.accumulates:
            fewest, entry_bytes = self._entry
            before_bytes = self.left_bytes + (entry_bytes if rung.n_slices == fewest else 0)
        self._kept[rung.n_slices] = rung.kept_bytes + before_bytes
        if self.leaks:
            self._lost[rung.n_slices] = rung.left_bytes
        return before_bytes

    def kept(self) -> tuple[tuple[int, int], ...]:
        """Points (slices, bytes) of the memory that stays; empty if none does."""
        if all(size < LEAST_BYTES for size in self._kept.values()):
            return ()
        stays = self._trial.stays_bytes + self.lost_bytes
        return tuple((n, size + stays) for n, size in sorted(self._kept.items()))

    def lose(self, model: MemoryModel, available_bytes: int, total_slices: int) -> str:
        """Count what a leak takes in a whole scan, in the largest blocks that fit; a note on it."""
        if not self._lost:
            return ""
        n, a_call = max(self._lost.items())
        by_a_call = MemoryModel.piecewise(list(self._lost.items()))

        def lost(block: int) -> int:
            return by_a_call.bytes(block) * (-(-total_slices // block) - 1)

        block = total_slices
        while block > (fits := model.max_slices(available_bytes - lost(block), block)) > 0:
            block = fits  # smaller blocks are more calls, which lose more
        self.lost_bytes = lost(block if fits else 1)
        return (
            f"each call loses memory ({format_bytes(a_call)} with {n} slices): "
            f"{format_bytes(self.lost_bytes)} are counted for the {total_slices} slices of a scan"
        )
