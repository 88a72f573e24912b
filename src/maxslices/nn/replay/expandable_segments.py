"""Simulation of torch's allocator with expandable segments, on sizes alone.

With ``expandable_segments:True`` small and large blocks each have one range of addresses. Memory is
mapped to addresses page by page, and unmapped from unused pages when memory is needed. Only
partly used pages are lost, at most two per block. The rules are those of
``c10/cuda/CUDACachingAllocator.cpp`` (torch 2.6 to 2.13, one stream). On an H200, memory was given
back as often as simulated in each of 198 steps of ResNet50 and of a 3D U-Net under 18 limits.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from ...core.allocators import CUDA_GRANULE_BYTES, round_to_granule
from ...core.memory_model import last_true
from .caching_allocator import (
    FREE,
    LARGE_SEGMENT_BYTES,
    ROUND_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    UNMAPPED,
    USED,
    AllocatorBase,
    AllocatorRequest,
    MemoryBlock,
    segment_bytes,
)

ADDRESSES = 2**50
"""Length of a range of addresses: more than the memory of any card."""


class _AddressRange:
    """Range of addresses of the small blocks, or of the large blocks."""

    def __init__(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.first = MemoryBlock(0, ADDRESSES, UNMAPPED)
        self.free: list[tuple[int, int, MemoryBlock]] = []
        """(size, address, block). The best fit is the smallest block, at the lowest address."""

    def take_best_fit(self, size: int) -> MemoryBlock | None:
        """Take the best fitting free block; None if none is large enough."""
        place = bisect_left(self.free, (size,))
        if place == len(self.free):
            return None
        # torch compares sizes including the unmapped addresses after a block: a block that can
        # grow is left for larger requests.
        while place + 1 < len(self.free) and self._extent(place + 1) < self._extent(place):
            place += 1
        block = self.free.pop(place)[2]
        block.state = USED
        return block

    def _extent(self, place: int) -> int:
        """Size of a free block with the unmapped addresses after it."""
        block = self.free[place][2]
        after = block.following
        if after is None or after.state != UNMAPPED:
            return block.size
        return block.size + after.size

    def extend(self, size: int) -> int:
        """Map memory so that a block fits; return the bytes mapped."""
        block = self._first_fit(size)
        # The free block before the unmapped addresses has memory already.
        missing = size - (block.size if block.state == FREE else 0)
        added = 0
        while missing > 0:
            unmapped = block if block.state == UNMAPPED else block.following
            assert unmapped is not None
            mapped = min(unmapped.size, -(-missing // self.page_bytes) * self.page_bytes)
            if mapped < unmapped.size:
                unmapped.cut(mapped)
            added += mapped
            block = self.release(unmapped)
            missing = size - block.size
        return added

    def release(self, block: MemoryBlock) -> MemoryBlock:
        """Free a block and merge it with free neighbours."""
        for other in (block.previous, block.following):
            if other is not None and other.state == FREE:
                self._remove(other)
                self._absorb(block, other)
        self._add(block)
        return block

    def split(self, block: MemoryBlock, size: int) -> None:
        """Free the part of a block beyond a size."""
        if block.size - size >= CUDA_GRANULE_BYTES:
            self._add(block.cut(size))

    def give_back(self) -> int:
        """Unmap all free pages; return the bytes unmapped."""
        unmapped = 0
        for _, _, block in list(self.free):
            first = -(-block.address // self.page_bytes) * self.page_bytes
            end = (block.address + block.size) // self.page_bytes * self.page_bytes
            if first >= end:
                continue
            self._remove(block)
            block.state = USED
            if end < block.address + block.size:
                self.release(block.cut(end - block.address))
            middle = block
            if block.address < first:
                middle = block.cut(first - block.address)
                self.release(block)
            middle.state = UNMAPPED
            unmapped += middle.size
            for other in (middle.previous, middle.following):
                if other is not None and other.state == UNMAPPED:
                    self._absorb(middle, other)
        return unmapped

    def _first_fit(self, size: int) -> MemoryBlock:
        """First unmapped addresses, including a free block before them, that fit a block."""
        block: MemoryBlock | None = self.first
        while block is not None:
            if block.state == UNMAPPED:
                before = block.previous
                start = block if before is None or before.state != FREE else before
                available, part = 0, start
                while part is not None and part.state != USED and available < size:
                    available += part.size
                    part = part.following  # type: ignore[assignment]
                if available >= size:
                    return start
            block = block.following
        raise AssertionError("the last unmapped block fits any size")

    def _absorb(self, block: MemoryBlock, other: MemoryBlock) -> None:
        block.absorb(other)
        if block.previous is None:
            self.first = block

    def _add(self, block: MemoryBlock) -> None:
        block.state = FREE
        insort(self.free, (block.size, block.address, block))

    def _remove(self, block: MemoryBlock) -> None:
        del self.free[bisect_left(self.free, (block.size, block.address))]


class ExpandableAllocator(AllocatorBase):
    """Simulated allocator with expandable segments; `limit_bytes` as for `AllocatorBase`."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        super().__init__(limit_bytes)
        self._ranges = _AddressRange(SMALL_SEGMENT_BYTES), _AddressRange(LARGE_SEGMENT_BYTES)

    def run(self, requests: Iterable[AllocatorRequest]) -> bool:
        """Execute requests in order; False if one does not fit, workspaces included."""
        for key, n_bytes in requests:
            if n_bytes < 0:
                self.free(key)
            elif not self.allocate(key, n_bytes):
                return False
        return True

    def allocate(self, key: int, n_bytes: int) -> bool:
        """Allocate a block; False if it does not fit. A request of 0 bytes gets no block."""
        if n_bytes == 0:
            return True
        size = round_to_granule(n_bytes)
        addresses = self._ranges[size > SMALL_BYTES]
        block = addresses.take_best_fit(size)
        if block is None:
            if not self._allows(size):
                self.reserved_bytes -= sum(each.give_back() for each in self._ranges)
                self.retries += 1
                if not self._allows(size):
                    return False
            self._count_reserved(addresses.extend(size))
            block = addresses.take_best_fit(size)
            assert block is not None
        addresses.split(block, size)
        self._live[key] = addresses, block
        return True

    def free(self, key: int) -> None:
        """Free a block."""
        entry: tuple[_AddressRange, MemoryBlock] | None = self._live.pop(key, None)
        if entry is not None:
            entry[0].release(entry[1])

    def _allows(self, size: int) -> bool:
        """True if the limit allows a new segment for a block.

        torch checks this even if some of the block's addresses have memory already.
        """
        if self.limit_bytes is None:
            return True
        return self.reserved_bytes + segment_bytes(size) <= self.limit_bytes


def least_expandable_limit(requests: Sequence[AllocatorRequest], low_bytes: int) -> int:
    """Smallest limit, to 2 MiB, within which the requests fit.

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
