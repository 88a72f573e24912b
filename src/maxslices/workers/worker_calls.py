"""Calls on named workers, monitored while the caller waits for them.

Each call is for one worker, and a worker has one call at a time. If a worker ends, the caller knows
its call, and decides whether to repeat it. Dask would start it again on any other worker, together
with calls that were only queued there.
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
"""Seconds between two requests for the list of workers, each of some ms."""
WARN_S = 30.0
"""Seconds of silence after which a warning names a worker. Workers report to the scheduler every
0.5 s to a few seconds, depending on their number, unless a method holds Python's lock."""
MOST_TRIES = 3
"""Failed attempts of the same call after which the run ends. So the fault of one machine does not
end it, and a fault of the method or the data soon does."""
END_S = 1.0
"""Seconds that the end of a run waits for workers, at each of three steps. A longer share ends by
itself or with its process. Until then it writes the same bits to the same place."""
LOST = "the scheduler was lost, and with it what the workers were doing"
"""Message for a lost connection to the scheduler."""


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """Answer of a worker: the value of a function, or its error."""

    value: Any
    """Value of the function; None if it failed."""
    error: MaxslicesError | None
    """Error of the function; None if it succeeded."""
    host: str
    """Name of the worker's machine."""
    took_s: float
    """Duration of the call."""


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A call that has ended."""

    worker: str
    """Address of the worker."""
    name: Any
    """Name that the caller gave the call."""
    answer: WorkerAnswer | None
    """Answer of the worker; None if the worker ended first."""


def sendable(error: MaxslicesError) -> MaxslicesError:
    """Prepare an error for sending; its causes are dropped if they cannot be pickled.

    The frames of its traceback are cleared. They would keep the arrays of the block alive until the
    answer is fetched.
    """
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - exceptions of other packages raise anything
        error.__cause__ = error.__context__ = None
    each: BaseException | None = error
    while each is not None:
        traceback.clear_frames(each.__traceback__)
        each = each.__cause__ or each.__context__
    return error


def answer_call(function: Callable[..., Any], *args: Any) -> WorkerAnswer:
    """Call a function on a worker. Errors of maxslices are answers too, as Dask would log them.

    KeyboardInterrupt and SystemExit come from a method, as Ctrl-C does not reach its thread. They
    are answers as well, because they would end the worker.
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

    A warning names each worker that is silent for `WARN_S` seconds. After the time of
    ``distributed.scheduler.worker-ttl``, Dask drops a silent worker, and restarts it if possible.
    Its call has then ended, as if the worker were killed.
    """

    client: Client
    """The cluster."""
    running: dict[str, tuple[Future[Any], Any]] = field(default_factory=dict)
    """Address of a worker -> its call, and the name of the call."""
    _ready: SimpleQueue[Future[Any]] = field(default_factory=SimpleQueue)
    _info: dict[str, Any] = field(default_factory=dict)
    _looked_s: float = float("-inf")
    _heard: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Address -> time of its last message at the scheduler, and the local time of that change."""
    _named: set[str] = field(default_factory=set)

    def workers(self) -> dict[str, Any]:
        """Address -> the scheduler's facts about each worker, at most a second old.

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
        # `Client.wait_for_workers` would replace the records of a cluster in this process. The
        # cluster then fails when a worker ends (distributed 2026.8).
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
                    "does not answer, or a method holds Python's lock. After Dask's "
                    "distributed.scheduler.worker-ttl (by default 5 minutes) another worker gets "
                    "its slices",
                    stacklevel=2,
                )
        return self._info

    def begin(self, worker: str, name: Any, function: Callable[..., Any], *args: Any) -> None:
        """Start a call on a worker; `ended` returns its name with the answer."""
        with _connected():
            future = self.client.submit(answer_call, function, *args, pure=False, workers=[worker])
            future.add_done_callback(self._ready.put)
        self.running[worker] = future, name

    def ended(self) -> list[EndedCall]:
        """Wait for calls to end, at most `LOOK_S` seconds.

        Raises
        ------
        DeviceError
            If the scheduler is lost, or a function raised an error of another package.
        """
        ready = []
        with suppress(Empty):
            ready.append(self._ready.get(timeout=LOOK_S))
            while True:
                ready.append(self._ready.get_nowait())
        by_key = {future.key: worker for worker, (future, _) in self.running.items()}
        ended = []
        for future in ready:
            if worker := by_key.get(future.key):  # not cancelled before
                _, name = self.running.pop(worker)
                ended.append(EndedCall(worker, name, self._fetched(worker, future)))
        workers = self.workers()
        for worker in [each for each in self.running if each not in workers]:
            future, name = self.running.pop(worker)
            with _connected():
                self.client.cancel([future])
            ended.append(EndedCall(worker, name, None))
        return ended

    def _fetched(self, worker: str, future: Future[Any]) -> WorkerAnswer | None:
        """Answer of a call that has ended; None if it was lost with its worker."""
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
                    text = f"its value cannot be sent: {str(error).splitlines()[-1]}"
                    return WorkerAnswer(None, MethodError(text), host, 0.0)
                if not isinstance(error, TimeoutError):
                    raise DeviceError(f"{LOST} ({type(error).__name__})") from error
        return None

    def give_up(self) -> None:
        """Wait `END_S` seconds for calls to end, and cancel the rest."""
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
    """Convert errors of the connection to the scheduler to a `DeviceError`."""
    try:
        yield
    except (OSError, CancelledError) as error:
        raise DeviceError(f"{LOST} ({type(error).__name__})") from error


def call_on_all(
    client: Client, function: Callable[..., Any], *args: Any, limit_s: float = END_S
) -> None:
    """Call a function on each worker, even during its work; wait at most `limit_s` seconds.

    Errors are ignored, because workers may hang or be gone.
    """

    def call() -> None:
        with suppress(Exception):
            client.run(function, *args, on_error="ignore")

    if client.status != "running":
        return
    thread = threading.Thread(target=call, daemon=True)
    with suppress(RuntimeError):  # no memory for a thread
        thread.start()
        thread.join(limit_s)
