"""Output of a section: copy the results of blocks from the device, and write them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import block_memory
from ...devices import Backend, CopyEngine, DeviceEvent, as_block, is_copyable
from ...devices.in_place import slices_to_copy
from ...io import Sink, Store
from ...system.threads import CALL_S, HANG_S, WorkThread, next_for, next_of, wait_for_event
from ..report.run_timeline import Timeline

Target = Sink | Store
"""Sink of a result, or store for the next section."""


@dataclass(slots=True)
class ResultPiece:
    """Slices of a result in host memory, to be written."""

    data: Any
    """The slices."""
    first: int
    """First of them."""
    result: int
    """First slice of the block's result."""
    targets: Sequence[Target]
    """Where they are written."""
    release: Callable[[], None]
    """Called once they are written or dropped."""
    copied: DeviceEvent | None = None
    """Event after their copy from the device; None if nothing is copied."""


@dataclass(slots=True)
class WrittenMark:
    """A mark in the queue, reached when everything before it is written."""

    start: int
    """First slice of the last result before the mark."""
    reached: Callable[[], object]
    """Called when the mark is reached, unless that result is lost."""


class Writer:
    """Writes pieces in order, in a thread.

    Parameters
    ----------
    slice_dim : int
        Axis of the slices.
    timeline : Timeline
        Records the writes.
    look : callable, optional
        Called with the target and the data of each written piece.
    hang_s : float
        Longest wait for the thread.
    """

    def __init__(
        self,
        slice_dim: int,
        timeline: Timeline,
        look: Callable[[Target, Any], object] = lambda target, data: None,
        hang_s: float = HANG_S,
    ) -> None:
        self._slice_dim, self._timeline, self._look = slice_dim, timeline, look
        self.hang_s = hang_s
        """Longest wait for a thread."""
        self.owner = threading.current_thread()
        """The thread that computes the results."""
        self._pieces: SimpleQueue[ResultPiece | WrittenMark | None] = SimpleQueue()
        self._failing = threading.Lock()
        self._error: BaseException | None = None
        self.lost_from: int | None = None
        """First slice of the first lost result; None if none is lost."""
        self.thread: WorkThread | None = None
        """Its thread, which starts with the first piece."""

    def put(self, piece: ResultPiece | WrittenMark) -> None:
        """Queue a piece, or a mark after all pieces so far."""
        if self.thread is None:
            self.thread = WorkThread(self._work, "writer")
            self.thread.start()
        self._pieces.put(piece)

    def is_lost(self, start: int) -> bool:
        """True if the result that begins with slice `start` is lost because of an error."""
        return self.lost_from is not None and start >= self.lost_from

    def fail(self, start: int, error: BaseException) -> None:
        """Drop the result that begins with slice `start`, and all after it."""
        with self._failing:
            if not self.is_lost(start):
                self.lost_from, self._error = start, error

    def raise_error(self) -> None:
        """Raise the error of the first lost result, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def stop(self) -> None:
        """Wait until all pieces are written, and end the thread."""
        thread, self.thread = self.thread, None
        if thread is not None:
            self._pieces.put(None)
            self.join(thread)

    def join(self, thread: WorkThread) -> None:
        """Wait for the end of a thread. If it failed, all results are lost."""
        try:
            thread.join(self.hang_s)
        except BaseException as error:  # noqa: BLE001 - raised where the next result is put
            self.fail(0, error)

    def _work(self) -> None:
        while (item := next_for(self._pieces, self.owner, CALL_S)) is not None:
            start = item.start if isinstance(item, WrittenMark) else item.result
            try:
                if isinstance(item, ResultPiece) and item.copied is not None:
                    item.copied.synchronize()
                if not self.is_lost(start):
                    item.reached() if isinstance(item, WrittenMark) else self._write(item)
            except BaseException as error:  # noqa: BLE001 - raised where the next result is put
                self.fail(start, error)
            release = None if isinstance(item, WrittenMark) else item.release
            del item
            if release is not None:
                release()

    def _write(self, piece: ResultPiece) -> None:
        began = time.perf_counter()
        for target in piece.targets:
            target.write(self._slice_dim, piece.first, piece.data)
            self._look(target, piece.data)
        self._timeline.add("write", began, time.perf_counter(), int(piece.data.nbytes))


@dataclass(slots=True)
class _PendingResult:
    """A result to be copied from a device."""

    data: Any
    start: int
    """First of its slices."""
    target: Target
    ready: DeviceEvent
    """Event after its computation."""
    waits: bool
    """Whether the computation waits for the copy."""
    left: threading.Event
    """Set when all of it is copied."""


@dataclass(slots=True)
class _StagingPool:
    """Pieces of staging memory of one size, allocated on demand."""

    free: SimpleQueue[NDArray[np.uint8]] = field(default_factory=SimpleQueue)
    n_made: int = 0


class ResultQueue:
    """Copies and writes results of blocks while the next blocks are computed.

    One result at a time is copied from the device. If its target is pinned memory, that takes one
    copy. Otherwise it passes through pieces of staging memory, which are reused once written.

    Parameters
    ----------
    slice_dim : int
        Axis of the slices.
    backend : Backend
        The device.
    timeline : Timeline
        Records copies and writes.
    most_slices : int
        Slices of the largest result.
    overlaps : bool
        Whether results are copied and written while blocks are computed.
    is_shared : bool
        Whether other processes write blocks of the same results.
    look : callable
        Called with each target and the data written to it.
    hang_s : float
        Longest wait for a thread.
    """

    def __init__(
        self,
        slice_dim: int,
        backend: Backend,
        timeline: Timeline,
        *,
        most_slices: int,
        overlaps: bool,
        is_shared: bool = False,
        look: Callable[[Target, Any], object] = lambda target, data: None,
        hang_s: float = HANG_S,
    ) -> None:
        self._slice_dim, self._backend, self._timeline = slice_dim, backend, timeline
        self._engine = backend.copy_engine()
        self._overlaps = overlaps
        self._leaving: deque[tuple[Any, DeviceEvent | threading.Event]] = deque()
        self._writer, self._hang_s = Writer(slice_dim, timeline, look, hang_s), hang_s
        self._staging_for = partial(
            block_memory.result_staging, most_slices, overlaps=overlaps, is_shared=is_shared
        )
        self._staging: dict[int, _StagingPool] = {}
        self._results: SimpleQueue[_PendingResult | WrittenMark | None] = SimpleQueue()
        self._fetcher: WorkThread | None = None
        self._held_bytes = 0

    @property
    def resident_bytes(self) -> int:
        """Bytes on the device of results that are not yet copied."""
        return self._held_bytes if self._leaving else 0

    def put(
        self,
        data: Any,
        start: int,
        targets: Sequence[Target],
        *,
        held_bytes: int = 0,
        waits: bool = False,
    ) -> None:
        """Queue a result, and wait until the previous one is copied.

        Parameters
        ----------
        data : device array
            Slices along `slice_dim`. They must not change until they are copied.
        start : int
            First of them.
        targets : sequence of Target
            Where they are written.
        held_bytes : int
            Bytes of the array that they are part of, for example one with a halo.
        waits : bool
            Whether to return only after the data are copied.

        Raises
        ------
        StoreError
            If an earlier result could not be written.
        """
        self._writer.raise_error()
        if not targets:
            return
        if self._engine is None:
            self._leave_until(0)
            written = threading.Event()
            self._writer.put(ResultPiece(data, start, start, targets, written.set))
            self._leaving.append((data, written))
        else:
            if not is_copyable(data):
                self._leave_until(0)  # frees memory for a contiguous copy
                data = self._backend.contiguous(data)
            ready = self._engine.record()
            for target in targets:
                left = self._send(self._engine, data, start, target, ready, waits)
                self._leaving.append((data, left))
        self._held_bytes = held_bytes
        self._leave_until(0 if waits or not self._overlaps else len(targets))

    def mark(self, start: int, reached: Callable[[], object]) -> None:
        """Call `reached`, in another thread, when all results so far are written.

        Parameters
        ----------
        start : int
            First slice of the last result.
        reached : callable
            Not called if that result, or one before it, could not be written.
        """
        mark = WrittenMark(start, reached)
        if self._engine is None:
            self._writer.put(mark)
        else:
            self._fetch_later(mark)

    def flush(self) -> None:
        """Wait until all results are written.

        Raises
        ------
        StoreError
            If one could not be written.
        """
        self._wait_until(0)
        self._stop()
        self._writer.raise_error()

    def settle(self) -> None:
        """Wait until everything is written that can be; raise nothing."""
        with suppress(RuntimeError):  # a failed device raises it at each call
            self._wait_until(0)
        self._stop()

    @property
    def lost_from(self) -> int | None:
        """First slice of the first lost result, after `settle`; None if none is lost."""
        return self._writer.lost_from

    def close(self) -> None:
        """Wait for copies and writes, and free all memory; a second call does nothing."""
        self._stop()
        with suppress(RuntimeError):  # the device failed, which was raised before
            self._wait_until(0)  # copies end before their memory is freed
        self._leaving.clear()
        self._staging = {}

    def _send(
        self,
        engine: CopyEngine,
        data: Any,
        start: int,
        target: Target,
        ready: DeviceEvent,
        waits: bool,
    ) -> DeviceEvent | threading.Event:
        """Start copying a result to its target, directly or through staging memory."""
        stop = start + data.shape[self._slice_dim]
        place = slices_to_copy(target, engine, self._slice_dim, start, stop)
        if place is None:
            pending = _PendingResult(data, start, target, ready, waits, threading.Event())
            self._fetch_later(pending)
            return pending.left
        begin, end = engine.fetch(data, place, ready)
        self._timeline.add("out", begin, end, int(data.nbytes))
        return end

    def _leave_until(self, count: int) -> None:
        """Wait until at most `count` results are being copied; raise errors of writing."""
        self._wait_until(count)
        self._writer.raise_error()

    def _wait_until(self, count: int) -> None:
        while len(self._leaving) > count:
            _, event = self._leaving.popleft()
            if isinstance(event, threading.Event):
                thread = self._writer.thread if self._engine is None else self._fetcher
                wait_for_event(event, thread, self._hang_s)
            else:
                event.synchronize()

    def _stop(self) -> None:
        thread, self._fetcher = self._fetcher, None
        if thread is not None:
            self._results.put(None)
            self._writer.join(thread)
        self._writer.stop()

    def _fetch_later(self, item: _PendingResult | WrittenMark) -> None:
        """Queue a result or a mark for the fetching thread."""
        if self._fetcher is None:
            self._fetcher = WorkThread(self._work, "fetcher")
            self._fetcher.start()
        self._results.put(item)

    def _work(self) -> None:
        """Copy results to staging memory for the writer; runs in a thread."""
        while (result := next_for(self._results, self._writer.owner, CALL_S)) is not None:
            if isinstance(result, WrittenMark):
                self._writer.put(result)
                continue
            try:
                if not self._writer.is_lost(result.start):
                    self._fetch(result)
            except BaseException as error:  # noqa: BLE001 - raised where the next result is put
                self._writer.fail(result.start, error)
            left = result.left
            del result
            left.set()

    def _fetch(self, result: _PendingResult) -> None:
        """Copy a result to staging memory, and wait for the end of the copies."""
        along, data, engine = self._slice_dim, result.data, self._engine
        assert engine is not None
        n_slices = data.shape[along]
        staging = self._staging_for(int(data.nbytes) // n_slices)
        # If the computation waits, more staging memory is used, so copies do not wait for writes.
        n_most = (staging.most if result.waits else staging.usual).count
        pieces = self._staging.setdefault(staging.usual.n_bytes, _StagingPool())
        last: DeviceEvent | None = None
        for at in range(0, n_slices, staging.n_slices):
            span = slice(at, min(at + staging.n_slices, n_slices))
            part = data[span] if along == 0 else data[:, span]
            usual = pieces.n_made < staging.usual.count
            if usual or (pieces.free.empty() and pieces.n_made < n_most):
                pieces.free.put(engine.staging(staging.usual.n_bytes))
                pieces.n_made += 1
            piece = next_of(pieces.free, self._writer.thread, self._hang_s)
            place = as_block(piece, part.shape, part.dtype)
            begin, last = engine.fetch(part, place, result.ready)
            self._timeline.add("out", begin, last, int(part.nbytes))
            release = partial(pieces.free.put, piece)
            first, targets = result.start + at, [result.target]
            self._writer.put(ResultPiece(place, first, result.start, targets, release, last))
        if last is not None:
            last.synchronize()
