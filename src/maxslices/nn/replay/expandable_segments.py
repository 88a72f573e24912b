"""Simulation of torch's allocator with expandable segments, on sizes alone.

With ``expandable_segments:True`` small and large blocks each have one range of addresses. Memory is
mapped to addresses page by page, and unmapped from pages without blocks when room is needed. Only
pages that are partly in use are lost, at most two for a block. The rules are those of
``c10/cuda/CUDACachingAllocator.cpp`` (torch 2.6 to 2.13, one stream); on an H200, in each of 198
steps of ResNet50 and of a 3D U-Net under 18 limits, memory was given back as often as here.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from ...core.allocators import CUDA_GRANULE_BYTES, round_to_granule
from ...core.memory_model import last_true
from .caching_allocator import (
    LARGE_SEGMENT_BYTES,
    ROUND_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorRequest,
    Holding,
    segment_bytes,
)

_ALL = 2**50
"""Length of a range of addresses: beyond the memory of any card."""
_FREE, _USED, _BARE = range(3)


class _SegmentPiece:
    """Neighbouring addresses in one state: in use, free, or bare, that is without memory."""

    __slots__ = ("address", "following", "previous", "size", "state")

    def __init__(self, address: int, size: int, state: int) -> None:
        self.address, self.size, self.state = address, size, state
        self.previous: _SegmentPiece | None = None
        self.following: _SegmentPiece | None = None

    @property
    def end(self) -> int:
        return self.address + self.size


class _AddressRange:
    """Addresses of the small blocks, or of the large ones."""

    def __init__(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.first = _SegmentPiece(0, _ALL, _BARE)
        self.free: list[tuple[int, int, _SegmentPiece]] = []
        """(size, address, piece): the best fit is the smallest, at the lowest address."""

    def taken(self, size: int) -> _SegmentPiece | None:
        """Take the best fitting free piece; None if none is large enough."""
        place = bisect_left(self.free, (size,))
        if place == len(self.free):
            return None
        # torch compares sizes with the bare addresses after a piece: one that can grow is left
        # for larger blocks.
        while place + 1 < len(self.free) and self._most(place + 1) < self._most(place):
            place += 1
        piece = self.free.pop(place)[2]
        piece.state = _USED
        return piece

    def _most(self, place: int) -> int:
        """Size of a free piece with the bare addresses after it."""
        piece = self.free[place][2]
        after = piece.following
        return piece.size + (after.size if after is not None and after.state == _BARE else 0)

    def extend(self, size: int) -> int:
        """Map memory so that a block fits; the bytes mapped."""
        piece = self._room(size)
        # The free piece before the bare addresses has memory already.
        missing = size - (piece.size if piece.state == _FREE else 0)
        added = 0
        while missing > 0:
            bare = piece if piece.state == _BARE else piece.following
            assert bare is not None
            wanted = min(bare.size, -(-missing // self.page_bytes) * self.page_bytes)
            if wanted < bare.size:
                self._cut(bare, wanted)
            added += wanted
            piece = self.release(bare)
            missing = size - piece.size
        return added

    def release(self, piece: _SegmentPiece) -> _SegmentPiece:
        """Free a piece and merge it with free neighbours."""
        for other in (piece.previous, piece.following):
            if other is not None and other.state == _FREE:
                self._take_out(other)
                piece = self._joined(piece, other)
        piece.state = _FREE
        insort(self.free, (piece.size, piece.address, piece))
        return piece

    def split(self, piece: _SegmentPiece, size: int) -> None:
        """Free the part of a piece beyond a size."""
        if piece.size - size >= CUDA_GRANULE_BYTES:
            tail = self._cut(piece, size)
            tail.state = _FREE
            insort(self.free, (tail.size, tail.address, tail))

    def give_back(self) -> int:
        """Unmap all free pages; the bytes unmapped."""
        given = 0
        for _, _, piece in list(self.free):
            first = -(-piece.address // self.page_bytes) * self.page_bytes
            end = piece.end // self.page_bytes * self.page_bytes
            if first >= end:
                continue
            self._take_out(piece)
            piece.state = _USED
            if end < piece.end:
                self.release(self._cut(piece, end - piece.address))
            middle = piece
            if piece.address < first:
                middle = self._cut(piece, first - piece.address)
                self.release(piece)
            middle.state = _BARE
            given += middle.size
            for other in (middle.previous, middle.following):
                if other is not None and other.state == _BARE:
                    middle = self._joined(middle, other)
        return given

    def _room(self, size: int) -> _SegmentPiece:
        """First run of bare addresses, with a free piece before it, that a block fits in."""
        piece: _SegmentPiece | None = self.first
        while piece is not None:
            if piece.state == _BARE:
                before = piece.previous
                start = before if before is not None and before.state == _FREE else piece
                room, each = 0, start
                while each is not None and each.state != _USED and room < size:
                    room += each.size
                    each = each.following  # type: ignore[assignment]
                if room >= size:
                    return start
            piece = piece.following
        raise AssertionError("the last addresses have no end")

    def _cut(self, piece: _SegmentPiece, size: int) -> _SegmentPiece:
        """Split a piece; the second part, in the same state."""
        tail = _SegmentPiece(piece.address + size, piece.size - size, piece.state)
        tail.previous, tail.following = piece, piece.following
        if piece.following is not None:
            piece.following.previous = tail
        piece.following = tail
        piece.size = size
        return tail

    def _joined(self, piece: _SegmentPiece, other: _SegmentPiece) -> _SegmentPiece:
        """Merge two neighbours."""
        low, high = sorted((piece, other), key=lambda each: each.address)
        piece.address, piece.size = low.address, low.size + high.size
        piece.previous, piece.following = low.previous, high.following
        if low.previous is None:
            self.first = piece
        else:
            low.previous.following = piece
        if high.following is not None:
            high.following.previous = piece
        return piece

    def _take_out(self, piece: _SegmentPiece) -> None:
        del self.free[bisect_left(self.free, (piece.size, piece.address))]


class ExpandableAllocator(Holding):
    """Simulated allocator with expandable segments; `limit_bytes` as for `Holding`."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        super().__init__(limit_bytes)
        self._ranges = _AddressRange(SMALL_SEGMENT_BYTES), _AddressRange(LARGE_SEGMENT_BYTES)

    def run(self, requests: Iterable[AllocatorRequest]) -> bool:
        """Carry out requests in order; False if one finds no room, workspaces included."""
        for key, n_bytes in requests:
            if n_bytes < 0:
                self.free(key)
            elif not self.allocate(key, n_bytes):
                return False
        return True

    def allocate(self, key: int, n_bytes: int) -> bool:
        """Hand out a block; False if there is no room. 0 bytes take no block."""
        if n_bytes == 0:
            return True
        size = round_to_granule(n_bytes)
        range_ = self._ranges[size > SMALL_BYTES]
        piece = range_.taken(size)
        if piece is None:
            if not self._has_room(size):
                self.reserved_bytes -= sum(each.give_back() for each in self._ranges)
                self.retries += 1
                if not self._has_room(size):
                    return False
            self._taken(range_.extend(size))
            piece = range_.taken(size)
            assert piece is not None
        range_.split(piece, size)
        self._live[key] = range_, piece
        return True

    def free(self, key: int) -> None:
        """Free a block."""
        held: tuple[_AddressRange, _SegmentPiece] | None = self._live.pop(key, None)
        if held is not None:
            held[0].release(held[1])

    def _has_room(self, size: int) -> bool:
        """True if the limit leaves room for a segment of a block's own.

        That is what torch checks, even where part of the block's addresses has memory already.
        """
        if self.limit_bytes is None:
            return True
        return self.reserved_bytes + segment_bytes(size) <= self.limit_bytes


def least_expandable_limit(requests: Sequence[AllocatorRequest], low_bytes: int) -> int:
    """Smallest limit, to 2 MiB, under which the requests are carried out.

    Parameters
    ----------
    requests : sequence of (int, int)
        Allocations and frees.
    low_bytes : int
        Most bytes in use at once: the lower bound of the answer.
    """
    unlimited = ExpandableAllocator()
    unlimited.run(requests)
    low = low_bytes // ROUND_BYTES - 1
    high = -(-unlimited.peak_reserved_bytes // ROUND_BYTES) + LARGE_SEGMENT_BYTES // ROUND_BYTES
    too_low = last_true(
        lambda limit: not ExpandableAllocator(limit * ROUND_BYTES).run(requests), low, high
    )
    return (too_low + 1) * ROUND_BYTES
