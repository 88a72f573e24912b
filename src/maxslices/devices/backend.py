"""Devices by their names, and slices that a device can use or copy where they lie."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import UsageError
from ..io import SupportsWindow
from ..io.check_arrays import read_only
from .cpu import Backend, CpuBackend
from .cuda import CudaBackend
from .cuda_copies import CopyEngine, count_devices

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


def slices_in_place(
    holder: object, backend: Backend, slice_dim: int, start: int, stop: int
) -> NDArray[Any] | None:
    """View of slices in host memory, if the device can use it.

    Parameters
    ----------
    holder : object
        A source or a store to read from, or a store or a sink to write to.
    backend : Backend
        The device. On the CPU methods use the slices themselves, C-contiguous and read-only;
        another device copies from them or to them.
    slice_dim : int
        0 for projections, 1 for sinograms.
    start, stop : int
        The slices, `stop` excluded.

    Returns
    -------
    ndarray or None
        None if the slices have to go through other memory.
    """
    engine = backend.copy_engine()
    if engine is None:
        window = _window(holder, slice_dim, start, stop)
        return None if window is None else read_only(window)
    return slices_to_copy(holder, engine, slice_dim, start, stop)


def slices_to_copy(
    holder: object, engine: CopyEngine, slice_dim: int, start: int, stop: int
) -> NDArray[Any] | None:
    """View of slices that a device copies from or to, or None; see `slices_in_place`."""
    window = _window(holder, slice_dim, start, stop)
    if window is None or not is_copyable(window) or not engine.is_direct(window):
        return None
    return window


def _window(holder: object, slice_dim: int, start: int, stop: int) -> NDArray[Any] | None:
    return holder.window(slice_dim, start, stop) if isinstance(holder, SupportsWindow) else None


def is_direct(array: np.ndarray, backend: Backend) -> bool:
    """True if a device copies from and to an array at full speed; always on the CPU."""
    engine = backend.copy_engine()
    return engine is None or engine.is_direct(array)
