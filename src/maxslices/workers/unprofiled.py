"""Keep a call out of Dask's profile, which would keep the arrays of methods alive."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unprofiled() -> Iterator[None]:
    """Have Dask's profiler overlook what this thread of a worker does meanwhile.

    Every 10 ms it takes the stack of each thread at work. A frame that it holds when its function
    returns keeps what the function allocated, while the next call allocates as much again: of
    paganin_filter 269 MB, beyond an estimate of 2.47 GB that was right to the byte (H200,
    2026-11-27).
    """
    from distributed import get_worker

    worker, ident = get_worker(), threading.get_ident()
    with worker.active_threads_lock:
        key = worker.active_threads.pop(ident)
    try:
        yield
    finally:
        with worker.active_threads_lock:
            worker.active_threads[ident] = key
