"""Deals shares of a section's slices out to workers, a bounded number at a time."""

from __future__ import annotations

import pickle
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError, MaxslicesError, MethodError, PlanError
from ..system.process_state import warn_in_one_line
from .section_job import Share
from .share_sizes import MOST_BLOCKS, ShareSizes
from .watch import END_S, WorkerWatch

if TYPE_CHECKING:
    from distributed import Client, Future

MOST_TRIES = 3
"""How often a share may fail, each time on another worker where there is one, before the run ends:
a fault of one machine does not end it, and one of the method or the data does soon."""
LOOK_S = 1.0
"""Seconds between two looks at which workers there are."""
NO_WORKER_S = 120.0
"""Seconds without any worker after which the run ends. A killed one is back after two, or after 20
if its nanny gave up (see `local_client`); the journal keeps what is done for later."""
LOST = "the scheduler was lost, and with it what the workers were doing"
"""Message where nothing comes from the scheduler any more."""


@dataclass(frozen=True, slots=True)
class ShareAnswer:
    """What a worker answers to a share."""

    value: Any
    """What was asked for; None if it failed."""
    error: MaxslicesError | None
    """Why it failed; None if it did not."""
    worker: str
    """Address of the worker."""
    host: str
    """Name of its machine."""
    took_s: float
    """Seconds that it took."""


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


def told(function: Callable[..., Any], *args: Any) -> Any:
    """What a function returns on a worker, or the error of ours that it raises.

    Dask would log the error. What the function does is kept out of Dask's profile.
    """
    warn_in_one_line()
    try:
        with unprofiled():
            return function(*args)
    except MaxslicesError as error:
        return sendable(error)


def answer(work: Callable[[Any, Share], Any], job: Any, share: Share) -> ShareAnswer:
    """Do the work of a share on a worker; an error of ours is an answer as well.

    So is what would end the worker, if a method raises it: Ctrl-C never comes to its thread.
    """
    import socket

    from distributed import get_worker

    began_s = time.perf_counter()
    try:
        found = told(work, job, share)
    except (KeyboardInterrupt, SystemExit) as raised:
        found = MethodError(f"a method raised {type(raised).__name__}")
    took_s = time.perf_counter() - began_s
    value, error = (None, found) if isinstance(found, MaxslicesError) else (found, None)
    return ShareAnswer(value, error, get_worker().address, socket.gethostname(), took_s)


@dataclass(slots=True)
class Dealer:
    """Deals shares out to the workers of a cluster, and takes their answers as they come.

    As many shares are with the scheduler as there are workers, so that its memory does not grow
    with the number of blocks. Where workers are killed over and over, Dask names all shares that
    these had, also those that only waited there. Each of them is then done with no other one
    beside it, which tells the guilty one.
    """

    client: Client
    """The cluster."""
    resources: Mapping[str, float]
    """What a worker must have, such as ``{"GPU": 1}``."""
    unit: str = "slice"
    """What the slices are, for messages."""
    most_blocks: int = MOST_BLOCKS
    """Most blocks of a share."""
    stop_work: Callable[[], None] = lambda: None
    """Has shares that are being worked on end soon."""
    _sizes: ShareSizes = field(default_factory=ShareSizes)
    """Sizes of the shares of this section, of which nothing is known before."""
    _running: dict[Any, tuple[Future[Any], Share]] = field(default_factory=dict)
    _again: deque[Share] = field(default_factory=deque)
    _suspects: deque[Share] = field(default_factory=deque)
    """Shares that workers were killed over; each is done alone."""
    _failed: dict[Share, list[ShareAnswer]] = field(default_factory=dict)
    _ready: SimpleQueue[Future[Any]] = field(default_factory=SimpleQueue)
    _workers: list[str] = field(default_factory=list)
    _free: deque[str] = field(default_factory=deque)
    """Workers that have answered, and were given no other share since."""
    _watch: WorkerWatch = field(init=False)
    _looked_s: float = float("-inf")
    _seen_s: float = 0.0

    def __post_init__(self) -> None:
        self._watch = WorkerWatch(self.client)

    def once(self, work: Callable[[Any, Share], Any], job: Any, share: Share) -> ShareAnswer:
        """Have one share done, on any worker."""
        block = share.stop - share.start
        (found,) = self.deal(work, job, [range(share.start, share.stop)], block)
        return found[1]

    def deal(
        self, work: Callable[[Any, Share], Any], job: Any, parts: Sequence[range], block: int
    ) -> Generator[tuple[Share, ShareAnswer], None, None]:
        """Deal out slices, and yield each share when it is done, in any order.

        Parameters
        ----------
        work : callable
            Called on a worker with the job and a `Share`; it may be called again for a share that
            was done, if the answer is lost.
        job : object
            What it is called with.
        parts : sequence of range
            Intervals of slices, in order.
        block : int
            Slices in a block: shares are of whole ones.

        Raises
        ------
        MethodError
            If a share failed `MOST_TRIES` times.
        PlanError
            If a worker differs from what the plan was made for.
        DeviceError
            If there is no worker, or the scheduler is lost.
        """
        self._seen_s = time.monotonic()
        self._sizes = ShareSizes(self.most_blocks)
        try:
            left = deque(parts)
            while left or self._again or self._suspects or self._running:
                while len(self._running) < self._most_running():
                    worker = self._free.popleft() if self._free else None
                    if self._suspects:
                        share = self._suspects[0]
                    elif self._again:
                        share = self._again.popleft()
                    elif left:
                        n_left, now_s = sum(-(-len(p) // block) for p in left), time.monotonic()
                        n = self._sizes.next_blocks(n_left, worker, self._workers, now_s)
                        part = left.popleft()
                        share = Share(part.start, min(part.stop, part.start + n * block))
                        if share.stop < part.stop:
                            left.appendleft(range(share.stop, part.stop))
                    else:
                        break
                    key = self._submit(work, job, share)
                    n_blocks = -(-(share.stop - share.start) // block)
                    self._sizes.begin(key, worker, n_blocks, time.monotonic())
                yield from self._answers()
        except (OSError, CancelledError) as error:  # of the connection, at any call
            raise DeviceError(f"{LOST} ({type(error).__name__})") from error
        except BaseException:
            self._end()
            raise

    def _most_running(self) -> int:
        """Shares that may be with the scheduler: as many as workers, but a suspect alone."""
        if self._suspects:
            return 0 if self._running else 1
        return max(1, len(self._workers_now()))

    def _submit(self, work: Callable[[Any, Share], Any], job: Any, share: Share) -> Any:
        # The job goes with each share, some 10 kB: as a task of its own it could be lost with
        # workers that are killed, and all shares with it.
        tried = {each.worker for each in self._failed.get(share, ())}
        others = [address for address in self._workers if address not in tried]
        future = self.client.submit(
            answer,
            work,
            job,
            share,
            pure=False,
            resources=dict(self.resources) or None,
            workers=others if tried and others else None,
            allow_other_workers=bool(tried and others),
        )
        self._running[future.key] = future, share
        future.add_done_callback(self._ready.put)
        return future.key

    def _answers(self) -> list[tuple[Share, ShareAnswer]]:
        """Wait for answers; those of shares that are done."""
        try:
            ready = [self._ready.get(timeout=LOOK_S)]
        except Empty:
            self._check_cluster()
            return []
        while not self._ready.empty():
            ready.append(self._ready.get())
        shares = [self._running.pop(future.key)[1] for future in ready]
        self._seen_s = time.monotonic()
        found = []
        answers = self._gathered(ready, shares)
        for future, share, each in zip(ready, shares, answers, strict=True):
            if each is None:
                self._sizes.end(future.key, None, 0.0)
                continue
            self._free.append(each.worker)
            is_done = each.error is None
            self._sizes.end(future.key, each.worker if is_done else None, each.took_s)
            if share in self._suspects:
                self._suspects.remove(share)
            if each.error is None:
                found.append((share, each))
            else:
                self._fail(share, each)
        return found

    def _gathered(self, ready: list[Future[Any]], shares: list[Share]) -> list[ShareAnswer | None]:
        """Answers of futures; None for a share that becomes a suspect."""
        from distributed import KilledWorker

        good = [future for future in ready if future.status == "finished"]
        try:
            found = [self._fetched(future) for future in good]
        except KilledWorker:  # an answer was lost with its worker, and so were those that redid it
            return self._gathered(ready, shares)
        except TypeError as unsent:  # Dask's own error, with the worker's traceback as its text
            named = ", ".join(self._named(share) for share in shares)
            reason = str(unsent).splitlines()[-1]
            raise MethodError(
                f"side results of {named} cannot be sent by the worker that found them: {reason}"
            ) from None
        answers = dict(zip([f.key for f in good], found, strict=True))
        for future, share in zip(ready, shares, strict=True):
            if future.key in answers:
                continue
            if future.status != "error":  # cancelled, or lost
                raise DeviceError(LOST)
            error = future.exception()
            if not isinstance(error, KilledWorker):
                raise MethodError(
                    f"{self._named(share)} failed on a worker: {type(error).__name__}: {error}"
                ) from error
            if share in self._suspects:
                raise MethodError(
                    f"{self._named(share)}: each of {error.allowed_failures + 1} workers that "
                    f"worked on it alone was killed, the last one {error.last_worker.address}: by "
                    "the system if memory ran out, or by a fault of a library"
                )
            self._suspects.append(share)
        return [answers.get(future.key) for future in ready]

    def _fetched(self, future: Future[Any]) -> Any:
        """Fetch an answer from its worker, as long as that is there."""
        while True:
            try:
                return future.result(timeout=LOOK_S)
            except TimeoutError:
                self._check_cluster()

    def _fail(self, share: Share, failed: ShareAnswer) -> None:
        """Have a share done again, or end."""
        assert failed.error is not None
        if isinstance(failed.error, PlanError):
            raise failed.error
        answers = self._failed.setdefault(share, [])
        answers.append(failed)
        if len(answers) >= MOST_TRIES:
            where = ", ".join(f"{each.worker} on {each.host}" for each in answers)
            raise MethodError(
                f"{self._named(share)} failed {len(answers)} times, on {where}: {failed.error}"
            ) from failed.error
        self._again.append(share)

    def _named(self, share: Share) -> str:
        if share.stop - share.start == 1:
            return f"{self.unit} {share.start}"
        return f"{self.unit}s {share.start} to {share.stop - 1}"

    def _workers_now(self) -> list[str]:
        """Addresses of the workers that can take shares, as of a second ago."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S and self._workers:
            return self._workers
        self._looked_s = now_s
        info = self._watch.look()
        self._workers = [
            address
            for address, each in info.items()
            if all(each["resources"].get(name, 0) >= n for name, n in self.resources.items())
        ]
        return self._workers

    def _check_cluster(self) -> None:
        """End if nothing can come any more."""
        if self.client.status != "running":
            raise DeviceError(LOST)
        if self._workers_now():
            self._seen_s = time.monotonic()
        elif time.monotonic() - self._seen_s > NO_WORKER_S:
            wanted = f" with the resource {', '.join(self.resources)}" if self.resources else ""
            raise DeviceError(f"there has been no worker{wanted} for {NO_WORKER_S:.0f} s")

    def _end(self) -> None:
        """Take back what no worker has begun, and wait for what is being worked on."""
        if self.client.status != "running" or not self._running:
            return
        self.stop_work()
        until_s = time.monotonic() + END_S
        while self._running and time.monotonic() < until_s:
            with suppress(Empty):
                self._running.pop(self._ready.get(timeout=END_S).key)
        with suppress(OSError):
            self.client.cancel([future for future, _ in self._running.values()])
        self._running.clear()
