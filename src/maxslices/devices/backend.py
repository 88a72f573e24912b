"""The interface between the runner and a device, and devices by their names."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from ..core.allocators import Device
from ..errors import UsageError
from .cpu import CpuBackend
from .cuda import CudaBackend
from .cuda_copies import CopyEngine, count_devices


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


_DEVICE = re.compile(r"cuda(?::(\d+))?")


def check_device_name(device: str) -> str:
    """Check a device name, and return it.

    Raises
    ------
    UsageError
        If it is none of auto, cpu, cuda and cuda:N.
    """
    is_known = isinstance(device, str) and (device in ("auto", "cpu") or _DEVICE.fullmatch(device))
    if not is_known:
        raise UsageError(f"unknown device {device!r}: use auto, cpu, cuda or cuda:N")
    return device


def select_backend(device: str = "auto") -> Backend:
    """Backend of a device.

    Parameters
    ----------
    device : str
        "cpu", "cuda" (the first GPU), "cuda:N", or "auto": the first GPU if CuPy finds one, else
        the CPU.

    Raises
    ------
    UsageError
        If the name is none of these.
    DeviceError
        If there is no such device.
    """
    check_device_name(device)
    if device == "cpu":
        return CpuBackend()
    match = _DEVICE.fullmatch(device)
    if match is not None:
        return CudaBackend(int(match[1] or 0))
    return CudaBackend(0) if count_devices() else CpuBackend()


def device_name(backend: Backend) -> str:
    """Name of the device: "cpu", or the GPU's, such as "NVIDIA H200"."""
    if backend.kind == "cpu":
        return "cpu"
    number = int(backend.name.partition(":")[2] or 0)
    return _gpu_name(number)


@lru_cache(maxsize=16)
def _gpu_name(number: int) -> str:
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(number)["name"]
    return name.decode() if isinstance(name, bytes) else str(name)
