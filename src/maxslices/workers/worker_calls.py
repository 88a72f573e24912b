"""Calls on named workers, watched by whoever waits for them.

Each call is for one worker, and a worker has one call at a time. So it is known which call a worker
had when it ended, and the caller decides what becomes of it. Dask would start it again on any other
worker, and with it calls that only waited there.
"""

from __future__ import annotations

import pickle
import socket
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError, MaxslicesError, MethodError
from ..system.process_state import warn_in_one_line

if TYPE_CHECKING:
    from distributed import Client, Future

LOOK_S = 1.0
"""Seconds between two looks at which workers there are, each of some ms."""
WARN_S = 30.0
"""Seconds after which a worker that sends nothing is named. Workers report to the scheduler every
half second to a few seconds, by their number, unless a method holds Python's lock."""
MOST_TRIES = 3
"""Workers on which the same thing may fail, or that may end with it, before the run ends: a fault
of one machine does not end it, and one of the method or the data does soon."""
END_S = 1.0
"""Seconds for which a run that ends waits, at each of three steps, for workers to notice. A share
that takes longer ends by itself, or with its process: it writes the same bits to a place of its
own."""
LOST = "the scheduler was lost, and with it what the workers were doing"
"""Message where nothing comes from the scheduler any more."""


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """What a worker sends back: the function's value or its error."""

    value: Any
    """What the function returned; None if it failed."""
    error: MaxslicesError | None
    """Why it failed; None if it did not."""
    host: str
    """Name of the worker's machine."""
    took_s: float
    """Seconds that it took."""


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A call that has ended."""

    worker: str
    """Address of the worker."""
    what: Any
    """What the caller named the call by."""
    answer: WorkerAnswer | None
    """What the worker sent; None if the worker ended before."""


def sendable(error: MaxslicesError) -> MaxslicesError:
    """An error as another process can have it: alone, if what caused it cannot be sent.

    The frames of its traceback, which would keep the arrays of the block alive until the answer has
    been fetched, are cleared.
    """
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever the classes of other people's errors raise
        error.__cause__ = error.__context__ = None
    each: BaseException | None = error
    while each is not None:
        traceback.clear_frames(each.__traceback__)
        each = each.__cause__ or each.__context__
    return error


def answer_call(function: Callable[..., Any], *args: Any) -> WorkerAnswer:
    """Call a function on a worker; an error of ours is an answer as well, which Dask would log.

    So is what would end the worker, if a method raises it: Ctrl-C never comes to its thread.
    """
    warn_in_one_line()
    began_s, value, failed = time.perf_counter(), None, None
    try:
        value = function(*args)
    except MaxslicesError as error:
        failed = sendable(error)
    except (KeyboardInterrupt, SystemExit) as raised:
        failed = MethodError(f"a method raised {type(raised).__name__}")
    return WorkerAnswer(value, failed, socket.gethostname(), time.perf_counter() - began_s)


@dataclass(slots=True)
class WorkerCalls:
    """Calls on the workers of a cluster, at most one on each at a time.

    A worker that sends nothing for `WARN_S` seconds is named in a warning. Dask itself gives up a
    worker that sends nothing for ``distributed.scheduler.worker-ttl``, and starts it anew where it
    can; here it has then ended, as one that was killed.
    """

    client: Client
    """The cluster."""
    running: dict[str, tuple[Future[Any], Any]] = field(default_factory=dict)
    """Address of a worker -> its call, and what the caller named it by."""
    _ready: SimpleQueue[Future[Any]] = field(default_factory=SimpleQueue)
    _info: dict[str, Any] = field(default_factory=dict)
    _looked_s: float = float("-inf")
    _heard: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Address -> the scheduler's time of its last message, and the time here when that changed."""
    _named: set[str] = field(default_factory=set)

    def workers(self) -> dict[str, Any]:
        """What the scheduler knows of each worker, by address, as of a second ago.

        Raises
        ------
        DeviceError
            If the scheduler is lost.
        """
        now_s = time.monotonic()
        if self._info and now_s - self._looked_s < LOOK_S:
            return self._info
        if self.client.status != "running":
            raise DeviceError(LOST)
        # Dask's own way to wait for workers would replace what a cluster of this process knows of
        # them; when one ends later, the cluster fails (distributed 2026.8).
        with _connected():
            self._info = dict(self.client.scheduler_info(n_workers=-1)["workers"])
        self._looked_s = now_s
        for address, each in self._info.items():
            heard_s, since_s = self._heard.get(address, (None, now_s))
            if heard_s != each["last_seen"]:
                self._heard[address] = each["last_seen"], now_s
                self._named.discard(address)
            elif now_s - since_s >= WARN_S and address not in self._named:
                self._named.add(address)
                warnings.warn(
                    f"worker {address} on {each['host']} has not answered for "
                    f"{now_s - since_s:.0f} s: it is stopped or swapped out, its disk or device "
                    "does not answer, or a method holds Python's lock; Dask gives it up after "
                    "its distributed.scheduler.worker-ttl (by default 5 minutes), and another "
                    "worker is given its slices",
                    stacklevel=2,
                )
        return self._info

    def begin(self, worker: str, what: Any, function: Callable[..., Any], *args: Any) -> None:
        """Have a worker call a function; `ended` returns `what` with the answer."""
        with _connected():
            future = self.client.submit(answer_call, function, *args, pure=False, workers=[worker])
            future.add_done_callback(self._ready.put)
        self.running[worker] = future, what

    def ended(self) -> list[EndedCall]:
        """Wait for calls to end, at most `LOOK_S` seconds.

        Raises
        ------
        DeviceError
            If the scheduler is lost, or a function raised an error that is not ours.
        """
        ready = []
        with suppress(Empty):
            ready.append(self._ready.get(timeout=LOOK_S))
            while True:
                ready.append(self._ready.get_nowait())
        by_key = {future.key: worker for worker, (future, _) in self.running.items()}
        ended = []
        for future in ready:
            if worker := by_key.get(future.key):  # else it was given up before
                _, what = self.running.pop(worker)
                ended.append(EndedCall(worker, what, self._fetched(worker, future)))
        there = self.workers()
        for worker in [each for each in self.running if each not in there]:
            future, what = self.running.pop(worker)
            with _connected():
                self.client.cancel([future])
            ended.append(EndedCall(worker, what, None))
        return ended

    def _fetched(self, worker: str, future: Future[Any]) -> WorkerAnswer | None:
        """Answer of a call that has ended; None if it is lost with its worker."""
        from distributed import KilledWorker

        while facts := self.workers().get(worker):
            if future.status == "cancelled":
                raise DeviceError(LOST)
            try:
                answer: WorkerAnswer = future.result(timeout=LOOK_S)
                return answer
            except KilledWorker:
                return None
            except Exception as error:
                host = facts["host"]
                if future.status == "error":  # the function's own
                    if isinstance(error, MemoryError):
                        raise
                    text = f"worker {worker} on {host} failed: {type(error).__name__}: {error}"
                    raise DeviceError(text) from error
                if isinstance(error, TypeError):  # Dask's text is the worker's traceback
                    text = f"what it returns cannot be sent: {str(error).splitlines()[-1]}"
                    return WorkerAnswer(None, MethodError(text), host, 0.0)
                if not isinstance(error, TimeoutError):
                    raise DeviceError(f"{LOST} ({type(error).__name__})") from error
        return None

    def give_up(self) -> None:
        """Wait `END_S` seconds for calls that end soon, and take the others back."""
        until_s = time.monotonic() + END_S
        left = {future.key: future for future, _ in self.running.values()}
        self.running.clear()
        if self.client.status != "running":
            return
        while left and (limit_s := until_s - time.monotonic()) > 0:
            with suppress(Empty):
                left.pop(self._ready.get(timeout=limit_s).key, None)
        with suppress(OSError, CancelledError):
            self.client.cancel([*left.values()])


@contextmanager
def _connected() -> Iterator[None]:
    """Turn errors of the connection to the scheduler into one of ours."""
    try:
        yield
    except (OSError, CancelledError) as error:
        raise DeviceError(f"{LOST} ({type(error).__name__})") from error


def call_on_all(
    client: Client, function: Callable[..., Any], *args: Any, limit_s: float = END_S
) -> None:
    """Have each worker call a function during its work; wait no longer than `limit_s` seconds.

    Errors are ignored: a worker that hangs, or is gone, cannot be asked.
    """

    def call() -> None:
        with suppress(Exception):
            client.run(function, *args, on_error="ignore")

    if client.status != "running":
        return
    asking = threading.Thread(target=call, daemon=True)
    with suppress(RuntimeError):  # no memory for a thread
        asking.start()
        asking.join(limit_s)
