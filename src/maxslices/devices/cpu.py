"""The CPU: NumPy arrays in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..core.allocators import Device
from ..system.resource_limits import available_bytes, memory_limits
from ..tuning.heap import LARGE_BYTES, malloc_frugal, malloc_release, malloc_retain
from .out_of_memory import is_out_of_memory

AVAILABLE_SHARE = 0.8
"""Part of the available memory that a run uses by default. The rest is left to the page cache, from
which the scan is read and through which the result is written; the share was chosen, not
measured."""


class CpuBackend:
    """NumPy on the host; see `Backend`."""

    name = "cpu"
    kind: Device = "cpu"
    reserved_bytes = modules_bytes = 0
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

    def to_device(self, block: np.ndarray) -> Any:
        """The block itself."""
        return block

    def to_host(self, block: Any) -> np.ndarray:
        """The block as a NumPy array, finished and C-contiguous."""
        return np.ascontiguousarray(block)

    def copy_engine(self) -> None:
        """None: a block is where it is."""

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Array of arbitrary values, as `numpy.empty` makes it."""
        return np.empty(shape, dtype)

    def host_empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Array of arbitrary values, as `numpy.empty` makes it."""
        return np.empty(shape, dtype)

    def contiguous(self, block: Any) -> Any:
        """The block, copied if it is a view with gaps."""
        return np.ascontiguousarray(block)

    def overlap(self, first: Any, second: Any) -> bool:
        """True if the address ranges of two arrays overlap."""
        return np.may_share_memory(first, second)

    def retain_freed(self, largest_bytes: int) -> None:
        """Retain large arrays in the heap when they are freed, if blocks have such."""
        if not self._retains and largest_bytes >= LARGE_BYTES:
            self._retains = malloc_retain()

    def forget_plans(self) -> None:
        """Do nothing: plans of NumPy's FFTs are small."""

    def release(self) -> None:
        """Give back what the heap retains."""
        if self._retains:
            self._retains = False
            malloc_release()

    def is_out_of_memory(self, error: BaseException) -> bool:
        """True for a `MemoryError`, and for what torch raises in its place."""
        return is_out_of_memory(error)
