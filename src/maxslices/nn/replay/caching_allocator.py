"""Simulation of torch's caching allocator for CUDA, on sizes alone.

The allocator takes memory from the device in segments and splits them into blocks. A free block
serves only requests up to its size, so the allocator holds more memory than it hands out. The rules
are those of ``c10/cuda/CUDACachingAllocator.cpp`` (torch 2.6 to 2.13, default settings, one
stream).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from typing import Any

from ...core.allocators import CUDA_GRANULE_BYTES, round_to_granule
from ...core.memory_model import last_true
from ...core.units import MIB

AllocatorRequest = tuple[int, int]
"""(key, bytes) allocates, and (key, -1) frees. A request with a key below 0 may fail: if the
workspace of a convolution does not fit, cuDNN uses another kernel."""

SMALL_BYTES = MIB
"""Largest request that the pool of small blocks serves (torch's ``kSmallSize``)."""
SMALL_SEGMENT_BYTES = 2 * MIB
"""Segment of the pool of small blocks (``kSmallBuffer``)."""
LARGE_SEGMENT_BYTES = 20 * MIB
"""Segment for larger requests below `OWN_SEGMENT_BYTES` (``kLargeBuffer``)."""
OWN_SEGMENT_BYTES = 10 * MIB
"""Requests of this size or more get a segment of their own (``kMinLargeAlloc``)."""
ROUND_BYTES = 2 * MIB
"""Segments of their own are multiples of this (``kRoundLarge``)."""

DESCENDING_BYTES = 64 * MIB
"""The driver was observed to give segments of this size or more descending addresses, or a gap
above others, and smaller segments ascending addresses. The order matters because torch takes the
lowest of the free blocks of one size."""
APART_BYTES = 32 * MIB
"""Addresses of those segments were observed to be multiples of this."""
_TOP = 2**50
"""Address below which descending segments begin: more than the memory of any card."""

LIMITS = 32
"""Limits that `least_limit` tries from above before it bisects. Each is a simulation of the whole
step. A limit that fails between two of them is not detected."""


def segment_bytes(size: int) -> int:
    """Size of the segment taken from the device if no free block serves a request."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-size // ROUND_BYTES) * ROUND_BYTES


FREE, USED, UNMAPPED = range(3)
"""States of a block. Unmapped blocks are addresses without memory."""


class MemoryBlock:
    """Neighbouring addresses in one state, linked to the blocks on both sides."""

    __slots__ = ("address", "following", "is_large", "previous", "size", "state")

    def __init__(self, address: int, size: int, state: int = USED, is_large: bool = False) -> None:
        self.address, self.size, self.state, self.is_large = address, size, state, is_large
        self.previous: MemoryBlock | None = None
        self.following: MemoryBlock | None = None

    def cut(self, size: int) -> MemoryBlock:
        """Keep the first bytes, and return the rest as a block in the same state."""
        tail = MemoryBlock(self.address + size, self.size - size, self.state, self.is_large)
        tail.previous, tail.following = self, self.following
        if self.following is not None:
            self.following.previous = tail
        self.following = tail
        self.size = size
        return tail

    def absorb(self, other: MemoryBlock) -> None:
        """Merge with a neighbour."""
        if other is self.previous:
            self.address, self.previous = other.address, other.previous
            if self.previous is not None:
                self.previous.following = self
        else:
            self.following = other.following
            if self.following is not None:
                self.following.previous = self
        self.size += other.size


class AllocatorBase:
    """Counts of the memory that a simulated allocator holds.

    Parameters
    ----------
    limit_bytes : int, optional
        Most bytes that it may hold, as ``torch.cuda.set_per_process_memory_fraction`` sets it.

    Attributes
    ----------
    reserved_bytes, peak_reserved_bytes : int
        Bytes held now, and the most so far.
    taken_bytes : int
        Total bytes taken from the device. Memory that is given back and taken again counts twice.
    retries : int
        Number of times that all unused memory was given back to make room.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.taken_bytes = 0
        self.retries = 0
        self._live: dict[int, Any] = {}

    def rename(self, keys: Mapping[int, int]) -> None:
        """Replace keys of allocations: a mapping from old to new."""
        for key, entry in [(new, self._live.pop(old, None)) for old, new in keys.items()]:
            if entry is not None:  # None: an allocation of 0 bytes
                self._live[key] = entry

    def _count_reserved(self, n_bytes: int) -> None:
        """Count memory taken from the device."""
        self.reserved_bytes += n_bytes
        self.taken_bytes += n_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)


class CachingAllocator(AllocatorBase):
    """Simulated allocator with the default settings.

    Parameters
    ----------
    limit_bytes : int, optional
        As for `AllocatorBase`.

    Attributes
    ----------
    allocated_bytes, peak_allocated_bytes : int
        Bytes handed out now, and the most so far.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        super().__init__(limit_bytes)
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self._next_address, self._lowest = 0, _TOP
        # Gaps between the addresses of segments: (lowest, highest), the highest gap first.
        self._gaps: list[tuple[int, int]] = []
        # (size, address, block) by pool: the best fit is the smallest, at the lowest address.
        self._free: tuple[list[tuple[int, int, MemoryBlock]], ...] = ([], [])

    def run(self, requests: Iterable[AllocatorRequest]) -> bool:
        """Execute requests in order; False if one that must not fail does not fit."""
        allocate, free = self.allocate, self.free
        for key, n_bytes in requests:
            if n_bytes < 0:
                free(key)
            elif not allocate(key, n_bytes) and key >= 0:
                return False
        return True

    def allocate(self, key: int, n_bytes: int) -> bool:
        """Allocate a block; False if it does not fit. A request of 0 bytes gets no block."""
        if n_bytes == 0:
            return True
        size = round_to_granule(n_bytes)
        large = size > SMALL_BYTES
        block = self._best_fit(size, large)
        if block is None:
            block = self._grow(size, large)
            if block is None:
                return False
        rest = block.size - size
        if rest > SMALL_BYTES if large else rest >= CUDA_GRANULE_BYTES:
            self._put(block.cut(size))
        self._live[key] = block
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        return True

    def free(self, key: int) -> None:
        """Free a block and merge it with free neighbours."""
        block: MemoryBlock | None = self._live.pop(key, None)
        if block is None:  # an allocation of 0 bytes
            return
        self.allocated_bytes -= block.size
        for other in (block.previous, block.following):
            if other is not None and other.state == FREE:
                pool = self._free[other.is_large]
                del pool[bisect_left(pool, (other.size, other.address))]
                block.absorb(other)
        self._put(block)

    def block_of(self, key: int) -> tuple[int, int] | None:
        """Address and size of the block of an allocation, or None for 0 bytes."""
        block = self._live.get(key)
        return None if block is None else (block.address, block.size)

    def segments(self) -> list[list[tuple[int, int, bool]]]:
        """Blocks of each segment, in order: address, size, and whether it is in use."""
        blocks = [*self._live.values(), *(entry[2] for pool in self._free for entry in pool)]
        rows = []
        for first in blocks:
            if first.previous is not None:
                continue
            row, block = [], first
            while block is not None:
                row.append((block.address, block.size, block.state == USED))
                block = block.following
            rows.append(row)
        return sorted(rows)

    def _best_fit(self, size: int, large: bool) -> MemoryBlock | None:
        pool = self._free[large]
        place = bisect_left(pool, (size,))
        if place == len(pool):
            return None
        block = pool.pop(place)[2]
        block.state = USED
        return block

    def _grow(self, size: int, large: bool) -> MemoryBlock | None:
        segment = segment_bytes(size)
        limit = self.limit_bytes
        if limit is not None and self.reserved_bytes + segment > limit:
            self.give_back()
            self.retries += 1
            if self.reserved_bytes + segment > limit:
                return None
        self._count_reserved(segment)
        return MemoryBlock(self._address(segment), segment, USED, large)

    def _address(self, segment: int) -> int:
        """Address at which the driver places a segment."""
        if segment < DESCENDING_BYTES:
            self._next_address += segment
            return self._next_address - segment
        span = -(-segment // APART_BYTES) * APART_BYTES
        for place, (low, high) in enumerate(self._gaps):
            if high - low >= span:
                self._gaps[place : place + 1] = [(low, high - span)] if high - span > low else []
                return high - span
        self._lowest -= span
        return self._lowest

    def give_back(self) -> None:
        """Return unused segments to the device."""
        for pool in self._free:
            unused = [e for e in pool if e[2].previous is None and e[2].following is None]
            for entry in unused:
                self.reserved_bytes -= entry[0]
            if unused:
                addresses = {entry[1] for entry in unused}
                pool[:] = [entry for entry in pool if entry[1] not in addresses]
            for size, address, _ in unused:
                if size >= DESCENDING_BYTES:
                    self._add_gap(address, address + -(-size // APART_BYTES) * APART_BYTES)

    def _add_gap(self, low: int, high: int) -> None:
        for gap in [each for each in self._gaps if each[1] == low or each[0] == high]:
            self._gaps.remove(gap)
            low, high = min(low, gap[0]), max(high, gap[1])
        self._gaps.append((low, high))
        self._gaps.sort(reverse=True)

    def _put(self, block: MemoryBlock) -> None:
        block.state = FREE
        insort(self._free[block.is_large], (block.size, block.address, block))


def least_limit(requests: list[AllocatorRequest], low_bytes: int, high_bytes: int) -> int:
    """Smallest limit, to 2 MiB, from which on the requests fit.

    More memory does not always help: where blocks happen to have the same size, requests may fit
    into a smaller limit and not into a larger one. So the search starts from above, and tries up to
    `LIMITS` limits until one fails.

    Parameters
    ----------
    requests : list of (int, int)
        Allocations and frees.
    low_bytes, high_bytes : int
        Most bytes handed out at once, and a limit into which the requests fit: bounds of the
        answer.
    """

    def runs(limit: int) -> bool:
        return CachingAllocator(limit * ROUND_BYTES).run(requests)

    lowest, high = -(-low_bytes // ROUND_BYTES), -(-high_bytes // ROUND_BYTES)
    step = max(1, -(-(high - lowest) // LIMITS))
    while high > lowest:
        low = max(lowest, high - step)
        if not runs(low):
            break
        high = low
    else:
        return high * ROUND_BYTES
    too_low = last_true(lambda limit: not runs(limit), low, high)
    return (too_low + 1) * ROUND_BYTES
