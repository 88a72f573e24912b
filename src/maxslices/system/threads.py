"""Work spread over threads, for what waits in the system or in code that needs no interpreter.

Reading, writing, copying and decompressing all let go of Python's lock, so a few threads keep
a disk, or the memory, as busy as it can be. They are shared by all that reads and writes,
and made when they are first needed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model.account import THREAD_BUFFER_BYTES


def _cores() -> int:
    """Return the number of cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


N_CORES = _cores()
N_THREADS = 1 if N_CORES <= 2 else min(12, max(2, N_CORES * 5 // 8))
"""Threads that move bytes: as many as it takes to read what a GPU's link carries (16 cores: 10
threads, 45 GB/s), and some cores left. One or two cores are left to the computation."""
N_DECODERS = 1 if N_CORES <= 2 else N_CORES - 1
"""Threads that decompress, which is bound by the cores themselves."""
_POOL_THREADS = max(2 * 12, N_CORES)
"""Most threads there are, made when needed: a reader's and a writer's at the same time."""
_PART_BYTES = (2**20, 2**24)
"""Bytes that a thread takes on at one time, least and most."""

_local = threading.local()
_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def spread(n_items: int, work: Callable[[int], object], n_threads: int | None = None) -> None:
    """Call ``work(i)`` for each i below `n_items`, in several threads; return when all is done.

    The calling thread works with the others, so that it never waits for threads that are
    busy elsewhere, and a single thread needs no other.

    Parameters
    ----------
    n_items : int
        Number of calls.
    work : callable
        Must be safe to be called by several threads at once, in any order.
    n_threads : int, optional
        Most threads; `N_THREADS` if not given.

    Raises
    ------
    BaseException
        What `work` raised first. No further item is begun then, and none is under way any
        more when it is raised.
    """
    items = iter(range(n_items))
    stopped = False

    def run() -> None:
        nonlocal stopped
        try:
            while not stopped and (i := next(items, None)) is not None:
                work(i)
        finally:
            stopped = True

    n_helpers = min(n_items, N_THREADS if n_threads is None else n_threads) - 1
    helpers = _start(run, n_helpers) if n_helpers > 0 else []
    try:
        run()
    finally:
        started = [helper for helper in helpers if not helper.cancel()]
        wait(started)
    for helper in started:
        error = helper.exception()
        if error is not None:
            raise error


def _start(run: Callable[[], None], count: int) -> list[Future[None]]:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(_POOL_THREADS, thread_name_prefix="maxslices-io")
        started: list[Future[None]] = []
        with suppress(RuntimeError):  # the interpreter ends: no threads are started any more
            for _ in range(count):
                started.append(_pool.submit(run))  # noqa: PERF401  (those before the end count)
        return started


def _forget_threads() -> None:
    """Begin anew in a forked process, where the threads of its parent do not run."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def part_count(n_bytes: int) -> int:
    """Return into how many parts work on `n_bytes` is cut: as many for each thread.

    Large parts are read faster than many that keep the threads even: 57 frames of 2.6 MB by 10
    threads at 33 GB/s in one part each, at 22 in four.
    """
    least, most = _PART_BYTES
    rounds = -(-n_bytes // (N_THREADS * most))
    return max(1, min(N_THREADS * rounds, n_bytes // least))


def buffer(n_bytes: int) -> NDArray[np.uint8]:
    """Return memory of the calling thread's own, the same at each call while it is enough."""
    if n_bytes > THREAD_BUFFER_BYTES:
        return np.empty(n_bytes, np.uint8)
    kept: NDArray[np.uint8] | None = getattr(_local, "buffer", None)
    if kept is None or kept.size < n_bytes:
        kept = _local.buffer = None
        kept = _local.buffer = np.empty(n_bytes, np.uint8)
    return kept[:n_bytes]


def fitting(n_bytes: int) -> int:
    """Return how many things of `n_bytes` fit into a thread's buffer; at least 1."""
    return max(1, THREAD_BUFFER_BYTES // n_bytes)


def copy(out: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy an array into another of its shape, in several threads; convert its byte order."""
    axis = 0 if out.ndim < 2 or out.shape[0] >= 2 * N_THREADS else int(np.argmax(out.shape[:2]))
    length = out.shape[axis]
    step = max(1, -(-length // part_count(out.nbytes)))
    before = (slice(None),) * axis

    def part(i: int) -> None:
        box = (*before, slice(i * step, (i + 1) * step))
        np.copyto(out[box], source[box])

    spread(-(-length // step), part)


def spread_box(
    frames: tuple[int, int],
    rows: tuple[int, int],
    array: NDArray[Any],
    work: Callable[[tuple[int, int], tuple[int, int], NDArray[Any]], object],
) -> None:
    """Cut a box of frames into parts, of some frames or of some rows of one, for several threads.

    Parameters
    ----------
    frames, rows : (int, int)
        First, and the one after the last, of what is in `array`.
    array : ndarray
        The box (frames, rows, columns).
    work : callable
        Is called with frames, rows and the part of `array` that is theirs. Where `array` is
        C-contiguous, so is that.
    """
    n_frames, n_rows = array.shape[:2]
    count = part_count(array.nbytes)
    frame_step = -(-n_frames // count)
    row_step = n_rows if count <= n_frames else -(-n_rows // -(-count // n_frames))
    per_frame = -(-n_rows // row_step)

    def one(i: int) -> None:
        first, top = i // per_frame * frame_step, i % per_frame * row_step
        last, bottom = min(first + frame_step, n_frames), min(top + row_step, n_rows)
        work(
            (frames[0] + first, frames[0] + last),
            (rows[0] + top, rows[0] + bottom),
            array[first:last, top:bottom],
        )

    spread(-(-n_frames // frame_step) * per_frame, one)
