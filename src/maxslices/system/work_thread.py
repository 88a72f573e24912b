"""Threads of which it is known whether they began."""

from __future__ import annotations

import _thread
import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")

NO_THREAD = "can't start new thread"
"""What Python says where the system has no memory for a thread's stack, or no threads are left."""
NO_LOCK = "can't allocate lock"
"""What it says where there is none for a lock, which waiting for a time takes."""
_LOOK_S = 0.05
"""Seconds between two looks at whether a thread still lives. Only who waits for one that died, or
for work that takes longer than that, looks at all."""


class WorkThread:
    """A thread for one piece of work, which does not keep the process alive.

    `threading.Thread.start` waits for ever where the new thread finds no memory for its first
    function call: nobody tells it that the thread has ended. Here the thread alone holds an object,
    and once that is gone the thread is known to be gone.

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
        self._begun, self._ended = _thread.allocate_lock(), _thread.allocate_lock()
        self._begun.acquire()
        self._ended.acquire()
        self._token: Callable[[], object] = _no_token
        self._error: BaseException | None = None

    @property
    def is_alive(self) -> bool:
        """True from the start of the thread until its work has ended."""
        return self._token() is not None and self._ended.locked()

    def start(self) -> None:
        """Start the thread, once.

        Raises
        ------
        RuntimeError
            With the text `NO_THREAD`: the system cannot start a thread, or the thread ended before
            it called anything, for lack of memory.
        """
        token: set[int] = set()  # of the smallest objects to which a weak reference can be made
        alive = weakref.ref(token)
        try:
            _thread.start_new_thread(self._run, (token,))
            self._token = alive
        finally:
            del token  # Ctrl-C may come at any place, and its traceback would hold it
        while not self._begun.acquire(timeout=_LOOK_S):
            if self._token() is None and not self._begun.acquire(blocking=False):
                raise RuntimeError(NO_THREAD)

    def join(self) -> None:
        """Wait until the work has ended; return at once if it never began.

        Raises
        ------
        BaseException
            What the work raised, the first time.
        """
        while self._token() is not None and not self._ended.acquire(timeout=_LOOK_S):
            pass
        self._token = _no_token
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, token: object) -> None:
        self._begun.release()
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised where it is joined
            self._error = error
        finally:
            self._ended.release()


def wait_for(event: threading.Event, thread: WorkThread | None) -> None:
    """Wait for an event that a thread sets, or until that thread has ended."""
    while not event.wait(_LOOK_S) and thread is not None and thread.is_alive:
        pass


def next_of(queue: SimpleQueue[T], thread: WorkThread | None) -> T:
    """Next item that a thread puts into a queue.

    Raises
    ------
    BaseException
        What ended the thread, if it ended without another item.
    """
    while True:
        may_come = thread is None or thread.is_alive  # looked at before the queue
        try:
            return queue.get(timeout=_LOOK_S)
        except Empty:
            if not may_come:
                assert thread is not None
                thread.join()
                raise RuntimeError(NO_THREAD) from None


def _no_token() -> None:
    """Stand for the token of a thread that was not started, or has ended."""
