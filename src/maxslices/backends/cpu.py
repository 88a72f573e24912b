"""The CPU: NumPy arrays in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil

from ..ledger import Device
from .out_of_memory import is_out_of_memory

AVAILABLE_SHARE = 0.8
"""Part of the available memory that is used unasked: the rest is left to the page cache."""


class CpuBackend:
    """NumPy on the host; see `Backend`."""

    name = "cpu"
    kind: Device = "cpu"
    reserved_bytes = 0

    def free_bytes(self) -> int:
        """Return four fifths of the host memory that is available now."""
        return int(psutil.virtual_memory().available * AVAILABLE_SHARE)

    @contextmanager
    def limited(self, budget_bytes: int) -> Iterator[None]:
        """Do nothing: the plan keeps to the budget, and nothing enforces it on a host."""
        yield

    def to_device(self, block: np.ndarray) -> Any:
        """Return the block itself."""
        return block

    def to_host(self, block: Any) -> np.ndarray:
        """Return the block, made contiguous where it is a view."""
        return np.ascontiguousarray(block)

    def release(self) -> None:
        """Do nothing: NumPy holds nothing back."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Tell whether it is a `MemoryError`, or what torch raises in its place."""
        return is_out_of_memory(error)
