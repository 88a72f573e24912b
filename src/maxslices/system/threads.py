"""Parallel loops over threads, and threads with one piece of work each.

Reading, writing, copying and decompressing release Python's lock, so a few threads use the full
bandwidth of a disk or of the memory. All readers and writers share the threads of the loops, which
are started when they are first needed.
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
"""What Python says where the system has no memory for a thread's stack, or no threads are left."""
NO_LOCK = "can't allocate lock"
"""What it says where there is none for a lock, which waiting for a time takes."""
_LOOK_S = 0.05
"""Seconds between two looks at whether a thread still lives. Only who waits for one that died, or
for work that takes longer than that, looks at all."""
HANG_S = 4 * 3600.0
"""Longest wait for a thread that reads, copies or writes: 100 GB at 10 MB/s take three hours."""
CALL_S = 90 * 86400.0
"""Longest wait of such a thread for the one that calls methods, one of which may take days."""


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
        What the thread is for.
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
        """Wait until the work has ended; return at once if it never began.

        Parameters
        ----------
        limit_s : float
            Longest wait.

        Raises
        ------
        BaseException
            What the work raised, the first time.
        MaxslicesError
            If the work takes longer; the thread is left to itself, and no longer counts as alive.
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
        except BaseException as error:  # noqa: BLE001 - raised where it is joined
            self._error = error
        finally:
            self._has_ended.set()


def _hang_error(name: str, limit_s: float) -> MaxslicesError:
    return MaxslicesError(
        f"the {name} thread has not answered for {format_duration(limit_s)}: a disk or a device "
        "hangs; end the program, and see to it"
    )


def wait_for(
    attempt: Callable[[float], T | None],
    is_alive: Callable[[], bool],
    limit_s: float,
    name: str,
) -> T | None:
    """Wait for what another thread provides; the threads of a run wait in no other way.

    Parameters
    ----------
    attempt : callable
        Called again and again with the seconds that it may wait; None if there is nothing yet.
    is_alive : callable
        Whether the other thread can still provide it.
    limit_s : float
        Longest wait; see `HANG_S` and `CALL_S`.
    name : str
        What the other thread does, for the error.

    Returns
    -------
    object or None
        What `attempt` returned; None if the other thread has ended without providing it.

    Raises
    ------
    MaxslicesError
        If nothing comes within the limit.
    """
    until_s = time.monotonic() + limit_s
    while True:
        may_come = is_alive()  # before the attempt, after which it may end
        found = attempt(min(_LOOK_S, max(0.0, until_s - time.monotonic())))
        if found is not None or not may_come:
            return found
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
        What ended the thread, if it ended without another item.
    MaxslicesError
        If none comes within the limit.
    """
    found = wait_for(
        lambda timeout_s: _taken(queue, timeout_s),
        lambda: thread is not None and thread.is_alive,
        limit_s,
        "ended" if thread is None else thread.name,
    )
    if found is not None:
        return found[0]
    if thread is not None:
        thread.join(limit_s)
    raise RuntimeError(NO_THREAD)


def next_for(queue: SimpleQueue[T], owner: threading.Thread, limit_s: float) -> T | None:
    """Next item that the owner of a thread gives it; None if the owner has ended."""
    found = wait_for(
        lambda timeout_s: _taken(queue, timeout_s), owner.is_alive, limit_s, owner.name
    )
    return None if found is None else found[0]


def _taken(queue: SimpleQueue[T], timeout_s: float) -> tuple[T] | None:
    try:
        return (queue.get(timeout=timeout_s),)
    except Empty:
        return None


def _cores() -> int:
    """Number of cores that this process may run on, by its affinity and by limits on its time."""
    try:
        n_cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        n_cores = os.cpu_count() or 1
    return min(n_cores, core_limit() or n_cores)


N_CORES = _cores()
"""Cores that this process may run on."""
MOST_THREADS = 12
"""Most threads that move bytes. A plan for a GPU counts the buffers of so many, so that it holds
for hosts with any number of cores."""
N_THREADS = 1 if N_CORES <= 2 else min(MOST_THREADS, max(2, N_CORES * 5 // 8))
"""Threads that move bytes: 5 of 8 cores.

With 16 cores, 10 threads read 45 GB/s, nearly what a GPU's link carries (55 GB/s), and 6 cores
are left. More than 12 are not needed for that; one or two cores are left to the computation.
"""
N_DECODERS = 1 if N_CORES <= 2 else N_CORES - 1
"""Threads that decompress, which is bound by the cores; one core is left to the computation."""
_POOL_THREADS = max(2 * MOST_THREADS, N_CORES)
"""Most threads in the pool: those of a reader and of a writer at the same time."""
_PART_BYTES = (2**20, 2**24)
"""Least and most bytes that a thread works on at one time; see `part_count`."""


def parallel_for(n_items: int, work: Callable[[int], object], n_threads: int | None = None) -> None:
    """Call ``work(i)`` for each i below `n_items`, in several threads, and wait for all.

    The calling thread works too, so it never waits for threads that are busy elsewhere, and with
    one thread no other is started.

    Parameters
    ----------
    n_items : int
        Number of calls.
    work : callable
        Is called by several threads at once, in any order.
    n_threads : int, optional
        Most threads; `N_THREADS` if not given.

    Raises
    ------
    BaseException
        The first error of `work`. No further call is started after it, and all calls have ended
        when it is raised.
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
    """Start without threads in a forked process, where those of its parent do not run."""
    global _pool
    _pool = ThreadPoolExecutor(_POOL_THREADS, "maxslices")


_pool = ThreadPoolExecutor(_POOL_THREADS, "maxslices")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_pool)


def part_count(n_bytes: int) -> int:
    """Number of parts into which work on `n_bytes` is split, the same for each thread.

    A few large parts are read faster than many that would balance the threads: 10 threads read 57
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
        First index, and the index after the last, of what is in `array`.
    array : ndarray
        The box (frames, rows, columns).
    work : callable
        Is called with the frames and rows of a part, and that part of `array`, which is
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
