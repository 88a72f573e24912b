"""The interface between the runner and a device, and the CPU: NumPy arrays in host memory."""

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
"""Part of the available memory that a run uses by default. The rest is left to the page cache, from
which the scan is read and through which the result is written; the share was chosen, not
measured."""


class Backend:
    """A device with its array library; what it does is here as for arrays in host memory."""

    name: str
    """"cpu" or "cuda:N"."""
    kind: Device
    """"cpu" or "cuda"."""
    modules_bytes: int
    """Part of `reserved_bytes` for kernels and libraries that methods load onto the device."""

    @property
    def reserved_bytes(self) -> int:
        """Device memory beside arrays: the context and what is loaded into it."""
        return 0

    def free_bytes(self) -> int:
        """Budget of a run if the user gives none."""
        raise NotImplementedError

    def limited(self, budget_bytes: int) -> AbstractContextManager[None]:
        """Make this the current device, and limit its allocator to a budget.

        Parameters
        ----------
        budget_bytes : int
            Limit, beside what is in use already.
        """
        raise NotImplementedError

    def to_device(self, block: np.ndarray) -> Any:
        """Array of the device with the values of a block."""
        return block

    def to_host(self, block: Any) -> np.ndarray:
        """The block as a NumPy array, finished and C-contiguous."""
        return np.ascontiguousarray(block)

    def copy_engine(self) -> CopyEngine | None:
        """Copies to the device and back that overlap with computing; None if it is the host."""
        return None

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """Array of the device with arbitrary values."""
        return np.empty(shape, dtype)

    def host_empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Array of the host that the device copies from and to at full speed."""
        return np.empty(shape, dtype)

    def contiguous(self, block: Any) -> Any:
        """A C-contiguous block of the device: the block itself, or a copy."""
        return np.ascontiguousarray(block)

    def overlap(self, first: Any, second: Any) -> bool:
        """True if two arrays of the device may share memory."""
        return np.may_share_memory(first, second)

    def retain_freed(self, largest_bytes: int) -> None:
        """Retain freed memory for the next block until `release`, unless the device does anyway.

        Parameters
        ----------
        largest_bytes : int
            Largest array of a block.
        """

    def forget_plans(self) -> None:
        """Drop cached FFT plans that hold memory of the device."""

    def release(self) -> None:
        """Give back memory that caches and pools hold but do not use."""


class CpuBackend(Backend):
    """NumPy on the host; see `Backend`."""

    name = "cpu"
    kind: Device = "cpu"
    modules_bytes = 0
    _retains = False

    def free_bytes(self) -> int:
        """Four fifths of the host memory that is available now, within all limits on it."""
        limits = [limit.free_bytes for limit in memory_limits()]
        return int(min([available_bytes(), *limits]) * AVAILABLE_SHARE)

    @contextmanager
    def limited(self, budget_bytes: int) -> Iterator[None]:
        """Give back what is freed; on a host the plan keeps to the budget."""
        with malloc_frugal():
            try:
                yield
            finally:
                self.release()

    def retain_freed(self, largest_bytes: int) -> None:
        """Retain large arrays in the heap when they are freed, if blocks have such."""
        if not self._retains and largest_bytes >= LARGE_BYTES:
            self._retains = malloc_retain()

    def release(self) -> None:
        """Give back what the heap retains."""
        if self._retains:
            self._retains = False
            malloc_release()
