"""Number of threads for the slices of a block on a CPU."""

from __future__ import annotations

import os

MAX_WORKERS = 8
"""Largest number of threads. Each needs memory for its own slices."""
THREAD_BYTES = 2**16
"""Bytes of a thread's Python objects and NumPy buffers. For each of two threads, 19 to 29 kB were
measured in 80 calls, and 42 kB in one of several thousand calls on busy cores (2026-11-25)."""


def n_workers_for(n_slices: int) -> int:
    """Number of threads: one for each available processor, at most one for each slice."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(usable or 1, MAX_WORKERS, n_slices))
