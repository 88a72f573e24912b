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
from ...system.threads import WorkThread, wait_for
from .writer import ResultPiece, ResultTransfer, Target, Writer, WrittenMark

_PART_BYTES, _PARTS = 2**26, 8
"""Bytes of one copy to pinned memory, and the number of copies that are queued at one time.

A GPU makes copies in the order in which they are queued, so a copy that a method asks for waits for
these: 10 ms at most. LPRec3d takes 7 % longer beside them, and 18 % beside copies of whole results;
with four at a time the link had gaps of 5 ms in 200 (H200, 2026-11-21). Without parts httomo's
pipeline takes 3.2 % longer (H200, 2026-11-22)."""
AT_ONCE_BYTES = _PART_BYTES * _PARTS
"""Largest result that is copied as a whole."""


@dataclass(slots=True)
class _PendingResult:
    """A result that waits to be copied from a device."""

    data: Any
    target: Target
    ready: DeviceEvent
    """Reached when the result is computed."""
    waits: bool
    """Whether computing waits for the copy."""
    left: threading.Event
    """Set when all of it has left the device."""
    transfer: ResultTransfer
    place: NDArray[Any] | None
    """Pinned memory that it is copied to; None if it passes through staging memory."""


@dataclass(slots=True)
class _StagingPool:
    """Pieces of staging memory of one size, allocated when first needed."""

    free: SimpleQueue[NDArray[np.uint8]] = field(default_factory=SimpleQueue)
    n_made: int = 0


class Fetcher:
    """Copies results to pinned memory, or to staging memory from which a writer writes them.

    Parameters
    ----------
    slice_dim : int
        Axis of the slices.
    engine : CopyEngine
        Copies from the device.
    writer : Writer
        Writes what was copied to staging memory.
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
        writer: Writer,
        most_slices: int,
        *,
        overlaps: bool,
        is_shared: bool = False,
    ) -> None:
        self._slice_dim, self._engine, self._writer = slice_dim, engine, writer
        self._staging_for = partial(
            block_memory.result_staging, most_slices, overlaps=overlaps, is_shared=is_shared
        )
        self._results: SimpleQueue[_PendingResult | WrittenMark | None] = SimpleQueue()
        self._staging: dict[int, _StagingPool] = {}
        self._thread: WorkThread | None = None

    def put(
        self,
        data: Any,
        target: Target,
        ready: DeviceEvent,
        transfer: ResultTransfer,
        waits: bool,
        place: NDArray[Any] | None = None,
    ) -> threading.Event:
        """Queue a result; the event is set when it has left the device.

        Parameters
        ----------
        data : device array
            Slices along `slice_dim`, contiguous except along the first axis.
        target : Target
            Where they go.
        ready : DeviceEvent
            Reached when they are computed.
        transfer : ResultTransfer
            Records the copies.
        waits : bool
            Whether computing waits until they have left.
        place : array, optional
            Pinned memory to copy them to.
        """
        left = threading.Event()
        self._queue(_PendingResult(data, target, ready, waits, left, transfer, place))
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
        wait_for(left, self._thread)

    def close(self) -> None:
        """Free all staging memory; fetcher and writer have stopped."""
        self._staging = {}

    def _work(self) -> None:
        while (result := self._results.get()) is not None:
            if isinstance(result, WrittenMark):
                self._writer.put(result)
                continue
            try:
                if result.place is not None:
                    self._copy(result, result.place)
                elif not self._writer.is_lost(result.transfer.start):
                    self._fetch(result)
            except BaseException as error:  # noqa: BLE001 - raised where the next result is put
                self._writer.fail(result.transfer.start, error)
            left = result.left
            del result
            left.set()

    def _copy(self, result: _PendingResult, place: NDArray[Any]) -> None:
        """Copy a result to its place, and wait until it has left the device."""
        data, transfer = result.data, result.transfer
        n_rows = len(data)
        step = max(1, _PART_BYTES * n_rows // int(data.nbytes))
        copies: list[tuple[DeviceEvent, DeviceEvent]] = []
        for at in range(0, n_rows, step):
            if len(copies) >= _PARTS:
                copies[-_PARTS][1].synchronize()
            part = slice(at, at + step)
            copies.append(self._engine.fetch(data[part], place[part], result.ready))
        (begin, _), (_, end) = copies[0], copies[-1]
        stop = transfer.start + data.shape[self._slice_dim]
        transfer.copies.append((transfer.start, stop, int(data.nbytes), begin, end))
        end.synchronize()

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
            first, stop = result.transfer.start + at, result.transfer.start + span.stop
            result.transfer.copies.append((first, stop, int(part.nbytes), begin, last))
            release = partial(pieces.free.put, piece)
            self._writer.put(
                ResultPiece(place, first, [result.target], result.transfer, release, last)
            )
        if last is not None:
            last.synchronize()
