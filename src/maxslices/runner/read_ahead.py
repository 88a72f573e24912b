"""A thread that reads blocks, and has them copied to the device, before they are worked on."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..devices import Link, Mark, as_block, is_copyable
from ..model.arrays import ArraySpec
from .block_ranges import Block
from .run_timeline import Timeline


class Readable(Protocol):
    """A scan, or what an earlier section made."""

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the whole."""
        ...

    def read(self, slice_dim: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read slices `start` to `stop` along `slice_dim` into `out`."""
        ...


class _Stop(Exception):
    """The blocks are not wanted any more."""


class AheadFeed:
    """A `Feed` whose thread reads, and copies to the device, one block ahead.

    On the CPU it reads into the places that methods are given. For another device it reads
    into slabs of pinned memory and copies from these; what is in pinned memory already is
    copied from where it is.
    """

    reuses = True

    def __init__(
        self,
        reader: Readable,
        slice_dim: int,
        blocks: Sequence[Block],
        link: Link | None,
        timeline: Timeline,
        overlaps: bool,
    ) -> None:
        self._reader, self._slice_dim, self._blocks = reader, slice_dim, blocks
        self._link, self._timeline = link, timeline
        self._spec = reader.spec
        size = max(self._bytes(block) for block in blocks)
        count = min(2 if overlaps else 1, len(blocks))
        self.resident_bytes = count * size
        self._window = None if link is None else self._direct(link)
        # Each entry: a piece of memory, and the mark from which on it is free.
        self._buffers: SimpleQueue[tuple[Any, Mark | None] | None] = SimpleQueue()
        self._slabs: SimpleQueue[tuple[NDArray[Any], Mark | None] | None] = SimpleQueue()
        self._ready: SimpleQueue[tuple[Any, Any, Mark | None] | BaseException] = SimpleQueue()
        self._count, self._size = count, size
        self._taken: Any = None
        self._copies: list[tuple[Block, Mark, Mark]] = []
        self._noted = 0
        self._reads_s: list[float] = []
        self._n_slabs = 0
        self._thread: threading.Thread | None = None
        if self._window is None:
            self._begin()  # what is read goes on ahead while flats and darks come

    def send(self) -> None:
        """Let blocks come from pinned memory."""
        if self._window is not None:
            self._begin()

    def take(self) -> Any:
        """Return the next block on the device."""
        item = self._ready.get()
        if isinstance(item, BaseException):
            raise item
        memory, data, mark = item
        self._taken = memory
        if self._link is not None and mark is not None:
            self._link.wait(mark)
        return data

    def give_back(self) -> None:
        """Have the place of the block last taken used again, when all is computed."""
        memory, self._taken = self._taken, None
        self._buffers.put((memory, None if self._link is None else self._link.mark()))

    def took_s(self, number: int) -> float:
        """Return how long it took to read a block, or to copy it if that took longer."""
        copied_s = read_s = 0.0
        if 0 <= number < len(self._copies):
            _, begin, end = self._copies[number]
            end.synchronize()  # the host may be ahead of the device where no result leaves it
            copied_s = end.time_s() - begin.time_s()
        if 0 <= number < len(self._reads_s):
            read_s = self._reads_s[number]
        return max(copied_s, read_s)

    def close(self) -> None:
        """Stop, and free all memory; a second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._buffers.put(None)
            self._slabs.put(None)
            thread.join()
            with suppress(RuntimeError):  # of a device that failed, which was said before
                self._note(len(self._copies))
        self._taken, self._copies = None, []
        self._buffers, self._slabs, self._ready = SimpleQueue(), SimpleQueue(), SimpleQueue()

    def _begin(self) -> None:
        """Make the places of blocks, on the device or for the CPU, and start the thread."""
        for _ in range(self._count):
            if self._link is None:
                self._buffers.put((np.empty(self._size, np.uint8), None))
            else:
                place = self._link.buffer(self._size)
                self._buffers.put((place, self._link.mark()))
        self._thread = threading.Thread(target=self._work, name="maxslices reader", daemon=True)
        self._thread.start()

    def _note(self, until: int) -> None:
        """Put copies on the timeline, once they have ended."""
        while self._noted < until:
            block, begin, end = self._copies[self._noted]
            self._noted += 1
            end.synchronize()
            span = (begin.time_s(), end.time_s(), block.first, block.last)
            self._timeline.add("in", *span, self._bytes(block))

    def _bytes(self, block: Block) -> int:
        return self._spec.with_slices(self._slice_dim, block.n_given).nbytes

    def _direct(self, link: Link) -> Any:
        """Return what gives views of memory that the device can copy from itself, or None."""
        window = getattr(self._reader, "window", None)
        if window is None:
            return None
        for block in (self._blocks[0], self._blocks[-1]):
            view = window(self._slice_dim, block.first, block.last)
            if view is None or not is_copyable(view) or not link.is_direct(view):
                return None
        return window

    def _work(self) -> None:
        try:
            for block in self._blocks:
                shape = self._spec.with_slices(self._slice_dim, block.n_given).shape
                if self._link is None:
                    memory, _ = self._next(self._buffers)
                    data = as_block(memory, shape, self._spec.dtype)
                    self._read(block, data)
                    self._ready.put((memory, data, None))
                else:
                    self._ready.put(self._send(self._link, block, shape))
        except _Stop:
            pass
        except BaseException as error:  # noqa: BLE001 - raised where the block is taken
            self._ready.put(error)

    def _send(
        self, link: Link, block: Block, shape: tuple[int, ...]
    ) -> tuple[Any, Any, Mark | None]:
        slab = None
        if self._window is not None:
            host = self._window(self._slice_dim, block.first, block.last)
        else:
            slab = self._free_slab(link)
            host = as_block(slab, shape, self._spec.dtype)
            self._read(block, host)
        memory, free = self._next(self._buffers)
        data = as_block(memory, shape, self._spec.dtype)
        assert free is not None
        # The one before it in this place has arrived, or is about to. What is noted of it here,
        # where there is time, is not left for the end.
        self._note(len(self._copies) - 1)
        begin, end = link.send(host, data, free)
        self._copies.append((block, begin, end))
        if slab is not None:
            self._slabs.put((slab, end))
        return memory, data, end

    def _free_slab(self, link: Link) -> NDArray[Any]:
        """Return a slab; the first few are made, while flats and darks come."""
        if self._n_slabs < self._count:
            self._n_slabs += 1
            return link.slab(self._size)
        slab: NDArray[Any]
        slab, copied = self._next(self._slabs)
        assert copied is not None
        copied.synchronize()
        return slab

    def _read(self, block: Block, out: NDArray[Any]) -> None:
        began = time.perf_counter()
        self._reader.read(self._slice_dim, block.first, block.last, out)
        ended = time.perf_counter()
        self._reads_s.append(ended - began)
        self._timeline.add("read", began, ended, block.first, block.last, int(out.nbytes))

    @staticmethod
    def _next(queue: SimpleQueue[tuple[Any, Mark | None] | None]) -> tuple[Any, Mark | None]:
        item = queue.get()
        if item is None:
            raise _Stop
        return item
