"""Select devices by name, and check arrays for copies."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..errors import UsageError
from .cpu import Backend, CpuBackend
from .cuda import CudaBackend
from .cuda_copies import count_devices

_DEVICE = re.compile(r"cuda(?::(\d+))?")


def check_device_name(device: str) -> str:
    """Check a device name, and return it.

    Raises
    ------
    UsageError
        If it is not auto, cpu, cuda or cuda:N.
    """
    is_known = isinstance(device, str) and (device in ("auto", "cpu") or _DEVICE.fullmatch(device))
    if not is_known:
        raise UsageError(f"unknown device {device!r}: use auto, cpu, cuda or cuda:N")
    return device


def select_backend(device: str = "auto") -> Backend:
    """Select the backend of a device.

    Parameters
    ----------
    device : str
        "cpu", "cuda" (the first GPU), "cuda:N", or "auto": the first GPU if CuPy finds one,
        otherwise the CPU.

    Raises
    ------
    UsageError
        If the name is invalid.
    DeviceError
        If the device does not exist.
    """
    check_device_name(device)
    if device == "cpu":
        return CpuBackend()
    match = _DEVICE.fullmatch(device)
    if match is not None:
        return CudaBackend(int(match[1] or 0))
    return CudaBackend(0) if count_devices() else CpuBackend()


def device_name(backend: Backend) -> str:
    """Name of the device: "cpu", or the name of the GPU, such as "NVIDIA H200"."""
    if backend.kind == "cpu":
        return "cpu"
    number = int(backend.name.partition(":")[2] or 0)
    return _gpu_name(number)


@lru_cache(maxsize=16)
def _gpu_name(number: int) -> str:
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(number)["name"]
    return name.decode() if isinstance(name, bytes) else str(name)


def is_copyable(array: Any) -> bool:
    """True if a 3D array can be copied at once: only its first axis may have gaps."""
    _, rows, columns = array.shape
    size = array.dtype.itemsize
    strides = array.strides
    return bool(
        (columns == 1 or strides[2] == size)
        and (rows == 1 or strides[1] == columns * size)
        and (array.shape[0] == 1 or strides[0] >= rows * columns * size)
    )


def as_block(memory: Any, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
    """View the beginning of an array of bytes as an array of a shape and dtype."""
    dtype = np.dtype(dtype)
    n_bytes = int(np.prod(shape)) * dtype.itemsize
    return memory[:n_bytes].view(dtype).reshape(shape)
