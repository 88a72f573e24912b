"""Results on their way from the device, each behind the block that is worked on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
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


class _Done(threading.Event):
    """Tells when a result has been written."""


class Drain:
    """Takes results of blocks, and has them copied and written while the next are made.

    One result at a time is on its way from the device, and one more being written, each in a
    slab of its own; with nothing to overlap there is one slab.

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
        self._leaving: deque[tuple[Any, Mark | _Done]] = deque()
        self._slabs: dict[int, SimpleQueue[NDArray[np.uint8]]] = {}
        self._copies: list[tuple[int, int, int, Mark, Mark]] = []
        self._writes_s: list[float] = []
        self._tasks: SimpleQueue[Any] = SimpleQueue()
        self._error: BaseException | None = None
        self._lost_from: int | None = None
        self._held_bytes = 0
        self._thread: threading.Thread | None = None

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
        if self._link is None:
            self._leave_until(0)
            done = _Done()
            self._submit(None, data, start, targets, done)
            self._leaving.append((data, done))
        else:
            if not is_copyable(data):
                self._leave_until(0)  # a copy takes the place of the result that was leaving
                data = self._backend.contiguous(data)
            ready = self._link.mark()
            for target in targets:
                self._leaving.append((data, self._fetch(self._link, data, start, target, ready)))
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
        copied_s = written_s = 0.0
        if 0 <= number < len(self._copies):
            *_, begin, end = self._copies[number]
            copied_s = end.time_s() - begin.time_s()
        if 0 <= number < len(self._writes_s):
            written_s = self._writes_s[number]
        return max(copied_s, written_s)

    def close(self) -> None:
        """Wait for what is under way, and free all memory; a second call does nothing."""
        self._stop()
        with suppress(RuntimeError):  # of a device that failed, which was said before
            # What is leaving stays until its copy, which is one of these, has ended.
            for start, stop, n_bytes, begin, end in self._copies:
                end.synchronize()
                self._timeline.add("out", begin.time_s(), end.time_s(), start, stop, n_bytes)
        self._leaving.clear()
        self._copies = []
        self._slabs = {}

    def _fetch(self, link: Link, data: Any, start: int, target: Target, ready: Mark) -> Mark:
        stop = start + data.shape[self._slice_dim]
        window = getattr(target, "window", None)
        place = None if window is None else window(self._slice_dim, start, stop)
        slab = None
        if place is None or not is_copyable(place) or not link.is_direct(place):
            slab = self._slab(link, int(data.nbytes))
            place = as_block(slab, data.shape, data.dtype)
        begin, end = link.fetch(data, place, ready)
        self._copies.append((start, stop, int(data.nbytes), begin, end))
        if slab is not None:
            self._submit((slab, end), place, start, [target], None)
        return end

    def _slab(self, link: Link, n_bytes: int) -> NDArray[np.uint8]:
        """Return a slab that is free, of those for this size; the first few are made."""
        key = min((size for size in self._slabs if size >= n_bytes), default=n_bytes)
        if key not in self._slabs:
            self._slabs[key] = SimpleQueue()
            for _ in range(2 if self._overlaps else 1):
                self._slabs[key].put(link.slab(n_bytes))
        slab = self._slabs[key].get()
        self._raise_error()
        return slab

    def _submit(
        self,
        slab: tuple[NDArray[np.uint8], Mark] | None,
        data: Any,
        start: int,
        targets: Sequence[Target],
        done: _Done | None,
    ) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="maxslices writer", daemon=True)
            self._thread.start()
        self._tasks.put((slab, data, start, targets, done))

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            slab, data, start, targets, done = task
            try:
                if slab is not None:
                    slab[1].synchronize()
                if self._lost_from is None:
                    self._write(data, start, targets)
            except BaseException as error:  # noqa: BLE001 - raised where the next result is put
                # Blocks come in order, so all before it are written, and none after it will be.
                self._lost_from, self._error = start, error
            if slab is not None:
                self._slab_is_free(slab[0])
            del task, data
            if done is not None:
                done.set()

    def _write(self, data: Any, start: int, targets: Sequence[Target]) -> None:
        began = time.perf_counter()
        for target in targets:
            target.write(self._slice_dim, start, data)
        ended, stop = time.perf_counter(), start + data.shape[self._slice_dim]
        self._writes_s.append(ended - began)
        self._timeline.add("write", began, ended, start, stop, int(data.nbytes))

    def _slab_is_free(self, slab: NDArray[np.uint8]) -> None:
        self._slabs[slab.size].put(slab)

    def _leave_until(self, count: int) -> None:
        """Wait until no more than `count` results are on their way from the device."""
        self._wait_until(count)
        self._raise_error()

    def _wait_until(self, count: int) -> None:
        while len(self._leaving) > count:
            _, mark = self._leaving.popleft()
            if isinstance(mark, _Done):
                mark.wait()
            else:
                mark.synchronize()

    def _stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._tasks.put(None)
            thread.join()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
