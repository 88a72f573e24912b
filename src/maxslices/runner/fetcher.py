"""A thread that has results copied from a device, piece by piece."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..devices import CopyEngine, DeviceEvent, as_block
from ..model import account
from .writer import Piece, Target, Way, Writer

_PART_BYTES, _PARTS = 2**26, 8
"""Bytes of one copy to a place that needs no slab, and copies that are asked for at one time.

A GPU copies in the order in which it was asked: what a method fetches for itself waits for these,
10 ms at most. Fewer leave gaps between them."""
AT_ONCE_BYTES = _PART_BYTES * _PARTS
"""Bytes of a result that is copied as a whole."""


@dataclass(slots=True)
class _Result:
    """A result on its way from a device."""

    data: Any
    target: Target
    ready: DeviceEvent
    """From when on it is there."""
    waits: bool
    left: threading.Event
    """Tells when all of it has left the device."""
    way: Way
    place: NDArray[Any] | None
    """Where the device can copy it to itself."""


@dataclass(slots=True)
class _Staging:
    """Pieces of staging memory of one size, each made when a piece first asks for one."""

    free: SimpleQueue[NDArray[np.uint8]] = field(default_factory=SimpleQueue)
    n_made: int = 0


class Fetcher:
    """Copies results to their places, or into slabs as these become free for a writer.

    Parameters
    ----------
    slice_dim : int
        Axis of the slices.
    engine : CopyEngine
        Copies.
    writer : Writer
        Writes.
    most_slices : int
        Slices of the largest result.
    overlaps : bool
        Whether results may go while blocks are worked on.
    """

    def __init__(
        self, slice_dim: int, engine: CopyEngine, writer: Writer, most_slices: int, overlaps: bool
    ) -> None:
        self._slice_dim, self._engine, self._writer = slice_dim, engine, writer
        self._most_slices, self._overlaps = most_slices, overlaps
        self._results: SimpleQueue[_Result | None] = SimpleQueue()
        self._staging: dict[int, _Staging] = {}
        self._thread: threading.Thread | None = None

    def put(
        self,
        data: Any,
        target: Target,
        ready: DeviceEvent,
        way: Way,
        waits: bool,
        place: NDArray[Any] | None = None,
    ) -> threading.Event:
        """Have a result copied and written after those before it; return what tells it has left.

        Parameters
        ----------
        data : device array
            Slices along `slice_dim`, without gaps but along the first axis.
        target : Target
            Where they go.
        ready : DeviceEvent
            From when on they are there.
        way : Way
            Is told what was copied.
        waits : bool
            Whether nothing is computed until they have left.
        place : array, optional
            Where they go, if the device can copy them there.
        """
        left = threading.Event()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name="maxslices fetcher", daemon=True
            )
            self._thread.start()
        self._results.put(_Result(data, target, ready, waits, left, way, place))
        return left

    def stop(self) -> None:
        """Return when all has left the device, and is at least in slabs."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._results.put(None)
            thread.join()

    def close(self) -> None:
        """Free all staging memory, once it and its writer have stopped."""
        self._staging = {}

    def _work(self) -> None:
        while (result := self._results.get()) is not None:
            try:
                if result.place is not None:
                    self._copy(result, result.place)
                elif not self._writer.is_lost(result.way.start):
                    self._fetch(result)
            except BaseException as error:  # noqa: BLE001 - raised where the next result is put
                self._writer.fail(result.way.start, error)
            left = result.left
            del result
            left.set()

    def _copy(self, result: _Result, place: NDArray[Any]) -> None:
        """Copy a result to its place; return when it has left the device."""
        data, way = result.data, result.way
        n_rows = len(data)
        step = max(1, _PART_BYTES * n_rows // int(data.nbytes))
        copies: list[tuple[DeviceEvent, DeviceEvent]] = []
        for at in range(0, n_rows, step):
            if len(copies) >= _PARTS:
                copies[-_PARTS][1].synchronize()
            part = slice(at, at + step)
            copies.append(self._engine.fetch(data[part], place[part], result.ready))
        (begin, _), (_, end) = copies[0], copies[-1]
        stop = way.start + data.shape[self._slice_dim]
        way.copies.append((way.start, stop, int(data.nbytes), begin, end))
        end.synchronize()

    def _fetch(self, result: _Result) -> None:
        """Copy a result to staging memory; return when it has left the device."""
        along, data = self._slice_dim, result.data
        n_slices = data.shape[along]
        staging = account.result_staging(
            self._most_slices, int(data.nbytes) // n_slices, overlaps=self._overlaps
        )
        # Where nothing may be computed until all has left, it need not wait to be written.
        n_most = (staging.most if result.waits else staging.usual).count
        pieces = self._staging.setdefault(staging.usual.n_bytes, _Staging())
        last: DeviceEvent | None = None
        for at in range(0, n_slices, staging.n_slices):
            span = slice(at, min(at + staging.n_slices, n_slices))
            part = data[span] if along == 0 else data[:, span]
            usual = pieces.n_made < staging.usual.count
            if usual or (pieces.free.empty() and pieces.n_made < n_most):
                pieces.free.put(self._engine.staging(staging.usual.n_bytes))
                pieces.n_made += 1
            piece = pieces.free.get()
            place = as_block(piece, part.shape, part.dtype)
            begin, last = self._engine.fetch(part, place, result.ready)
            first, stop = result.way.start + at, result.way.start + span.stop
            result.way.copies.append((first, stop, int(part.nbytes), begin, last))
            let_go = partial(pieces.free.put, piece)
            self._writer.put(Piece(place, first, [result.target], result.way, let_go, last))
        if last is not None:
            last.synchronize()
