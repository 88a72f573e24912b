"""Memory in use and held by CuPy's pool, counted by memory hooks.

The pool's own count of bytes in use, which covers all threads, is compared with the hooks' count
at every new peak and every millisecond. A larger count of the pool is reported: it was allocated
in a thread without a hook.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from .cupy_hook import PoolListener, shared_hook
from .peak import OutsideReading

GRAIN_BYTES = 2 * 2**20
"""Granule of a GPU's driver. CuPy's pool counts its requests without this rounding, and smaller
requests share a granule."""

_COMPARE_S = 1e-3
"""Least time between two comparisons without a new peak. In a comparison the pool sums all blocks
in use, which is too slow for every allocation."""


class CupyMeter(PoolListener):
    """Bytes that CuPy's pool hands out and holds, on the current device, in all threads."""

    def __init__(self) -> None:
        super().__init__()
        # These figures stay 0 if torch's allocator serves CuPy and counts its memory.
        self.highest_held = self.held_before = 0
        self.highest = self.highest_growth = self.used_before = self.earlier_freed_bytes = 0
        self.held_after = 0
        self._chunks: dict[int, int] = {}
        self._n_events = 0
        self._readings: dict[tuple[int, int], int] = {}
        self.read_device: Callable[[], int] | None = None
        """Reads the bytes in use on the device."""
        self._grew = False

    # Called by the shared hook: see `PoolListener`.

    def begin(self, pool: Any, device: Any) -> None:
        """Read the memory alive before the block."""
        super().begin(pool, device)
        self.pool, self.device = pool, device
        self.used_before = int(pool.used_bytes())
        self.own: dict[int, int] = {}
        self.own_bytes = self.highest = self.unaccounted = self.freed_before_bytes = 0
        self.highest_growth = 0
        self._compared_s = 0.0
        self.held_before = self.highest_held = self._held = int(pool.total_bytes())

    def allocated(self, pointer: int, n_bytes: int, requested_bytes: int) -> None:
        """Count an allocation of this device's pool."""
        self.own_bytes += n_bytes - self.own.pop(pointer, 0)
        self.own[pointer] = n_bytes
        self._n_events += 1
        if self.own_bytes > self.highest or time.perf_counter() > self._compared_s + _COMPARE_S:
            self.compare()

    def after_allocation(self, device_id: int) -> None:
        """Read the device if the pool grew, because other memory may be freed before a sample."""
        if self._grew and device_id == self.device_id and self.read_device is not None:
            self._grew = False
            self.sample_with(self.read_device)

    def freed(self, pointer: int, n_bytes: int) -> None:
        """Count a return to the pool. Memory from before the block is counted separately."""
        own = self.own.pop(pointer, None)
        if own is None:
            self.freed_before_bytes += n_bytes
            return
        self.own_bytes -= own
        self._n_events += 1

    def pool_grew(self, pointer: int, n_bytes: int) -> None:
        """Count an allocation of the pool from the driver."""
        self._grew = True
        held = int(self.pool.total_bytes())
        if held < self._held + n_bytes:
            self._forget_given_back(held - n_bytes)
        self._chunks[pointer] = n_bytes
        self._held = held
        self.highest_held = max(self.highest_held, held)

    def _forget_given_back(self, held_bytes: int) -> None:
        """Forget chunks that the pool returned to the driver: those without live allocations."""
        alive = sorted(self.own)

        def has_any(start: int, n_bytes: int) -> bool:
            i = bisect_left(alive, start)
            return i < len(alive) and alive[i] < start + n_bytes

        self._chunks = {start: n for start, n in self._chunks.items() if has_any(start, n)}

    @property
    def rounding_bytes(self) -> int:
        """Bytes that the driver added to the pool's chunks, of which small ones share a granule."""
        large = sum(-n % GRAIN_BYTES for n in self._chunks.values() if n >= GRAIN_BYTES)
        return large + -sum(n for n in self._chunks.values() if n < GRAIN_BYTES) % GRAIN_BYTES

    def compare(self) -> None:
        """Compare the pool's count with the hooks', and update the maximum by the larger.

        Both agree unless a thread has no hook. For memory freed in such a thread the hooks' count
        is too high, and for memory allocated there too low. The larger count is never too low.
        """
        self._compared_s = time.perf_counter()
        self.highest_held = max(self.highest_held, int(self.pool.total_bytes()))
        in_use = int(self.pool.used_bytes()) - self.used_before + self.freed_before_bytes
        if not shared_hook.in_flight_bytes:
            self.unaccounted = max(self.unaccounted, in_use - self.own_bytes)
            most = max(in_use, self.own_bytes)
        else:
            most = self.own_bytes
        self.highest = max(self.highest, most)
        self.highest_growth = max(self.highest_growth, most - self.freed_before_bytes)

    def sample_with(self, read: Callable[[], int]) -> None:
        """Read the pool and the device at one moment, from the sampling thread.

        This includes allocations of threads without a hook.
        """
        with shared_hook.lock:
            if self not in shared_hook.meters:
                read()
                return
            with self.device:
                self.compare()
                held = int(self.pool.total_bytes())
                used = read()
                # Memory returned by the pool reaches the driver before the pool's count falls.
                held = max(held, int(self.pool.total_bytes()))
                if held < self._held:
                    self._forget_given_back(held)
                    self._held = held
            if (
                not shared_hook.in_flight_bytes
            ):  # otherwise memory from the driver may not be counted
                beyond = used - (held - self.held_before) - self.rounding_bytes
                moment = self._n_events, held
                self._readings[moment] = max(beyond, self._readings.get(moment, beyond))

    def outside_readings(self, device_before_bytes: int) -> tuple[OutsideReading, ...]:
        """Readings of the device outside the pool, once `highest` is known."""
        return tuple(
            OutsideReading(
                n, min(held - self.used_before, self.highest), beyond - device_before_bytes
            )
            for (n, held), beyond in self._readings.items()
        )

    def end(self, complaint: str | None) -> None:
        """Fill in the figures."""
        self.compare()
        self.held_after = int(self.pool.total_bytes())
        self.in_use_bytes = self.highest
        self.earlier_freed_bytes = min(self.freed_before_bytes, self.highest - self.highest_growth)
        self.held_bytes = max(self.highest, self.highest_held - self.used_before)
        super().end(complaint)
        if self.unaccounted > 0:
            self.unseen.append(
                f"{self.unaccounted:,} bytes of CuPy's pool were allocated where the memory hooks "
                "do not reach, such as in a thread with its own allocator"
            )


class GrowthMeter(CupyMeter):
    """A `CupyMeter` without hooks: reads the pool's bytes in use after each allocation.

    CuPy's hooks take 10 us for an allocation and its return, which slows down methods with
    thousands of small steps: with hooks, httomo's pipeline with its result in pinned memory takes
    21 % longer (H200, 2026-11-22). Only allocations raise the pool's own count.

    Earlier memory that is freed during the block lowers the figure.
    """

    with_hooks = False

    def after_allocation(self, device_id: int) -> None:
        """Compare the pool with the last reading, for an allocation on this device."""
        if device_id != self.device_id:
            return
        in_use = int(self.pool.used_bytes()) - self.used_before
        if in_use > self.highest or int(self.pool.total_bytes()) != self._held:
            with shared_hook.lock:
                self.highest = max(self.highest, in_use)
                self.compare()

    def compare(self) -> None:
        """Update the maximum in use, and the chunks from the driver."""
        held = int(self.pool.total_bytes())
        if held > self._held:
            self.pool_grew(len(self._chunks), held - self._held)
        elif held < self._held:
            self._forget_given_back(held)
            self._held = held
        self.highest = max(self.highest, int(self.pool.used_bytes()) - self.used_before)

    def allocated(self, pointer: int, n_bytes: int, requested_bytes: int) -> None:
        """Read the pool, if another meter has set hooks."""
        self.after_allocation(self.device_id)

    def freed(self, pointer: int, n_bytes: int) -> None:
        """Do nothing, because only allocations raise the bytes in use."""

    def _forget_given_back(self, held_bytes: int) -> None:
        """Remove chunks until their sum is the pool's: the oldest, as it is unknown which."""
        sizes = list(self._chunks.values())
        while sizes and sum(sizes) > held_bytes - self.held_before:
            del sizes[0]
        self._chunks = dict(enumerate(sizes))
