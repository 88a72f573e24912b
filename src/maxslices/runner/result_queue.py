"""Results on their way from the device, each behind the block that is worked on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..devices import Backend, CopyEngine, DeviceEvent, is_copyable
from ..devices.in_place import slices_to_copy
from .fetcher import AT_ONCE_BYTES, Fetcher
from .run_timeline import Timeline
from .writer import ResultPiece, ResultTransfer, Target, Writer


class ResultQueue:
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
    most_slices : int
        Slices of the largest result.
    overlaps : bool
        Whether results may go while blocks are worked on.
    """

    def __init__(
        self,
        slice_dim: int,
        backend: Backend,
        timeline: Timeline,
        *,
        most_slices: int,
        overlaps: bool,
    ) -> None:
        self._slice_dim, self._backend, self._timeline = slice_dim, backend, timeline
        self._engine = backend.copy_engine()
        self._overlaps = overlaps
        self._leaving: deque[tuple[Any, DeviceEvent | threading.Event]] = deque()
        self._ways: list[ResultTransfer] = []
        self._writer = Writer(slice_dim, timeline)
        self._fetcher: Fetcher | None = None
        if self._engine is not None:
            self._fetcher = Fetcher(slice_dim, self._engine, self._writer, most_slices, overlaps)
        self._held_bytes = 0

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
        self._writer.raise_error()
        if not targets:
            return
        way = ResultTransfer(start)
        self._ways.append(way)
        if self._engine is None:
            self._leave_until(0)
            written = threading.Event()
            self._writer.put(ResultPiece(data, start, targets, way, written.set))
            self._leaving.append((data, written))
        else:
            if not is_copyable(data):
                self._leave_until(0)  # a copy takes the place of the result that was leaving
                data = self._backend.contiguous(data)
            ready = self._engine.record()
            for target in targets:
                left = self._send(self._engine, data, target, ready, way, waits)
                self._leaving.append((data, left))
        self._held_bytes = held_bytes
        self._leave_until(0 if waits or not self._overlaps else len(targets))

    def flush(self) -> None:
        """Wait until all is written.

        Raises
        ------
        StoreError
            If something could not be.
        """
        self._note(but=1)  # all others have left: they are not left for the end
        self._wait_until(0)
        self._stop()
        self._writer.raise_error()

    def settle(self) -> None:
        """Wait until all is written that can be, and raise nothing."""
        with suppress(RuntimeError):  # a device that failed says so again at each call
            self._wait_until(0)
        self._stop()

    @property
    def lost_from(self) -> int | None:
        """Return the first slice of those that could not be written, once settled."""
        return self._writer.lost_from

    def slowest_s(self, number: int) -> float:
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
            self._note()
        self._leaving.clear()
        self._ways = []
        if self._fetcher is not None:
            self._fetcher.close()

    def _note(self, but: int = 0) -> None:
        """Put copies on the timeline once they have ended, but for those of the last results."""
        while len(self._ways) > but:
            for start, stop, n_bytes, begin, end in self._ways.pop(0).copies:
                end.synchronize()
                self._timeline.add("out", begin.time_s(), end.time_s(), start, stop, n_bytes)

    def _send(
        self,
        engine: CopyEngine,
        data: Any,
        target: Target,
        ready: DeviceEvent,
        way: ResultTransfer,
        waits: bool,
    ) -> DeviceEvent | threading.Event:
        """Begin to copy a result to its place, or have it go there through slabs."""
        start, stop = way.start, way.start + data.shape[self._slice_dim]
        place = slices_to_copy(target, engine, self._slice_dim, start, stop)
        assert self._fetcher is not None
        if place is None:
            return self._fetcher.put(data, target, ready, way, waits)
        if self._overlaps and not waits and data.nbytes > AT_ONCE_BYTES:
            return self._fetcher.put(data, target, ready, way, waits, place)
        begin, end = engine.fetch(data, place, ready)
        way.copies.append((start, stop, int(data.nbytes), begin, end))
        return end

    def _leave_until(self, count: int) -> None:
        """Wait until no more than `count` results are on their way from the device."""
        self._wait_until(count)
        self._writer.raise_error()

    def _wait_until(self, count: int) -> None:
        while len(self._leaving) > count:
            _, mark = self._leaving.popleft()
            if isinstance(mark, threading.Event):
                mark.wait()
            else:
                mark.synchronize()

    def _stop(self) -> None:
        if self._fetcher is not None:
            self._fetcher.stop()
        self._writer.stop()
