"""torch's allocator with expandable segments, as an algorithm on sizes.

With ``expandable_segments:True`` there is one row of addresses for small blocks and one for
large ones; memory is put behind addresses page by page, and taken away from pages that hold
nothing when room is needed. So what is lost are begun pages, of which a block may hold two. This
follows the rules of ``c10/cuda/CUDACachingAllocator.cpp`` (torch 2.6 to 2.13, one stream); on an
H200, in each of 198 steps of ResNet50 and of a 3D U-Net under 18 limits, memory was given back as
often as it is here.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from ...model.bisection import last_of
from .caching_allocator import (
    GRANULE_BYTES,
    LARGE_SEGMENT_BYTES,
    ROUND_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorRequest,
    Holding,
    segment_bytes,
)

_ALL = 2**50
"""Addresses of a row."""
_FREE, _USED, _BARE = range(3)


class _SegmentPiece:
    """Addresses next to each other: free or in use, or with no memory behind them."""

    __slots__ = ("address", "following", "previous", "size", "state")

    def __init__(self, address: int, size: int, state: int) -> None:
        self.address, self.size, self.state = address, size, state
        self.previous: _SegmentPiece | None = None
        self.following: _SegmentPiece | None = None

    @property
    def end(self) -> int:
        return self.address + self.size


class _Row:
    """The addresses of small blocks, or of large ones."""

    def __init__(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.first = _SegmentPiece(0, _ALL, _BARE)
        self.free: list[tuple[int, int, _SegmentPiece]] = []
        """(size, address, piece): the best fit is the smallest, at the lowest address."""

    def taken(self, size: int) -> _SegmentPiece | None:
        """Return the best fit, no longer free; None if none is large enough."""
        place = bisect_left(self.free, (size,))
        if place == len(self.free):
            return None
        # What can grow counts with what it can grow by: it is left for larger blocks.
        while place + 1 < len(self.free) and self._most(place + 1) < self._most(place):
            place += 1
        piece = self.free.pop(place)[2]
        piece.state = _USED
        return piece

    def _most(self, place: int) -> int:
        """Return the size of a free piece, and of the addresses without memory after it."""
        piece = self.free[place][2]
        after = piece.following
        return piece.size + (after.size if after is not None and after.state == _BARE else 0)

    def extend(self, size: int) -> int:
        """Put memory behind addresses, so that a block fits; return how much."""
        piece = self._room(size)
        # No more of the free part before it: that is there already.
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
        """Make a piece free; free neighbours become one."""
        for other in (piece.previous, piece.following):
            if other is not None and other.state == _FREE:
                self._take_out(other)
                piece = self._joined(piece, other)
        piece.state = _FREE
        insort(self.free, (piece.size, piece.address, piece))
        return piece

    def split(self, piece: _SegmentPiece, size: int) -> None:
        """Leave what is more than a size free."""
        if piece.size - size >= GRANULE_BYTES:
            tail = self._cut(piece, size)
            tail.state = _FREE
            insort(self.free, (tail.size, tail.address, tail))

    def give_back(self) -> int:
        """Take the memory away of all pages that are free; return how much."""
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
        """Return the first addresses that would do: some without memory, a free part before it."""
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
        """Make two of a piece; return the second, in the same state."""
        tail = _SegmentPiece(piece.address + size, piece.size - size, piece.state)
        tail.previous, tail.following = piece, piece.following
        if piece.following is not None:
            piece.following.previous = tail
        piece.following = tail
        piece.size = size
        return tail

    def _joined(self, piece: _SegmentPiece, other: _SegmentPiece) -> _SegmentPiece:
        """Make one of two neighbours."""
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
    """Simulates the allocator; `limit_bytes` as of `Holding`."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        super().__init__(limit_bytes)
        self._rows = _Row(SMALL_SEGMENT_BYTES), _Row(LARGE_SEGMENT_BYTES)

    def run(self, steps: Iterable[AllocatorRequest]) -> bool:
        """Allocate and free in order; tell whether all went through, workspaces included."""
        for key, n_bytes in steps:
            if n_bytes < 0:
                self.free(key)
            elif not self.allocate(key, n_bytes):
                return False
        return True

    def allocate(self, key: int, n_bytes: int) -> bool:
        """Hand out memory; False if there is none. Nothing is held for 0 bytes."""
        if n_bytes == 0:
            return True
        size = -(-n_bytes // GRANULE_BYTES) * GRANULE_BYTES
        row = self._rows[size > SMALL_BYTES]
        piece = row.taken(size)
        if piece is None:
            if not self._has_room(size):
                self.reserved_bytes -= sum(each.give_back() for each in self._rows)
                self.retries += 1
                if not self._has_room(size):
                    return False
            self._taken(row.extend(size))
            piece = row.taken(size)
            assert piece is not None
        row.split(piece, size)
        self._live[key] = row, piece
        return True

    def free(self, key: int) -> None:
        """Take memory back."""
        held: tuple[_Row, _SegmentPiece] | None = self._live.pop(key, None)
        if held is not None:
            held[0].release(held[1])

    def _has_room(self, size: int) -> bool:
        """Tell what torch asks: whether there is room for all of a block, in a segment of its own.

        Even where some of the addresses have memory already.
        """
        if self.limit_bytes is None:
            return True
        return self.reserved_bytes + segment_bytes(size) <= self.limit_bytes


def least_expandable_limit(steps: Sequence[AllocatorRequest], low_bytes: int) -> int:
    """Return a limit, to 2 MiB, under which all steps go through.

    Parameters
    ----------
    steps : sequence of (int, int)
        Allocations and frees.
    low_bytes : int
        What is in use at most: no less will do.
    """
    unlimited = ExpandableAllocator()
    unlimited.run(steps)
    low = low_bytes // ROUND_BYTES - 1
    high = -(-unlimited.peak_reserved_bytes // ROUND_BYTES) + LARGE_SEGMENT_BYTES // ROUND_BYTES
    too_low = last_of(
        lambda limit: not ExpandableAllocator(limit * ROUND_BYTES).run(steps), low, high
    )
    return (too_low + 1) * ROUND_BYTES
