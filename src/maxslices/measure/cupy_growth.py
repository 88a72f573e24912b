"""Growth of what CuPy's memory pool has in use, read after each allocation.

CuPy's hooks take 10 us for an allocation and its return, a cost that shows in a method of thousands
of small steps: with hooks httomo's pipeline with its result in pinned memory takes 21 % longer
(H200, 2026-11-22). The pool's own count needs no hooks, and it rises by allocations alone.
"""

from __future__ import annotations

from .cupy_hook import shared_hook
from .cupy_pool import CupyMeter


class GrowthMeter(CupyMeter):
    """A `CupyMeter` without hooks, in all threads.

    Memory from before that is freed meanwhile lowers the figure by as much. Where torch allocates
    too, the figure for both at one time is the sum of their peaks, an upper bound.
    """

    with_hooks = False

    def after_allocation(self, device_id: int) -> None:
        """Compare the pool with what was read before, if it is this device's."""
        if device_id != self.device_id:
            return
        in_use = int(self.pool.used_bytes()) - self.used_before
        if in_use > self.highest or int(self.pool.total_bytes()) != self._held:
            with shared_hook.lock:
                self.highest = max(self.highest, in_use)
                self.compare()

    def compare(self) -> None:
        """Update the maximum in use, and what the pool took from the driver."""
        held = int(self.pool.total_bytes())
        if held > self._held:
            self.pool_grew(len(self._chunks), held - self._held)
        elif held < self._held:
            self._forget_given_back(held)
            self._held = held
        self.highest = max(self.highest, int(self.pool.used_bytes()) - self.used_before)

    def allocated(self, pointer: int, n_bytes: int, requested_bytes: int) -> None:
        """Read the pool, where hooks are set all the same."""
        self.after_allocation(self.device_id)

    def freed(self, pointer: int, n_bytes: int) -> None:
        """Do nothing: what is in use rises by allocations alone."""

    def _forget_given_back(self, held_bytes: int) -> None:
        """Forget chunks as far as the pool holds less; which they were is not known: the oldest."""
        sizes = list(self._chunks.values())
        while sizes and sum(sizes) > held_bytes - self.held_before:
            del sizes[0]
        self._chunks = dict(enumerate(sizes))

    def end(self, complaint: str | None) -> None:
        """Fill in the figures."""
        super().end(complaint)
        self.with_torch_bytes += self.highest
