"""Pinned host memory, which a GPU copies from and to by itself."""

from __future__ import annotations

import math
import mmap
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .device_count import count_devices
from .out_of_memory import is_out_of_memory

_PAGE_BYTES = 4096
_PORTABLE = 1
"""Pinned for all GPUs, not just the current one (``cudaHostRegisterPortable``)."""
_THREADS = 8
_PART_BYTES = 2**24
"""Bytes that a thread touches at one time: a slab of 100 MB has some for each."""


class _Pinned:
    """Memory of the process's own, in large pages where there are, and locked for a GPU.

    CUDA's own allocation of pinned memory takes 0.35 s a GiB. Large pages that several
    threads touch first, then registered, take 0.04 s (measured on an H200's host).
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        import cupy

        self._runtime = cupy.cuda.runtime
        n_bytes = max(1, math.prod(shape) * dtype.itemsize)
        self._map = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        touched = np.frombuffer(self._map, np.uint8)
        address = touched.ctypes.data
        _touch(touched)
        del touched
        self._runtime.hostRegister(address, n_bytes, _PORTABLE)
        self._address = address
        self.__array_interface__ = {
            "shape": shape,
            "typestr": dtype.str,
            "data": (address, False),
            "version": 3,
        }

    def __del__(self) -> None:
        # At the end of the process CUDA may be gone, and the system frees all of it anyway.
        if hasattr(self, "_address") and not sys.is_finalizing():
            self._runtime.hostUnregister(self._address)


def _touch(memory: NDArray[np.uint8]) -> None:
    """Make all pages be there, by several threads at once."""
    parts = range(0, memory.size, _PART_BYTES)

    def touch(start: int) -> None:
        memory[start : start + _PART_BYTES : _PAGE_BYTES] = 0

    if len(parts) == 1:
        touch(0)
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(touch, parts))


def pinned_empty(shape: tuple[int, ...] | int, dtype: DTypeLike = float) -> NDArray[Any]:
    """Return an array in pinned memory, where there is a GPU; its values are arbitrary.

    A GPU copies from and to such an array by itself, at the full speed of the link and while
    it computes. A scan that is given in one, and a result that is asked for in one, are not
    copied on the host. The memory is freed with the array.

    Parameters
    ----------
    shape : int or tuple of int
        Shape of the array.
    dtype : dtype
        Element type.

    Returns
    -------
    ndarray
        As `numpy.empty` returns it; and what that returns, where there is no GPU.

    Raises
    ------
    MemoryError
        If there is not as much memory, or the system does not allow as much to be pinned.
    """
    if not count_devices():
        return np.empty(shape, dtype)
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    return pinned(dims, np.dtype(dtype))


def pinned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array in pinned memory; see `pinned_empty`."""
    import cupy

    try:
        return np.asarray(_Pinned(shape, dtype))
    except (OSError, cupy.cuda.runtime.CUDARuntimeError) as error:
        if not is_out_of_memory(error):  # a device that failed before says so here, perhaps
            raise
        n_bytes = math.prod(shape) * dtype.itemsize
        raise MemoryError(f"cannot pin {n_bytes} bytes of host memory: {error}") from None
