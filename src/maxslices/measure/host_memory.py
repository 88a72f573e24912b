"""NumPy's memory, by tracemalloc.

tracemalloc keeps one peak for the whole process, which overlapping measurements share: before one
resets it, the peak so far is noted for all of them.
"""

from __future__ import annotations

import tracemalloc
from threading import RLock

import numpy as np

from ..tuning.heap import PythonAllocator, install_allocators, installed_allocators

TRACE_FRAMES = 12
"""Stack frames kept per allocation with ``trace=True``. NumPy and SciPy allocated at most 6 frames
below the user's line, in the methods of maxslices-methods (2026-11-22)."""

_lock = RLock()
_active: list[HostMeter] = []
_started_here = False
_foreign_peak_bytes = 0
_hooked: list[PythonAllocator] | None = None
"""Python's allocators with tracemalloc's hooks, to be installed once objects count too."""


class HostMeter:
    """Bytes in NumPy arrays, of all threads, and as a rule in Python objects.

    If tracemalloc was off before, what was allocated earlier does not count. If it was on, figures
    are the growth over what was alive at the start, and an array from before that the code frees
    lowers them.

    Parameters
    ----------
    n_frames : int
        Stack frames kept for each allocation.
    objects : bool
        Whether Python objects must count; if not, they may.
    """

    def __init__(self, n_frames: int = 1, objects: bool = True) -> None:
        self.n_frames, self.objects = n_frames, objects
        self.before_bytes = self.highest_bytes = 0
        self.lost = False

    def start(self) -> None:
        """Begin to count."""
        global _started_here, _foreign_peak_bytes, _hooked
        with _lock:
            if not tracemalloc.is_tracing():
                for meter in _active:
                    meter.lost = True
                plain = installed_allocators()
                tracemalloc.start(self.n_frames)
                _started_here, _hooked = True, None
                if not self.objects:
                    _hooked = installed_allocators()
                    install_allocators(plain)
            elif not _active:
                _started_here = False
                _foreign_peak_bytes = tracemalloc.get_traced_memory()[1]
            if self.objects and _hooked is not None:
                install_allocators(_hooked)
                _hooked = None
            self.before_bytes = self.highest_bytes = observe()[0]
            _active.append(self)

    def stop(self) -> int | None:
        """End; the peak in bytes, or None if the code switched tracing off."""
        global _started_here, _hooked
        with _lock:
            if not tracemalloc.is_tracing():
                _active.remove(self)
                _hooked = None
                return None
            current, _ = observe()
            _active.remove(self)
            if not _active and _started_here:
                tracemalloc.stop()
                _started_here, _hooked = False, None
            elif not _active and _foreign_peak_bytes > current:
                # Restore the peak for whoever was tracing: pages never touched cost nothing.
                np.empty(_foreign_peak_bytes - current, np.uint8)
        return None if self.lost else max(0, self.highest_bytes - self.before_bytes)


def observe() -> tuple[int, int]:
    """Traced bytes now and at most since the last call; every measurement notes the latter."""
    with _lock:
        current, peak = tracemalloc.get_traced_memory()
        for meter in _active:
            meter.highest_bytes = max(meter.highest_bytes, peak)
        tracemalloc.reset_peak()
    return current, peak
