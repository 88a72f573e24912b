"""The interface between the runner and a device: arrays, copies, names."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from ..core.allocators import Device
from .cuda_copies import CopyEngine


def is_copyable(array: Any) -> bool:
    """True if a 3D array has gaps along its first axis only, so that one copy moves it."""
    _, rows, columns = array.shape
    size = array.dtype.itemsize
    strides = array.strides
    return bool(
        (columns == 1 or strides[2] == size)
        and (rows == 1 or strides[1] == columns * size)
        and (array.shape[0] == 1 or strides[0] >= rows * columns * size)
    )


def as_block(memory: Any, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
    """View of the beginning of an array of bytes as an array of a shape and dtype."""
    dtype = np.dtype(dtype)
    n_bytes = int(np.prod(shape)) * dtype.itemsize
    return memory[:n_bytes].view(dtype).reshape(shape)


class Backend(Protocol):
    """A device with its array library."""

    name: str
    """"cpu" or "cuda:N"."""
    kind: Device
    """"cpu" or "cuda"."""
    modules_bytes: int
    """Part of `reserved_bytes` for kernels and libraries that methods load onto the device."""

    @property
    def reserved_bytes(self) -> int:
        """Device memory beside arrays: the context and what is loaded into it."""

    def free_bytes(self) -> int:
        """Budget of a run if the user gives none."""

    def limited(self, budget_bytes: int) -> AbstractContextManager[None]:
        """Make this the current device, and limit its allocator to a budget.

        Parameters
        ----------
        budget_bytes : int
            Limit, beside what is in use already.
        """

    def to_device(self, block: np.ndarray) -> Any:
        """Array of the device with the values of a block."""

    def to_host(self, block: Any) -> np.ndarray:
        """The block as a NumPy array, finished and C-contiguous."""

    def copy_engine(self) -> CopyEngine | None:
        """Copies to the device and back that overlap with computing; None if it is the host."""

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """Array of the device with arbitrary values."""

    def host_empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Array of the host that the device copies from and to at full speed."""

    def contiguous(self, block: Any) -> Any:
        """A C-contiguous block of the device: the block itself, or a copy."""

    def overlap(self, first: Any, second: Any) -> bool:
        """True if two arrays of the device may share memory."""

    def retain_freed(self, largest_bytes: int) -> None:
        """Retain freed memory for the next block until `release`.

        Parameters
        ----------
        largest_bytes : int
            Largest array of a block.
        """

    def forget_plans(self) -> None:
        """Drop cached FFT plans, whose workspaces go back to the pool."""

    def release(self) -> None:
        """Give back memory that caches and pools hold but do not use."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """True if an exception means that memory ran out."""
