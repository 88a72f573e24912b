"""The CPU: NumPy arrays in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..model.allocators import Device
from ..tuning import malloc_retain as heap
from .out_of_memory import is_out_of_memory

AVAILABLE_SHARE = 0.8
"""Part of the available memory that is used unasked: the rest is left to the page cache."""


class CpuBackend:
    """NumPy on the host; see `Backend`."""

    name = "cpu"
    kind: Device = "cpu"
    reserved_bytes = modules_bytes = 0
    _keeps = False

    def free_bytes(self) -> int:
        """Return four fifths of the host memory that is available now."""
        import psutil  # 0.02 s that most commands do not need

        return int(psutil.virtual_memory().available * AVAILABLE_SHARE)

    @contextmanager
    def limited(self, budget_bytes: int, kept_bytes: int = 0) -> Iterator[None]:
        """Let the plan keep to the budget: nothing enforces it on a host."""
        try:
            yield
        finally:
            self.release()

    def to_device(self, block: np.ndarray) -> Any:
        """Return the block itself."""
        return block

    def to_host(self, block: Any) -> np.ndarray:
        """Return the block as a NumPy array, finished and C-contiguous."""
        return np.ascontiguousarray(block)

    def copy_engine(self) -> None:
        """Return None: a block is where it is."""

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Return an array as `numpy.empty` does."""
        return np.empty(shape, dtype)

    def host_empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Return an array as `numpy.empty` does."""
        return np.empty(shape, dtype)

    def contiguous(self, block: Any) -> Any:
        """Return the block, copied where it is a view with gaps."""
        return np.ascontiguousarray(block)

    def overlap(self, first: Any, second: Any) -> bool:
        """Tell whether the bytes of two arrays are in one range of addresses."""
        return np.may_share_memory(first, second)

    def reserve(self, n_bytes: int, largest_bytes: int) -> None:
        """Have the heap keep large arrays that are freed, and make pages of so many bytes ahead."""
        if not self._keeps and largest_bytes >= heap.LARGE_BYTES:
            self._keeps = heap.keep(n_bytes)

    def forget_plans(self) -> None:
        """Do nothing: NumPy's FFTs keep none that count."""

    def release(self) -> None:
        """Have the heap give back what it kept."""
        if self._keeps:
            self._keeps = False
            heap.let_go()

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Tell whether it is a `MemoryError`, or what torch raises in its place."""
        return is_out_of_memory(error)
