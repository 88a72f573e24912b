"""What CuPy's memory pool hands out and holds, by memory hooks.

The pool's own count of bytes in use, which knows no threads, is held against the hooks' account
at every new peak and every millisecond; what it has beyond that account was allocated unseen, and
is reported.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from .cupy_hook import tracker
from .peak import Alive, Place, Step
from .source_lines import current_place, describe_array, is_library
from .torch_cuda_memory import TorchMeter

GRAIN_BYTES = 2 * 2**20
"""Steps in which a GPU's driver hands out memory: to the pool too, which counts what it asked
for; small blocks share a step."""


_COMPARE_S = 1e-3
"""Time between comparisons where there is no new peak: the pool adds up all that is in use."""


class _Event:
    """One allocation or one return to the pool, while places are recorded."""

    __slots__ = ("change_bytes", "pointer", "time_s", "what", "where")

    def __init__(self, pointer: int, change_bytes: int, where: Place, what: str) -> None:
        self.time_s = time.perf_counter()
        self.pointer, self.change_bytes, self.where, self.what = pointer, change_bytes, where, what


class CupyMeter:
    """Bytes that CuPy's pool hands out and holds, on the current device, in all threads."""

    with_hooks = True

    def __init__(self, trace: bool = False, torch: TorchMeter | None = None) -> None:
        self.trace = trace
        self.torch = torch
        # Where torch counts what CuPy allocates, these figures stay what they are here.
        self.with_torch_bytes = self.highest_held = self.held_before = 0
        self.highest = self.used_before = 0
        self.in_use_bytes: int | None = None
        self.held_bytes: int | None = None
        self.unseen: list[str] = []
        self.events: list[_Event] = []
        self.peak_event = 0
        self.began = 0.0
        self.rounding_bytes = self._small_bytes = self.held_after = 0
        self._moments: dict[int, int] = {}

    def start(self) -> None:
        """Begin to count."""
        tracker.add(self)

    def stop(self) -> None:
        """End; the figures and `unseen` are filled in."""
        tracker.remove(self)

    # What follows is called by the tracker, under its lock.

    def begin(self, pool: Any, device: Any) -> None:
        """Note what is alive before."""
        self.pool, self.device, self.device_id = pool, device, int(device.id)
        self.began = time.perf_counter()
        self.used_before = int(pool.used_bytes())
        self.own: dict[int, int] = {}
        self.own_bytes = self.highest = self.unaccounted = self.freed_before_bytes = 0
        self._compared_s = 0.0
        self.live: dict[int, _Event] = {}
        self.held_before = self.highest_held = self._held = int(pool.total_bytes())

    def allocated(self, pointer: int, n_bytes: int) -> None:
        """Count an allocation of this device's pool."""
        self._compare_with_torch()
        self.own_bytes += n_bytes - self.own.pop(pointer, 0)
        self.own[pointer] = n_bytes
        if self.trace:
            frame = sys._getframe(1)
            self._name_arrays(frame)
            self.live[pointer] = _Event(pointer, n_bytes, current_place(frame), "")
            self.events.append(self.live[pointer])
        if self.own_bytes > self.highest or time.perf_counter() > self._compared_s + _COMPARE_S:
            self.compare()

    def look(self, number: int) -> None:
        """Do nothing after an allocation on a device: hooks have counted it."""

    def freed(self, pointer: int, n_bytes: int) -> None:
        """Count what goes back to the pool; a pointer from before is not this block's."""
        self._compare_with_torch()
        own = self.own.pop(pointer, None)
        if own is None:
            self.freed_before_bytes += n_bytes
            return
        self.own_bytes -= own
        if self.trace:
            frame = sys._getframe(1)
            self._name_arrays(frame)
            self.live.pop(pointer, None)
            self.events.append(_Event(pointer, -own, current_place(frame), ""))

    def taken(self, n_bytes: int) -> None:
        """Count what the pool took from the driver, and how far the driver rounded that up.

        Where the pool gave blocks back meanwhile it is not known which: in proportion, then.
        """
        held = int(self.pool.total_bytes())
        if held < self._held + n_bytes:
            kept = max(0, held - n_bytes)
            self.rounding_bytes = self.rounding_bytes * kept // max(1, self._held)
            self._small_bytes = 0
        self._held = held
        self.highest_held = max(self.highest_held, held)
        if n_bytes >= GRAIN_BYTES:
            self.rounding_bytes += -n_bytes % GRAIN_BYTES
        else:
            before = -self._small_bytes % GRAIN_BYTES
            self._small_bytes += n_bytes
            self.rounding_bytes += -self._small_bytes % GRAIN_BYTES - before

    def compare(self) -> None:
        """Hold the pool's count against the hooks', and remember the larger.

        Both agree unless a thread escapes the hooks. One that frees unseen leaves the
        account too high, one that allocates unseen leaves it too low; the larger of the
        two is never below the truth at this moment.
        """
        self._compared_s = time.perf_counter()
        self.highest_held = max(self.highest_held, int(self.pool.total_bytes()))
        in_use = int(self.pool.used_bytes()) - self.used_before + self.freed_before_bytes
        if not tracker.in_flight_bytes:
            self.unaccounted = max(self.unaccounted, in_use - self.own_bytes)
            most = max(in_use, self.own_bytes)
        else:
            most = self.own_bytes
        if most > self.highest:
            self.highest, self.peak_event = most, len(self.events)

    def _compare_with_torch(self) -> None:
        """Remember the most that both had at one time.

        Called before what CuPy has in use changes: it was the same since the last time.
        """
        if self.torch is not None:
            most = self.own_bytes + self.torch.most_since_last_asked()
            self.with_torch_bytes = max(self.with_torch_bytes, most)

    def sample_with(self, read: Callable[[], int]) -> None:
        """Read the pool and the device at one moment, from the sampling thread.

        That also sees threads that never call a hook.
        """
        with tracker.lock:
            if self not in tracker.meters:
                read()
                return
            with self.device:
                self.compare()
                held = int(self.pool.total_bytes())
                used = read()
                # Whatever the pool gives back, the driver has before the pool's count is lower.
                held = max(held, int(self.pool.total_bytes()))
            if not tracker.in_flight_bytes:  # else what the driver gave is not counted yet
                beyond = used - (held - self.held_before) - self.rounding_bytes
                self._moments[held] = max(beyond, self._moments.get(held, beyond))

    def most_beside(self, device_before_bytes: int) -> int:
        """Return how far pool and other memory together exceeded what the pool handed out at most.

        What the pool held at that moment counts, but no more than it ever has to hold: a
        library that needs memory cannot have what the pool keeps.
        """
        most = max(
            (
                min(held - self.used_before, self.highest) + beyond - device_before_bytes
                for held, beyond in self._moments.items()
            ),
            default=0,
        )
        return max(0, most - self.highest)

    def end(self, complaint: str | None) -> None:
        """Fill in the figures."""
        self._compare_with_torch()
        self.compare()
        self.held_after = int(self.pool.total_bytes())
        self.in_use_bytes = self.highest
        self.held_bytes = max(self.highest, self.highest_held - self.used_before)
        if complaint:
            self.unseen.append(complaint)
        if self.unaccounted > 0:
            self.unseen.append(
                f"{self.unaccounted:,} bytes of CuPy's pool were allocated where the memory hooks "
                "do not reach, such as a thread with an allocator of its own"
            )

    def _name_arrays(self, frame: Any) -> None:
        """Find the local variables that hold what was allocated before."""
        while frame is not None:
            if not is_library(frame.f_code.co_filename):
                for name, value in list(frame.f_locals.items()):
                    memory = getattr(getattr(value, "data", None), "mem", None)
                    event = self.live.get(getattr(memory, "ptr", None) or -1)
                    if event is not None and not event.what and value.base is None:
                        event.what = f"{name} {describe_array(value)}"
            frame = frame.f_back

    def alive_at_peak(self) -> tuple[Alive, ...]:
        """Return what was alive at the peak, largest first."""
        alive: dict[int, _Event] = {}
        for event in self.events[: self.peak_event]:
            if event.change_bytes > 0:
                alive[event.pointer] = event
            else:
                alive.pop(event.pointer, None)
        rows = [Alive(e.change_bytes, e.where, e.what) for e in alive.values()]
        return tuple(sorted(rows, key=lambda row: -row.n_bytes))

    def steps(self) -> tuple[Step, ...]:
        """Return the memory in use after each event."""
        in_use, found = 0, []
        for event in self.events:
            in_use += event.change_bytes
            found.append(Step(event.time_s - self.began, in_use, event.where))
        return tuple(found)

    @property
    def where(self) -> Place | None:
        """Place of the allocation that reached the peak."""
        return self.events[self.peak_event - 1].where if self.peak_event else None
