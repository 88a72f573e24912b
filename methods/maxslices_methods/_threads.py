"""How many threads work on the slices of a block on a CPU."""

from __future__ import annotations

import os

MAX_WORKERS = 8
"""Most threads: each takes memory for slices of its own."""
THREAD_BYTES = 2**16
"""Bytes of a thread's Python objects and of NumPy's buffers: 19 to 29 kB were measured for each of
two threads in 80 calls, and 42 kB in one of some thousand on busy cores (2026-11-25)."""


def n_workers_for(n_slices: int) -> int:
    """Number of threads: one for each processor that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(usable or 1, MAX_WORKERS, n_slices))
