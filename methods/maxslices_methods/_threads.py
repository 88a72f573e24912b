"""How many threads work on the slices of a block on a CPU."""

from __future__ import annotations

import os

MAX_WORKERS = 8
"""Most threads: each takes memory for slices of its own."""
THREAD_BYTES = 2**15
"""Bytes of a thread's Python objects and of NumPy's buffers: 19 to 25 kB were measured for each of
two threads (2026-11-23)."""


def n_workers_for(n_slices: int) -> int:
    """Number of threads: one for each processor that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(usable or 1, MAX_WORKERS, n_slices))
