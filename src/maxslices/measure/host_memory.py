"""Memory of NumPy arrays, by tracemalloc.

tracemalloc keeps one peak for the whole process, which overlapping measurements share. Before one
of them resets it, all of them record the peak so far.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import numpy as np

from ..core.allocators import Device
from ..system.process_state import torch_on_gpu
from ..tuning.heap import install_allocators, installed_allocators

_lock = RLock()
_active: list[HostMeter] = []
_started_here = False
_foreign_peak_bytes = 0


class HostMeter:
    """Bytes in NumPy arrays of all threads, and in Python objects if tracemalloc was on before.

    If tracemalloc was off before, earlier allocations do not count. If it was on, figures are the
    growth over the memory alive at the start, and freeing an earlier array lowers them.
    """

    def __init__(self) -> None:
        self.before_bytes = self.highest_bytes = 0
        self.lost = False

    def start(self) -> None:
        """Begin to count."""
        global _started_here, _foreign_peak_bytes
        with _lock:
            if not tracemalloc.is_tracing():
                for meter in _active:
                    meter.lost = True
                plain = installed_allocators()
                tracemalloc.start(1)
                install_allocators(plain)  # NumPy reports its arrays without the hooks
                _started_here = True
            elif not _active:
                _started_here = False
                _foreign_peak_bytes = tracemalloc.get_traced_memory()[1]
            self.before_bytes = self.highest_bytes = _observe()
            _active.append(self)

    def stop(self) -> int | None:
        """Stop, and return the peak in bytes, or None if the code switched tracing off."""
        global _started_here
        with _lock:
            if not tracemalloc.is_tracing():
                _active.remove(self)
                return None
            current = _observe()
            _active.remove(self)
            if not _active and _started_here:
                tracemalloc.stop()
                _started_here = False
            elif not _active and _foreign_peak_bytes > current:
                # Restore the peak for other users of tracemalloc. Untouched pages cost nothing.
                np.empty(_foreign_peak_bytes - current, np.uint8)
        return None if self.lost else max(0, self.highest_bytes - self.before_bytes)


def _observe() -> int:
    """Traced bytes now. Every measurement records the peak, which is then reset."""
    current, peak = tracemalloc.get_traced_memory()
    for meter in _active:
        meter.highest_bytes = max(meter.highest_bytes, peak)
    tracemalloc.reset_peak()
    return current


def alive_bytes(device: Device) -> int:
    """Bytes in use in a GPU's pools, or in NumPy arrays (0 if tracemalloc is off)."""
    if device == "cuda":
        import cupy

        torch, in_use = torch_on_gpu(), int(cupy.get_default_memory_pool().used_bytes())
        return in_use if torch is None else in_use + int(torch.cuda.memory_allocated())
    if not tracemalloc.is_tracing():
        return 0
    traces = tracemalloc.take_snapshot().traces
    return sum(trace.size for trace in traces if trace.domain == np.lib.tracemalloc_domain)


@contextmanager
def tracemalloc_on(device: Device) -> Iterator[None]:
    """Keep tracemalloc on between calls, to count the arrays that each leaves on the CPU."""
    if device != "cpu":
        yield
        return
    meter = HostMeter()
    meter.start()
    try:
        yield
    finally:
        meter.stop()
