"""The interface between the runner and devices, and its implementation for the CPU with NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..core.allocators import Device
from ..system.resource_limits import available_bytes, memory_limits
from ..tuning.heap import LARGE_BYTES, malloc_frugal, malloc_release, malloc_retain
from .cuda_copies import CopyEngine

AVAILABLE_SHARE = 0.8
"""Share of the available memory that a run uses by default. The rest is for the page cache, through
which the scan is read and the result is written. The share was chosen, not measured."""


class Backend:
    """A device with its array library. The methods of this base class are for host memory."""

    name: str
    """"cpu" or "cuda:N"."""
    kind: Device
    """"cpu" or "cuda"."""
    modules_bytes: int
    """Part of `reserved_bytes` for kernels and libraries that methods load."""

    @property
    def reserved_bytes(self) -> int:
        """Device memory other than arrays: the context and its libraries."""
        return 0

    def free_bytes(self) -> int:
        """Default budget of a run."""
        raise NotImplementedError

    def limited(self, budget_bytes: int) -> AbstractContextManager[None]:
        """Make this the current device, and limit its allocator to a budget.

        Parameters
        ----------
        budget_bytes : int
            Limit, in addition to the memory already in use.
        """
        raise NotImplementedError

    def to_device(self, block: np.ndarray) -> Any:
        """Copy a block to the device."""
        return block

    def to_host(self, block: Any) -> np.ndarray:
        """The block as a NumPy array, finished and C-contiguous."""
        return np.ascontiguousarray(block)

    def copy_engine(self) -> CopyEngine | None:
        """Engine for copies that overlap with computing; None for the host."""
        return None

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """Array on the device with arbitrary values."""
        return np.empty(shape, dtype)

    def host_empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Array on the host that the device copies from and to at full speed."""
        return np.empty(shape, dtype)

    def contiguous(self, block: Any) -> Any:
        """C-contiguous block on the device: the block itself, or a copy."""
        return np.ascontiguousarray(block)

    def overlap(self, first: Any, second: Any) -> bool:
        """True if two arrays on the device may share memory."""
        return np.may_share_memory(first, second)

    def retain_freed(self, largest_bytes: int) -> None:
        """Retain freed memory for the next block until `release`, if the device does not itself.

        Parameters
        ----------
        largest_bytes : int
            Largest array of a block.
        """

    def forget_plans(self) -> None:
        """Drop cached FFT plans that hold memory of the device."""

    def release(self) -> None:
        """Free unused memory of caches and pools."""


class CpuBackend(Backend):
    """NumPy on the host. See `Backend`."""

    name = "cpu"
    kind: Device = "cpu"
    modules_bytes = 0
    _retains = False

    def free_bytes(self) -> int:
        """Four fifths of the available host memory, within all limits."""
        limits = [limit.free_bytes for limit in memory_limits()]
        return int(min([available_bytes(), *limits]) * AVAILABLE_SHARE)

    @contextmanager
    def limited(self, budget_bytes: int) -> Iterator[None]:
        """Return freed memory to the system. On a host the plan ensures the budget."""
        with malloc_frugal():
            try:
                yield
            finally:
                self.release()

    def retain_freed(self, largest_bytes: int) -> None:
        """Retain freed large arrays in the heap, if blocks have large arrays."""
        if not self._retains and largest_bytes >= LARGE_BYTES:
            self._retains = malloc_retain()

    def release(self) -> None:
        """Free the memory that the heap retains."""
        if self._retains:
            self._retains = False
            malloc_release()
