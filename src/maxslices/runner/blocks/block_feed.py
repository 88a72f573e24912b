"""Input of a section: its blocks, read in a thread and copied to the device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import block_memory
from ...core.arrays import ArraySpec
from ...core.block_memory import InputWay
from ...devices import Backend, CopyEngine, DeviceEvent, as_block
from ...devices.in_place import slices_in_place
from ...io import Source, Store
from ...system.threads import CALL_S, HANG_S, WorkThread, next_for, next_of
from ..report.run_timeline import Timeline


class DeviceStore:
    """A 3D array on the device, written and read in blocks along either slice dim."""

    def __init__(self, spec: ArraySpec, backend: Backend) -> None:
        self.spec = spec
        self._array: Any = backend.empty(spec.shape, spec.dtype)

    def write(self, slice_dim: int, start: int, block: Any) -> None:
        """Copy a block to slices `start` and following along `slice_dim`."""
        stop = start + block.shape[slice_dim]
        if slice_dim == 0:
            self._array[start:stop] = block
        else:
            self._array[:, start:stop] = block

    def block(self, slice_dim: int, start: int, stop: int) -> Any:
        """C-contiguous copy of slices `start` to `stop` along `slice_dim`."""
        if slice_dim == 0:
            return self._array[start:stop].copy()
        return self._array[:, start:stop].copy()

    def close(self) -> None:
        """Free the memory."""
        self._array = None


@dataclass(frozen=True, slots=True)
class Block:
    """Slices that are on the device at one time."""

    start: int
    """First slice of the output."""
    stop: int
    """One past the last slice of the output."""
    first: int
    """First slice of the input: `start` minus the halo."""
    last: int
    """One past the last slice of the input."""

    @property
    def n_given(self) -> int:
        """Number of input slices."""
        return self.last - self.first

    @property
    def core(self) -> slice:
        """Slices without the halo, as an index into the input."""
        return slice(self.start - self.first, self.stop - self.first)

    @property
    def is_bare(self) -> bool:
        """True if the block has no halo."""
        return (self.start, self.stop) == (self.first, self.last)


def blocks_of(
    parts: Sequence[range], size: int, halo: tuple[int, int], n_slices: int
) -> list[Block]:
    """Divide intervals of slices into blocks. The last block of an interval may be smaller.

    Parameters
    ----------
    parts : sequence of range
        The intervals, in order.
    size : int
        Slices in a block.
    halo : (int, int)
        Slices before and after a block that methods need.
    n_slices : int
        Total number of slices, at which halos end.
    """
    blocks = []
    for part in parts:
        for start in range(part.start, part.stop, size):
            stop = min(start + size, part.stop)
            first, last = max(0, start - halo[0]), min(n_slices, stop + halo[1])
            blocks.append(Block(start, stop, first, last))
    return blocks


Readable = Source | Store
"""A scan, or the output of an earlier section."""


class BlockFeed:
    """Delivers the input blocks of a section, in order.

    Parameters
    ----------
    get : callable
        Returns a block, in place or as a copy.
    blocks : sequence of Block
        The blocks, in order.
    """

    resident_bytes: int = 0
    """Bytes that it takes on the device for all blocks."""
    reuses: bool = False
    """Whether later blocks reuse the memory of earlier ones."""

    def __init__(self, get: Callable[[Block], Any], blocks: Sequence[Block]) -> None:
        self._get, self._left = get, iter(blocks)

    def start(self) -> None:
        """Start copies from pinned memory, after those of flats and darks have been started."""
        return

    def take(self) -> Any:
        """Wait for the next block on the device."""
        return self._get(next(self._left))

    def release(self) -> None:
        """Allow reuse of the last block's memory once the device has done the work so far."""
        return

    def close(self) -> None:
        """Stop and free all memory; a second call does nothing."""
        return


class _Stop(Exception):
    """Ends the thread: the feed was closed."""


class ReadAhead(BlockFeed):
    """A `BlockFeed` whose thread reads one block ahead, and copies it to the device.

    On the CPU, blocks are read into the arrays that methods receive. For a GPU, they are read into
    staging memory and copied from there. Blocks in pinned memory are copied directly. The longest
    wait for the thread is `hang_s`.
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
        hang_s: float = HANG_S,
    ) -> None:
        self._reader, self._slice_dim, self._blocks = reader, slice_dim, blocks
        self._backend, self._engine, self._timeline = backend, backend.copy_engine(), timeline
        self._spec, self._hang_s = reader.spec, hang_s
        way: InputWay = "read"
        if self._engine is not None:
            way = "copied" if self._is_copied_in_place() else "staged"
        self._way = way
        size = max(self._bytes(block) for block in blocks)
        n_blocks = len(blocks)
        self._places = block_memory.input_buffers(way, size, overlaps=overlaps, n_blocks=n_blocks)
        self._staging = block_memory.read_staging(way, size, overlaps=overlaps, n_blocks=n_blocks)
        self.resident_bytes = self._places.total_bytes
        # Entries: memory, and the event after which it is free. None ends the thread.
        self._buffers: SimpleQueue[tuple[Any, DeviceEvent | None] | None] = SimpleQueue()
        self._staged: SimpleQueue[tuple[NDArray[Any], DeviceEvent | None] | None] = SimpleQueue()
        self._ready: SimpleQueue[tuple[Any, Any, DeviceEvent | None] | BaseException] = (
            SimpleQueue()
        )
        self._taken: Any = None
        self._owner = threading.current_thread()
        self._copied: DeviceEvent | None = None
        self._n_staging = 0
        self._thread: WorkThread | None = None
        if way != "copied":
            self._begin()  # reads while flats and darks are copied

    def start(self) -> None:
        """Start copies from pinned memory."""
        if self._way == "copied":
            self._begin()

    def take(self) -> Any:
        """Wait for the next block on the device."""
        item = next_of(self._ready, self._thread, self._hang_s)
        if isinstance(item, BaseException):
            raise item
        memory, data, copied = item
        self._taken = memory
        if self._engine is not None and copied is not None:
            self._engine.wait(copied)
        return data

    def release(self) -> None:
        """Allow reuse of the last block's memory once the device has done the work so far."""
        memory, self._taken = self._taken, None
        self._buffers.put((memory, None if self._engine is None else self._engine.record()))

    def close(self) -> None:
        """Stop and free all memory; a second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._buffers.put(None)
            self._staged.put(None)
            thread.join(self._hang_s)
            if self._copied is not None:
                with suppress(RuntimeError):  # the device failed, which was raised before
                    self._copied.synchronize()  # copies end before their memory is freed
        self._taken = self._copied = None
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

    def _bytes(self, block: Block) -> int:
        return self._spec.with_slices(self._slice_dim, block.n_given).nbytes

    def _is_copied_in_place(self) -> bool:
        """True if the device can copy the first and the last block directly."""
        ends = (self._blocks[0], self._blocks[-1])
        return all(self._in_place(block) is not None for block in ends)

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
        except BaseException as error:  # noqa: BLE001 - raised by `take`
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
        begin, end = engine.send(host, data, free)
        self._copied = end
        self._timeline.add("in", begin, end, self._bytes(block))
        if staging is not None:
            self._staged.put((staging, end))
        return memory, data, end

    def _free_staging(self, engine: CopyEngine) -> NDArray[Any]:
        """Get free staging memory; allocate the first pieces while flats and darks are copied."""
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
        self._timeline.add("read", began, ended, int(out.nbytes))

    def _next(
        self, queue: SimpleQueue[tuple[Any, DeviceEvent | None] | None]
    ) -> tuple[Any, DeviceEvent | None]:
        item = next_for(queue, self._owner, CALL_S)
        if item is None:
            raise _Stop
        return item


def make_block_feed(
    reader: Readable | DeviceStore,
    slice_dim: int,
    blocks: Sequence[Block],
    backend: Backend,
    timeline: Timeline,
    *,
    overlaps: bool,
    wants_copies: bool,
) -> BlockFeed:
    """Make the feed for blocks from a scan, a store or the device.

    Parameters
    ----------
    reader : Readable or DeviceStore
        Provides the blocks.
    slice_dim : int
        Axis of the slices.
    blocks : sequence of Block
        The blocks, in order.
    backend : Backend
        The device.
    timeline : Timeline
        Records reads and copies.
    overlaps : bool
        Whether a block may be read while another is computed.
    wants_copies : bool
        Whether a method on the CPU needs writable blocks.
    """
    if isinstance(reader, DeviceStore):
        store = reader
        return BlockFeed(lambda block: store.block(slice_dim, block.first, block.last), blocks)

    def in_place(block: Block) -> Any:
        return slices_in_place(reader, backend, slice_dim, block.first, block.last)

    # Sinograms of an array are contiguous only if a block has all rows. One block may have all rows
    # with its halo, and the next may not.
    if backend.kind == "cpu" and all(in_place(block) is not None for block in blocks):
        if wants_copies:
            return BlockFeed(lambda block: in_place(block).copy(), blocks)
        return BlockFeed(in_place, blocks)
    return ReadAhead(reader, slice_dim, blocks, backend, timeline, overlaps)
