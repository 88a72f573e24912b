"""Results on their way from the device, each behind the block that is worked on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..arrays import ArraySpec
from ..backends import Backend, Link, Mark, as_block, is_copyable
from .timeline import Timeline


class Target(Protocol):
    """Where slices are written: a result, or what the next section reads."""

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the whole."""
        ...

    def write(self, slice_dim: int, start: int, block: Any) -> None:
        """Write a block whose first slice along `slice_dim` is `start`."""


_PIECE_BYTES = 2**28
"""Bytes of a result that are in one slab: enough for all threads to write at full speed, and
so few that to pin some slabs takes no time and writing begins soon."""


@dataclass(slots=True)
class _Result:
    """A result on its way from a device."""

    data: Any
    start: int
    target: Target
    ready: Mark
    """From when on it is there."""
    n_slabs: int
    """Most slabs that it may take."""
    left: threading.Event
    """Tells when all of it has left the device."""
    way: _Way


@dataclass(slots=True)
class _Piece:
    """Slices of a result in host memory, to be written."""

    data: Any
    first: int
    start: int
    """Of the result that they are part of."""
    targets: Sequence[Target]
    way: _Way
    slab: NDArray[np.uint8] | None = None
    end: Mark | None = None
    """From when on they are in the slab."""
    left: threading.Event | None = None
    """Is set when the data are no longer needed where they come from."""


@dataclass(slots=True)
class _Way:
    """How long the stages of a result's way took."""

    copies: list[tuple[int, int, int, Mark, Mark]] = field(default_factory=list)
    written_s: float = 0.0


class Drain:
    """Takes results of blocks, and has them copied and written while the next are made.

    One result at a time is on its way from the device. It leaves in pieces, each in a slab,
    which is free again when it is written; unless the device can copy to its place itself.

    Parameters
    ----------
    slice_dim : int
        Axis of the slices.
    backend : Backend
        The device.
    timeline : Timeline
        Is told what was copied and written.
    overlaps : bool
        Whether results may go while blocks are worked on.
    """

    def __init__(
        self, slice_dim: int, backend: Backend, timeline: Timeline, *, overlaps: bool
    ) -> None:
        self._slice_dim, self._backend, self._timeline = slice_dim, backend, timeline
        self._link = backend.link()
        self._overlaps = overlaps
        self._leaving: deque[tuple[Any, Mark | threading.Event]] = deque()
        self._ways: list[_Way] = []
        self._slabs: dict[int, SimpleQueue[NDArray[np.uint8]]] = {}
        self._n_slabs: dict[int, int] = {}
        self._results: SimpleQueue[_Result | None] = SimpleQueue()
        self._pieces: SimpleQueue[_Piece | None] = SimpleQueue()
        self._failing = threading.Lock()
        self._error: BaseException | None = None
        self._lost_from: int | None = None
        self._held_bytes = 0
        self._threads: list[threading.Thread] = []

    @property
    def resident_bytes(self) -> int:
        """Return the bytes of results that are on their way, on the device."""
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
        """Send a result on its way.

        Parameters
        ----------
        data : device array
            Slices along `slice_dim`, which nobody writes to until they have left.
        start : int
            The first of them.
        targets : sequence of Target
            Where they go.
        held_bytes : int
            Memory of the array that they are part of, such as one with a halo.
        waits : bool
            Whether to return only when the data may be written to again.

        Raises
        ------
        StoreError
            If an earlier result could not be written.
        """
        self._raise_error()
        if not targets:
            return
        way = _Way()
        self._ways.append(way)
        if self._link is None:
            self._leave_until(0)
            written = threading.Event()
            self._begin()
            self._pieces.put(_Piece(data, start, start, targets, way, left=written))
            self._leaving.append((data, written))
        else:
            if not is_copyable(data):
                self._leave_until(0)  # a copy takes the place of the result that was leaving
                data = self._backend.contiguous(data)
            ready = self._link.mark()
            for target in targets:
                leaving = self._send(self._link, data, start, target, ready, way, waits)
                self._leaving.append((data, leaving))
        self._held_bytes = held_bytes
        self._leave_until(0 if waits or not self._overlaps else len(targets))

    def flush(self) -> None:
        """Wait until all is written.

        Raises
        ------
        StoreError
            If something could not be.
        """
        self._wait_until(0)
        self._stop()
        self._raise_error()

    def settle(self) -> None:
        """Wait until all is written that can be, and raise nothing."""
        with suppress(RuntimeError):  # a device that failed says so again at each call
            self._wait_until(0)
        self._stop()

    @property
    def lost_from(self) -> int | None:
        """Return the first slice of those that could not be written, once settled."""
        return self._lost_from

    def took_s(self, number: int) -> float:
        """Return how long the slowest stage of a result's way took, once it has left."""
        if not 0 <= number < len(self._ways):
            return 0.0
        way = self._ways[number]
        copied_s = sum(end.time_s() - begin.time_s() for *_, begin, end in way.copies)
        return max(copied_s, way.written_s)

    def close(self) -> None:
        """Wait for what is under way, and free all memory; a second call does nothing."""
        self._stop()
        with suppress(RuntimeError):  # of a device that failed, which was said before
            # What is leaving stays until its copy, which is one of these, has ended.
            for start, stop, n_bytes, begin, end in (c for way in self._ways for c in way.copies):
                end.synchronize()
                self._timeline.add("out", begin.time_s(), end.time_s(), start, stop, n_bytes)
        self._leaving.clear()
        self._ways = []
        self._slabs = {}

    def _send(
        self,
        link: Link,
        data: Any,
        start: int,
        target: Target,
        ready: Mark,
        way: _Way,
        waits: bool,
    ) -> Mark | threading.Event:
        """Begin to copy a result to its place, or have it go there through slabs."""
        stop = start + data.shape[self._slice_dim]
        window = getattr(target, "window", None)
        place = None if window is None else window(self._slice_dim, start, stop)
        if place is not None and is_copyable(place) and link.is_direct(place):
            begin, end = link.fetch(data, place, ready)
            way.copies.append((start, stop, int(data.nbytes), begin, end))
            return end
        # Who waits until it has left must not wait for all of it to be written.
        n_slabs = 3 if self._overlaps else 2
        if waits:
            n_slabs = max(n_slabs, len(self._spans(data)) + 1)
        left = threading.Event()
        self._begin()
        self._results.put(_Result(data, start, target, ready, n_slabs, left, way))
        return left

    def _spans(self, data: Any) -> list[slice]:
        """Return the slices that each piece of a result has, all but the last as many."""
        n_slices = data.shape[self._slice_dim]
        n_pieces = max(2, -(-int(data.nbytes) // _PIECE_BYTES))
        step = -(-n_slices // n_pieces)
        return [slice(at, min(at + step, n_slices)) for at in range(0, n_slices, step)]

    def _begin(self) -> None:
        """Start the threads."""
        if self._threads:
            return
        work = {"writer": self._write_pieces}
        if self._link is not None:
            work["fetcher"] = partial(self._fetch_results, self._link)
        self._threads = [
            threading.Thread(target=target, name=f"maxslices {name}", daemon=True)
            for name, target in work.items()
        ]
        for thread in self._threads:
            thread.start()

    def _fetch_results(self, link: Link) -> None:
        while (result := self._results.get()) is not None:
            try:
                if not self._is_lost(result.start):
                    self._fetch(link, result)
            except BaseException as error:  # noqa: BLE001 - raised where the next result is put
                self._fail(result.start, error)
            result.left.set()
            del result
        self._pieces.put(None)

    def _fetch(self, link: Link, result: _Result) -> None:
        """Copy a result to slabs as they become free; return when it has left the device."""
        along = self._slice_dim
        spans = self._spans(result.data)
        last: Mark | None = None
        for span in spans:
            data = result.data[span] if along == 0 else result.data[:, span]
            first, n_bytes = result.start + span.start, int(data.nbytes)
            slab = self._slab(link, n_bytes, result.n_slabs)
            place = as_block(slab, data.shape, data.dtype)
            begin, last = link.fetch(data, place, result.ready)
            result.way.copies.append((first, result.start + span.stop, n_bytes, begin, last))
            self._pieces.put(
                _Piece(place, first, result.start, [result.target], result.way, slab, last)
            )
        if last is not None:
            last.synchronize()

    def _slab(self, link: Link, n_bytes: int, limit: int) -> NDArray[np.uint8]:
        """Return a slab that is free, of those for this size; the first few are made."""
        key = min((size for size in self._slabs if size >= n_bytes), default=n_bytes)
        free = self._slabs.setdefault(key, SimpleQueue())
        if free.empty() and self._n_slabs.get(key, 0) < limit:
            slab = link.slab(key)
            self._n_slabs[key] = self._n_slabs.get(key, 0) + 1
            return slab
        return free.get()

    def _write_pieces(self) -> None:
        while (piece := self._pieces.get()) is not None:
            try:
                if piece.end is not None:
                    piece.end.synchronize()
                if not self._is_lost(piece.start):
                    self._write(piece)
            except BaseException as error:  # noqa: BLE001 - raised where the next result is put
                self._fail(piece.start, error)
            if piece.slab is not None:
                self._slabs[piece.slab.size].put(piece.slab)
            left = piece.left
            del piece
            if left is not None:
                left.set()

    def _write(self, piece: _Piece) -> None:
        began = time.perf_counter()
        for target in piece.targets:
            target.write(self._slice_dim, piece.first, piece.data)
        ended, stop = time.perf_counter(), piece.first + piece.data.shape[self._slice_dim]
        piece.way.written_s += ended - began
        self._timeline.add("write", began, ended, piece.first, stop, int(piece.data.nbytes))

    def _is_lost(self, start: int) -> bool:
        return self._lost_from is not None and start >= self._lost_from

    def _fail(self, start: int, error: BaseException) -> None:
        """Note that a result could not be written: all before it will be, none after it."""
        with self._failing:
            if not self._is_lost(start):
                self._lost_from, self._error = start, error

    def _leave_until(self, count: int) -> None:
        """Wait until no more than `count` results are on their way from the device."""
        self._wait_until(count)
        self._raise_error()

    def _wait_until(self, count: int) -> None:
        while len(self._leaving) > count:
            _, mark = self._leaving.popleft()
            if isinstance(mark, threading.Event):
                mark.wait()
            else:
                mark.synchronize()

    def _stop(self) -> None:
        running, self._threads = self._threads, []
        if running:
            (self._pieces if self._link is None else self._results).put(None)
        for thread in running:
            thread.join()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
