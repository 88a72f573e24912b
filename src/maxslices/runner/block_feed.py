"""Blocks on their way to the device, each ahead of the one that is worked on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..devices import Backend
from ..devices.in_place import slices_in_place
from .block_ranges import Block
from .device_store import DeviceStore
from .read_ahead import Readable, ReadAhead
from .run_timeline import Timeline


class BlockFeed(Protocol):
    """Gives a section its blocks, in order."""

    resident_bytes: int
    """Memory that it holds on the device for all blocks."""
    reuses: bool
    """Whether a block lies in memory that a later one is put into."""

    def start(self) -> None:
        """Let blocks come from pinned memory: what they need beside them is on its way."""

    def take(self) -> Any:
        """Return the next block on the device, which may be written to."""

    def release(self) -> None:
        """Say that all is under way that uses the block last taken."""

    def slowest_s(self, number: int) -> float:
        """Return how long the slowest stage of a block's way took; waits until it has arrived."""

    def close(self) -> None:
        """Stop, and free all memory; a second call does nothing."""


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
    """Return what brings blocks from where they are.

    Parameters
    ----------
    reader : Readable or DeviceStore
        Where they are.
    slice_dim : int
        Axis of the slices.
    blocks : sequence of Block
        What is wanted, in order.
    backend : Backend
        The device.
    timeline : Timeline
        Is told what was read and copied.
    overlaps : bool
        Whether a block may come while another is worked on.
    wants_copies : bool
        Whether a method on the CPU has asked for blocks that it may write to.
    """
    if isinstance(reader, DeviceStore):
        store = reader
        return _LoadedFeed(lambda block: store.block(slice_dim, block.first, block.last), blocks)

    def in_place(block: Block) -> Any:
        return slices_in_place(reader, backend, slice_dim, block.first, block.last)

    if backend.kind == "cpu" and in_place(blocks[0]) is not None:
        if wants_copies:
            return _LoadedFeed(lambda block: in_place(block).copy(), blocks)
        return _LoadedFeed(in_place, blocks)
    return ReadAhead(reader, slice_dim, blocks, backend, timeline, overlaps)


class _LoadedFeed:
    """Blocks that are where methods want them, or a copy away: nothing is on its way."""

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

    def slowest_s(self, number: int) -> float:
        return 0.0

    def close(self) -> None:
        pass
