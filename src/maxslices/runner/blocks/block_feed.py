"""Input of a section: its blocks, brought to the device in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ...devices import Backend
from ...devices.in_place import slices_in_place
from ..report.run_timeline import Timeline
from .block_ranges import Block
from .device_store import DeviceStore
from .read_ahead import Readable, ReadAhead


class BlockFeed(Protocol):
    """Gives a section its blocks, in order."""

    resident_bytes: int
    """Bytes that it holds on the device for all blocks."""
    reuses: bool
    """Whether later blocks reuse the memory of earlier ones."""

    def start(self) -> None:
        """Start copies from pinned memory; flats and darks are on their way already."""

    def take(self) -> Any:
        """Wait for the next block on the device, which methods may write to."""

    def release(self) -> None:
        """Let the memory of the block last taken be reused, after all computing so far."""

    def close(self) -> None:
        """Stop and free all memory; a second call does nothing."""


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
    """Make the feed that suits the place of the blocks.

    Parameters
    ----------
    reader : Readable or DeviceStore
        Holds the blocks.
    slice_dim : int
        Axis of the slices.
    blocks : sequence of Block
        Blocks to bring, in order.
    backend : Backend
        The device.
    timeline : Timeline
        Records what is read and copied.
    overlaps : bool
        Whether a block may be brought while another is computed.
    wants_copies : bool
        Whether a method on the CPU needs blocks that it may write to.
    """
    if isinstance(reader, DeviceStore):
        store = reader
        return _LoadedFeed(lambda block: store.block(slice_dim, block.first, block.last), blocks)

    def in_place(block: Block) -> Any:
        return slices_in_place(reader, backend, slice_dim, block.first, block.last)

    # Of sinograms in memory, only those of all rows lie without gaps; with its halo, one block
    # may have them all and the next one not.
    if backend.kind == "cpu" and all(in_place(block) is not None for block in blocks):
        if wants_copies:
            return _LoadedFeed(lambda block: in_place(block).copy(), blocks)
        return _LoadedFeed(in_place, blocks)
    return ReadAhead(reader, slice_dim, blocks, backend, timeline, overlaps)


class _LoadedFeed:
    """Blocks that are where methods need them: used in place, or copied when taken."""

    resident_bytes = 0
    reuses = False

    def __init__(self, get: Callable[[Block], Any], blocks: Sequence[Block]) -> None:
        self._get, self._blocks = get, iter(blocks)

    def start(self) -> None:
        pass

    def take(self) -> Any:
        return self._get(next(self._blocks))

    def release(self) -> None:
        pass

    def close(self) -> None:
        pass
