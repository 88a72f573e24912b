"""A thread that reads blocks and copies them to the device ahead of computing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...core import block_memory
from ...core.arrays import ArraySpec
from ...core.block_memory import InputWay
from ...devices import Backend, CopyEngine, DeviceEvent, as_block
from ...devices.in_place import slices_in_place
from ...system.threads import WorkThread, next_of
from ..report.run_timeline import Timeline
from .block_ranges import Block


class Readable(Protocol):
    """A scan, or the output of an earlier section."""

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the whole."""

    def read(self, slice_dim: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read slices `start` to `stop` along `slice_dim` into `out`."""


class _Stop(Exception):
    """Ends the thread: the feed was closed."""


class ReadAhead:
    """A `BlockFeed` whose thread reads one block ahead, and copies it to the device.

    On the CPU blocks are read into the arrays that methods are given. For a GPU they are read into
    staging memory and copied from there. Blocks in pinned memory are copied from where they lie.
    """

    reuses = True

    def __init__(
        self,
        reader: Readable,
        slice_dim: int,
        blocks: Sequence[Block],
        backend: Backend,
        timeline: Timeline,
        overlaps: bool,
    ) -> None:
        self._reader, self._slice_dim, self._blocks = reader, slice_dim, blocks
        self._backend, self._engine, self._timeline = backend, backend.copy_engine(), timeline
        self._spec = reader.spec
        way: InputWay = "read"
        if self._engine is not None:
            way = "copied" if self._is_copied_in_place() else "staged"
        self._way = way
        size = max(self._bytes(block) for block in blocks)
        n_blocks = len(blocks)
        self._places = block_memory.input_buffers(way, size, overlaps=overlaps, n_blocks=n_blocks)
        self._staging = block_memory.read_staging(way, size, overlaps=overlaps, n_blocks=n_blocks)
        self.resident_bytes = self._places.total_bytes
        # Entries: memory, and the event from which on it is free. None ends the thread.
        self._buffers: SimpleQueue[tuple[Any, DeviceEvent | None] | None] = SimpleQueue()
        self._staged: SimpleQueue[tuple[NDArray[Any], DeviceEvent | None] | None] = SimpleQueue()
        self._ready: SimpleQueue[tuple[Any, Any, DeviceEvent | None] | BaseException] = (
            SimpleQueue()
        )
        self._taken: Any = None
        self._copies: list[tuple[Block, DeviceEvent, DeviceEvent]] = []
        self._noted = 0
        self._n_staging = 0
        self._thread: WorkThread | None = None
        if way != "copied":
            self._begin()  # reading goes on while flats and darks are copied

    def start(self) -> None:
        """Start copies from pinned memory."""
        if self._way == "copied":
            self._begin()

    def take(self) -> Any:
        """Wait for the next block on the device."""
        item = next_of(self._ready, self._thread)
        if isinstance(item, BaseException):
            raise item
        memory, data, copied = item
        self._taken = memory
        if self._engine is not None and copied is not None:
            self._engine.wait(copied)
        return data

    def release(self) -> None:
        """Let the memory of the block last taken be reused, after all computing so far."""
        memory, self._taken = self._taken, None
        self._buffers.put((memory, None if self._engine is None else self._engine.record()))

    def close(self) -> None:
        """Stop and free all memory; a second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._buffers.put(None)
            self._staged.put(None)
            thread.join()
            with suppress(RuntimeError):  # of a device that failed, raised before
                self._note(len(self._copies))
        self._taken, self._copies = None, []
        self._buffers, self._staged, self._ready = SimpleQueue(), SimpleQueue(), SimpleQueue()

    def _begin(self) -> None:
        """Allocate memory for blocks, and start the thread."""
        for _ in range(self._places.count):
            if self._engine is None:
                place = self._backend.empty((self._places.n_bytes,), np.uint8)
                self._buffers.put((place, None))
            else:
                place = self._engine.buffer(self._places.n_bytes)
                self._buffers.put((place, self._engine.record()))
        self._thread = WorkThread(self._work, "reader")
        self._thread.start()

    def _note(self, until: int) -> None:
        """Wait for the first `until` copies, and put them on the timeline."""
        while self._noted < until:
            block, begin, end = self._copies[self._noted]
            self._noted += 1
            end.synchronize()
            span = (begin.time_s(), end.time_s(), block.first, block.last)
            self._timeline.add("in", *span, self._bytes(block))

    def _bytes(self, block: Block) -> int:
        return self._spec.with_slices(self._slice_dim, block.n_given).nbytes

    def _is_copied_in_place(self) -> bool:
        """True if the device can copy the first and the last block from where they lie."""
        ends = (self._blocks[0], self._blocks[-1])
        found = (self._in_place(block) for block in ends)
        return all(each is not None for each in found)

    def _in_place(self, block: Block) -> NDArray[Any] | None:
        return slices_in_place(
            self._reader, self._backend, self._slice_dim, block.first, block.last
        )

    def _work(self) -> None:
        try:
            for block in self._blocks:
                shape = self._spec.with_slices(self._slice_dim, block.n_given).shape
                if self._engine is None:
                    memory, _ = self._next(self._buffers)
                    data = as_block(memory, shape, self._spec.dtype)
                    self._read(block, data)
                    self._ready.put((memory, data, None))
                else:
                    self._ready.put(self._send(self._engine, block, shape))
        except _Stop:
            pass
        except BaseException as error:  # noqa: BLE001 - raised where the block is taken
            self._ready.put(error)

    def _send(
        self, engine: CopyEngine, block: Block, shape: tuple[int, ...]
    ) -> tuple[Any, Any, DeviceEvent | None]:
        staging = None
        host = self._in_place(block) if self._way == "copied" else None
        if host is None:
            staging = self._free_staging(engine)
            host = as_block(staging, shape, self._spec.dtype)
            self._read(block, host)
        memory, free = self._next(self._buffers)
        data = as_block(memory, shape, self._spec.dtype)
        assert free is not None
        # The copy before the last has ended by now. To note it here, where there is time, leaves
        # less for the end of the section.
        self._note(len(self._copies) - 1)
        begin, end = engine.send(host, data, free)
        self._copies.append((block, begin, end))
        if staging is not None:
            self._staged.put((staging, end))
        return memory, data, end

    def _free_staging(self, engine: CopyEngine) -> NDArray[Any]:
        """Free staging memory; the first pieces are allocated while flats and darks are copied."""
        if self._n_staging < max(1, self._staging.count):
            self._n_staging += 1
            return engine.staging(self._staging.n_bytes)
        staging: NDArray[Any]
        staging, copied = self._next(self._staged)
        assert copied is not None
        copied.synchronize()
        return staging

    def _read(self, block: Block, out: NDArray[Any]) -> None:
        began = time.perf_counter()
        self._reader.read(self._slice_dim, block.first, block.last, out)
        ended = time.perf_counter()
        self._timeline.add("read", began, ended, block.first, block.last, int(out.nbytes))

    @staticmethod
    def _next(
        queue: SimpleQueue[tuple[Any, DeviceEvent | None] | None],
    ) -> tuple[Any, DeviceEvent | None]:
        item = queue.get()
        if item is None:
            raise _Stop
        return item
