"""What CuPy's memory pool has in use more than before, looked at after each allocation.

CuPy's hooks take 10 us for an allocation and its return, which a method that makes thousands of
small steps waits for. The pool knows what it has in use, and that rises by allocations alone.
"""

from __future__ import annotations

from .cupy_hook import tracker
from .cupy_pool import CupyMeter


class GrowthMeter(CupyMeter):
    """A `CupyMeter` without hooks, in all threads.

    Memory from before that is freed meanwhile makes room for as much. Where torch has memory
    too, the most that both had at one time is given as the sum of their peaks.
    """

    with_hooks = False

    def look(self, number: int) -> None:
        """Compare with what was found before, if it is the pool of this device."""
        if number != self.device_id:
            return
        in_use = int(self.pool.used_bytes()) - self.used_before
        if in_use > self.highest or int(self.pool.total_bytes()) != self._held:
            with tracker.lock:
                self.highest = max(self.highest, in_use)
                self.compare()

    def compare(self) -> None:
        """Remember the most that is in use, and what the pool took from the driver for it."""
        held = int(self.pool.total_bytes())
        if held != self._held:
            self.taken(max(0, held - self._held))
        self.highest = max(self.highest, int(self.pool.used_bytes()) - self.used_before)

    def allocated(self, pointer: int, n_bytes: int) -> None:
        """Look, where hooks are there all the same."""
        self.look(self.device_id)

    def freed(self, pointer: int, n_bytes: int) -> None:
        """Do nothing."""

    def end(self, complaint: str | None) -> None:
        """Fill in the figures."""
        super().end(complaint)
        self.with_torch_bytes += self.highest
