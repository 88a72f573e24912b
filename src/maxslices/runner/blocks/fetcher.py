"""A thread that copies results from a device, piece by piece."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import block_memory
from ...devices import CopyEngine, DeviceEvent, as_block
from ...system.threads import CALL_S, WorkThread, next_for, wait_for_event
from ..report.run_timeline import Timeline
from .writer import ResultPiece, Target, Writer, WrittenMark


@dataclass(slots=True)
class _PendingResult:
    """A result that waits to be copied from a device."""

    data: Any
    start: int
    """First of its slices."""
    target: Target
    ready: DeviceEvent
    """Reached when the result is computed."""
    waits: bool
    """Whether computing waits for the copy."""
    left: threading.Event
    """Set when all of it has left the device."""


@dataclass(slots=True)
class _StagingPool:
    """Pieces of staging memory of one size, allocated when first needed."""

    free: SimpleQueue[NDArray[np.uint8]] = field(default_factory=SimpleQueue)
    n_made: int = 0


class Fetcher:
    """Copies results to staging memory, from which a writer writes them.

    Parameters
    ----------
    slice_dim : int
        Axis of the slices.
    engine : CopyEngine
        Copies from the device.
    timeline : Timeline
        Records the copies.
    writer : Writer
        Writes what was copied.
    most_slices : int
        Slices of the largest result.
    overlaps : bool
        Whether results are copied while blocks are computed.
    is_shared : bool
        Whether other processes write other blocks of the same results.
    """

    def __init__(
        self,
        slice_dim: int,
        engine: CopyEngine,
        timeline: Timeline,
        writer: Writer,
        most_slices: int,
        *,
        overlaps: bool,
        is_shared: bool = False,
    ) -> None:
        self._slice_dim, self._engine, self._timeline = slice_dim, engine, timeline
        self._writer = writer
        self._staging_for = partial(
            block_memory.result_staging, most_slices, overlaps=overlaps, is_shared=is_shared
        )
        self._results: SimpleQueue[_PendingResult | WrittenMark | None] = SimpleQueue()
        self._staging: dict[int, _StagingPool] = {}
        self._thread: WorkThread | None = None

    def put(
        self, data: Any, start: int, target: Target, ready: DeviceEvent, *, waits: bool
    ) -> threading.Event:
        """Queue a result; the event is set when it has left the device.

        Parameters
        ----------
        data : device array
            Slices along `slice_dim`, contiguous except along the first axis.
        start : int
            First of them.
        target : Target
            Where they go.
        ready : DeviceEvent
            Reached when they are computed.
        waits : bool
            Whether computing waits until they have left.
        """
        left = threading.Event()
        self._queue(_PendingResult(data, start, target, ready, waits, left))
        return left

    def put_mark(self, mark: WrittenMark) -> None:
        """Queue a mark, which the writer reaches when all results so far are written."""
        self._queue(mark)

    def _queue(self, item: _PendingResult | WrittenMark) -> None:
        if self._thread is None:
            self._thread = WorkThread(self._work, "fetcher")
            self._thread.start()
        self._results.put(item)

    def stop(self) -> None:
        """Wait until all results have left the device, and end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._results.put(None)
            self._writer.join(thread)

    def wait_for(self, left: threading.Event) -> None:
        """Wait until a result has left the device, or the thread has broken off."""
        wait_for_event(left, self._thread, self._writer.hang_s)

    def close(self) -> None:
        """Free all staging memory; fetcher and writer have stopped."""
        self._staging = {}

    def _work(self) -> None:
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
        """Copy a result to staging memory, and wait until it has left the device."""
        along, data = self._slice_dim, result.data
        n_slices = data.shape[along]
        staging = self._staging_for(int(data.nbytes) // n_slices)
        # If computing waits for the copies, more staging memory keeps them from waiting for writes.
        n_most = (staging.most if result.waits else staging.usual).count
        pieces = self._staging.setdefault(staging.usual.n_bytes, _StagingPool())
        last: DeviceEvent | None = None
        for at in range(0, n_slices, staging.n_slices):
            span = slice(at, min(at + staging.n_slices, n_slices))
            part = data[span] if along == 0 else data[:, span]
            usual = pieces.n_made < staging.usual.count
            if usual or (pieces.free.empty() and pieces.n_made < n_most):
                pieces.free.put(self._engine.staging(staging.usual.n_bytes))
                pieces.n_made += 1
            piece = self._writer.next_released(pieces.free)
            place = as_block(piece, part.shape, part.dtype)
            begin, last = self._engine.fetch(part, place, result.ready)
            self._timeline.add("out", begin, last, int(part.nbytes))
            release = partial(pieces.free.put, piece)
            first, targets = result.start + at, [result.target]
            self._writer.put(ResultPiece(place, first, result.start, targets, release, last))
        if last is not None:
            last.synchronize()
