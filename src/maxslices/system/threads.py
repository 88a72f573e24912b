"""Parallel loops over threads, and threads for one piece of work each.

Reading, writing, copying and decompressing release Python's lock, so a few threads use the full
bandwidth of a disk or of the memory. All readers and writers share a pool of threads for loops. The
threads start when they are first needed.
"""

from __future__ import annotations

import _thread
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..core.block_memory import THREAD_BUFFER_BYTES
from ..core.units import format_duration
from ..errors import MaxslicesError
from .resource_limits import core_limit

T = TypeVar("T")

NO_THREAD = "can't start new thread"
"""Python's message if the system has no memory for a thread's stack, or no threads left."""
NO_LOCK = "can't allocate lock"
"""Python's message if the system has no memory for a lock, which timed waits need."""
_LOOK_S = 0.05
"""Seconds between two checks that a thread is alive, during a wait for it."""
HANG_S = 4 * 3600.0
"""Longest wait for a thread that reads, copies or writes: 100 GB at 10 MB/s take three hours."""
CALL_S = 90 * 86400.0
"""Longest wait of such a thread for the one that calls methods. A call may take days."""


class WorkThread:
    """A thread for one piece of work, which does not keep the process alive.

    `threading.Thread.start` waits without a limit for the new thread's first lines, which never
    run where Python has no memory for them. A new thread owns its function until it ends, so a
    weak reference to the function tells here whether the thread lives, whatever it got to.

    Parameters
    ----------
    work : callable
        Called once, without arguments.
    name : str
        Its purpose, for messages.
    """

    def __init__(self, work: Callable[[], object], name: str) -> None:
        self.name = name
        self._work = work
        self._refer: Callable[[], object] = lambda: None
        self._has_ended = threading.Event()
        self._is_given_up = False
        self._error: BaseException | None = None

    @property
    def is_alive(self) -> bool:
        """True from the start of the thread until its work has ended."""
        return not (self._refer() is None or self._has_ended.is_set() or self._is_given_up)

    def start(self) -> None:
        """Start the thread, once.

        Raises
        ------
        RuntimeError
            With the text `NO_THREAD`: the system cannot start a thread.
        """
        function = partial(self._run)
        _thread.start_new_thread(function, ())
        self._refer = weakref.ref(function)

    def join(self, limit_s: float) -> None:
        """Wait until the work has ended; return at once if it was not started.

        Parameters
        ----------
        limit_s : float
            Longest wait.

        Raises
        ------
        BaseException
            The error of the work, at the first call.
        MaxslicesError
            If the work takes longer. The thread then no longer counts as alive.
        """
        if self.is_alive:
            try:
                wait_for_event(self._has_ended, self, limit_s)
            except MaxslicesError:
                self._is_given_up = True
                raise
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised by `join`
            self._error = error
        finally:
            self._has_ended.set()


def _hang_error(name: str, limit_s: float) -> MaxslicesError:
    return MaxslicesError(
        f"the {name} thread has not answered for {format_duration(limit_s)}, so a disk or a device "
        "hangs: end the program and check them"
    )


def wait_for(
    attempt: Callable[[float], T | None],
    is_alive: Callable[[], bool],
    limit_s: float,
    name: str,
) -> T | None:
    """Wait for another thread. All waits of a run's threads use this function.

    Parameters
    ----------
    attempt : callable
        Called repeatedly with the seconds that it may wait. It returns None to continue.
    is_alive : callable
        Returns whether the other thread can still provide the object.
    limit_s : float
        Longest wait; see `HANG_S` and `CALL_S`.
    name : str
        Name of the other thread, for the error.

    Returns
    -------
    object or None
        The result of `attempt`; None if the other thread has ended without providing it.

    Raises
    ------
    MaxslicesError
        If the limit is exceeded.
    """
    until_s = time.monotonic() + limit_s
    while True:
        may_come = is_alive()  # before the attempt, after which it may end
        result = attempt(min(_LOOK_S, max(0.0, until_s - time.monotonic())))
        if result is not None or not may_come:
            return result
        if time.monotonic() >= until_s:
            raise _hang_error(name, limit_s)


def wait_for_event(event: threading.Event, thread: WorkThread | None, limit_s: float) -> None:
    """Wait for an event that a thread sets, or until that thread has ended."""
    wait_for(
        lambda timeout_s: event.wait(timeout_s) or None,
        lambda: thread is not None and thread.is_alive,
        limit_s,
        "ended" if thread is None else thread.name,
    )


def next_of(queue: SimpleQueue[T], thread: WorkThread | None, limit_s: float) -> T:
    """Next item that a thread puts into a queue.

    Raises
    ------
    BaseException
        The error of the thread, if it has ended without another item.
    MaxslicesError
        If the limit is exceeded.
    """
    item = wait_for(
        lambda timeout_s: _get(queue, timeout_s),
        lambda: thread is not None and thread.is_alive,
        limit_s,
        "ended" if thread is None else thread.name,
    )
    if item is not None:
        return item[0]
    if thread is not None:
        thread.join(limit_s)
    raise RuntimeError(NO_THREAD)


def next_for(queue: SimpleQueue[T], owner: threading.Thread, limit_s: float) -> T | None:
    """Next item from the owner of a thread; None if the owner has ended."""
    item = wait_for(lambda timeout_s: _get(queue, timeout_s), owner.is_alive, limit_s, owner.name)
    return None if item is None else item[0]


def _get(queue: SimpleQueue[T], timeout_s: float) -> tuple[T] | None:
    try:
        return (queue.get(timeout=timeout_s),)
    except Empty:
        return None


def _cores() -> int:
    """Number of cores for this process, by its affinity and its CPU quota."""
    try:
        n_cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        n_cores = os.cpu_count() or 1
    return min(n_cores, core_limit() or n_cores)


N_CORES = _cores()
"""Cores that this process may run on."""
MOST_THREADS = 12
"""Most threads that move bytes. A plan for a GPU includes the buffers of this many, so it is valid
on hosts with any number of cores."""
N_THREADS = 1 if N_CORES <= 2 else min(MOST_THREADS, max(2, N_CORES * 5 // 8))
"""Threads that move bytes: 5 of 8 cores.

With 16 cores, 10 threads read 45 GB/s, close to the bandwidth of a GPU's link (55 GB/s), and leave
6 cores. More than 12 threads are not needed. One or two cores are left to the computation.
"""
N_DECODERS = 1 if N_CORES <= 2 else N_CORES - 1
"""Threads that decompress, which needs cores. One core is left to the computation."""
_POOL_THREADS = max(2 * MOST_THREADS, N_CORES)
"""Most threads in the pool, enough for a reader and a writer at the same time."""
_PART_BYTES = (2**20, 2**24)
"""Fewest and most bytes that a thread works on at one time; see `part_count`."""


def parallel_for(n_items: int, work: Callable[[int], object], n_threads: int | None = None) -> None:
    """Call ``work(i)`` for each i below `n_items` in several threads, and wait for all calls.

    The calling thread works too, so it does not wait for threads that are busy elsewhere. With one
    thread, no other is started.

    Parameters
    ----------
    n_items : int
        Number of calls.
    work : callable
        Called by several threads at once, in any order.
    n_threads : int, optional
        Most threads, by default `N_THREADS`.

    Raises
    ------
    BaseException
        The first error of `work`, raised when all calls have ended. No further calls are started
        after it.
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
    helpers: list[Future[None]] = []
    with suppress(RuntimeError):  # no thread can be started, or the interpreter ends
        for _ in range(n_helpers):
            helpers.append(_pool.submit(run))  # noqa: PERF401  (those before an error count)
    try:
        run()
    finally:
        begun = [helper for helper in helpers if not helper.cancel()]
        if begun:
            wait_for(lambda t: not wait(begun, t).not_done or None, lambda: True, HANG_S, "helper")
    for helper in begun:
        helper.result()


def _new_pool() -> None:
    """Start without threads in a forked process, in which the parent's threads do not run."""
    global _pool
    _pool = ThreadPoolExecutor(_POOL_THREADS, "maxslices")


_pool = ThreadPoolExecutor(_POOL_THREADS, "maxslices")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_pool)


def part_count(n_bytes: int) -> int:
    """Number of parts into which work on `n_bytes` is split, the same for each thread.

    A few large parts are read faster than many small ones, despite less balance. 10 threads read 57
    frames of 2.6 MB at 33 GB/s in one part each, and at 22 GB/s in four.
    """
    least, most = _PART_BYTES
    rounds = -(-n_bytes // (N_THREADS * most))
    return max(1, min(N_THREADS * rounds, n_bytes // least))


def fit_in_buffer(n_bytes: int) -> int:
    """Number of items of `n_bytes` that fit into a thread's buffer; at least 1."""
    return max(1, THREAD_BUFFER_BYTES // n_bytes)


def parallel_copy(out: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy an array into another of its shape, in several threads, converting the byte order."""
    axis = 0 if out.ndim < 2 or out.shape[0] >= 2 * N_THREADS else int(np.argmax(out.shape[:2]))
    length = out.shape[axis]
    step = max(1, -(-length // part_count(out.nbytes)))
    before = (slice(None),) * axis

    def part(i: int) -> None:
        box = (*before, slice(i * step, (i + 1) * step))
        np.copyto(out[box], source[box])

    parallel_for(-(-length // step), part)


def parallel_for_box(
    frames: tuple[int, int],
    rows: tuple[int, int],
    array: NDArray[Any],
    work: Callable[[tuple[int, int], tuple[int, int], NDArray[Any]], object],
) -> None:
    """Split a box of frames into parts, and work on them in several threads.

    A part is some frames, or some rows of one frame.

    Parameters
    ----------
    frames, rows : (int, int)
        First index in `array`, and the index after the last.
    array : ndarray
        The box (frames, rows, columns).
    work : callable
        Called with the frames and rows of a part, and that part of `array`, which is
        C-contiguous if `array` is.
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

    parallel_for(-(-n_frames // frame_step) * per_frame, one)
