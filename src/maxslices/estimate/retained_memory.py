"""Memory that calls leave allocated, in or outside the pool: constants, caches, plans, leaks."""

from __future__ import annotations

from ..measure.cupy_pool import GRAIN_BYTES
from ..model.allocators import CUDA_GRANULE_BYTES
from ..model.memory_model import MemoryModel
from ..model.units import format_bytes
from .bench import Rung
from .envelope import envelope

Points = tuple[tuple[int, int], ...]
LEAST_BYTES = CUDA_GRANULE_BYTES
"""Fewer bytes than an allocator's granule are not counted as left by a call."""


class RetainedMemory:
    """Memory that stays allocated from call to call.

    Parameters
    ----------
    noise_bytes : int
        Differences below this are ignored.
    """

    def __init__(self, noise_bytes: int) -> None:
        self.noise_bytes = noise_bytes
        self.left_bytes = 0
        """Bytes that the first call left allocated for good."""
        self.accumulates = self.leaks = False
        """`accumulates`: each new number of slices leaves something; `leaks`: every call does."""
        self.outside_bytes = 0
        """Bytes that stay outside the pool, beyond those that the backend reserves for modules."""
        self._seen_outside_bytes = 0
        self._lifted = False
        self._kept: dict[int, int] = {}
        self._lost: dict[int, int] = {}

    def begin(self, first: Rung, outside_bytes: int, modules_bytes: int) -> None:
        """Enter the first call, with what it left outside the pool.

        The first call loads kernels and modules, and calls with other numbers of slices may load
        more. Up to `modules_bytes` of that are part of the backend's reserve.
        """
        self.left_bytes = first.left_bytes
        self.outside_bytes = max(0, outside_bytes - modules_bytes)
        self._seen_outside_bytes = max(outside_bytes, modules_bytes)

    def judge(self, again: Rung, more: Rung | None, other: Rung) -> None:
        """Decide whether what stays is a constant, a cache or a leak.

        A cache with an entry for each number of slices grows when a new, smaller number is run; a
        workspace kept for the most slices does not. What grows when nothing is new is a leak.

        Parameters
        ----------
        again : Rung
            The number of slices of the first call, repeated.
        more : Rung or None
            A number of slices not run before, smaller than another that was; None if it was not
            run.
        other : Rung
            A number of slices run before, repeated.
        """
        self.leaks = min(again.left_bytes, other.left_bytes) >= LEAST_BYTES
        if self.leaks:
            self.left_bytes = max(0, self.left_bytes - again.left_bytes)
        elif more is not None:
            self.accumulates = more.left_bytes >= LEAST_BYTES

    def before_bytes(self, rung: Rung) -> int:
        """Bytes in the pool that earlier calls of a run would have left."""
        alone = self.leaks or self.accumulates
        return self.left_bytes if alone else max(self.left_bytes, rung.before_bytes)

    def grown_outside(self, outside_bytes: int) -> int:
        """Bytes to add to all earlier rungs, given the bytes that all calls left outside the pool.

        Memory that appears once is a constant of the method, and belongs to earlier rungs, too.
        Memory that appears again and again grows with the slices, and shows in the slope.
        """
        grown = max(0, outside_bytes - self._seen_outside_bytes)
        self._seen_outside_bytes += grown
        self.outside_bytes += grown
        if not grown or self._lifted:
            return 0
        self._lifted = True
        grown += GRAIN_BYTES  # the meter's resolution
        self.outside_bytes += GRAIN_BYTES
        self._kept = {n: size + grown for n, size in self._kept.items()}
        return grown

    def enter(self, rung: Rung, before_bytes: int) -> None:
        """Enter the bytes that a call left, in addition to those that were there before it."""
        self._kept[rung.n_slices] = rung.kept_bytes + before_bytes
        if self.leaks:
            self._lost[rung.n_slices] = rung.left_bytes

    def kept(self) -> Points:
        """Points (slices, bytes) of the memory that stays, and two beyond by the steepest slope."""
        if all(size < LEAST_BYTES for size in self._kept.values()):
            return ()
        sizes, highest = [], 0
        for n, size in sorted(self._kept.items()):
            highest = max(highest, size)
            sizes.append((n, highest))
        n, size = sizes[-1]
        slope = -(-(size - sizes[0][1]) // n)
        if len(sizes) > 1:
            m, before = sizes[-2]
            slope = max(slope, -(-(size - before) // (n - m)))
        return (*envelope(sizes, self.noise_bytes), (2 * n, size + slope * n))

    def lost(self, points: Points, available_bytes: int, total_slices: int) -> tuple[int, str]:
        """Bytes that a leak takes in a whole scan, in the largest blocks that fit, and a note."""
        if not self._lost:
            return 0, ""
        model = MemoryModel.piecewise(points)
        n, a_call = max(self._lost.items())
        per_slice = max(size / k for k, size in self._lost.items() if k * 2 >= n)
        constant = max(self._lost.values()) == min(self._lost.values())

        def lost(block: int) -> int:
            each = a_call if constant else int(per_slice * block) + 1
            return each * (-(-total_slices // block) - 1)

        block = model.max_slices(available_bytes, total_slices)
        while block > 1 and model.bytes(block) + lost(block) > available_bytes:
            block = max(1, block - max(1, block // 50))
        found = lost(max(block, 1))
        return found, (
            f"each call loses memory ({format_bytes(a_call)} with {n} slices): "
            f"{format_bytes(found)} are counted for the {total_slices} slices of a scan"
        )
