"""Copies between a GPU and the host: a stream in, a stream out, and pinned host memory.

A GPU copies from and to pinned memory by itself.

Pinned memory is allocated in large pages, touched by several threads, and then registered. This
takes 0.04 s for 1 GiB, and CUDA's own allocation 0.35 s. With the latter a run from pageable to
pageable memory takes 85 % longer, and httomo's pipeline with its result saved 29 %. With small
pages, a run from pageable to pageable memory takes 17 % longer, and if one thread touches the pages
16 % (H200, 2026-11-22).
"""

from __future__ import annotations

import math
import mmap
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..core import block_memory
from ..errors import DeviceError
from ..system.threads import parallel_copy, parallel_for
from .out_of_memory import is_out_of_memory

_PAGE_BYTES = 4096
"""Smallest page of the systems that CUDA supports. Writing a byte in each one allocates all
pages."""
_PORTABLE = 1
"""Flag for memory that is pinned for all GPUs (``cudaHostRegisterPortable``)."""
_THREADS = 8
"""Number of threads that touch pages: 0.04 s for 1 GiB (H200 with 16 cores, 2026-11-21)."""
_PART_BYTES = 2**24
"""Bytes that a thread touches at a time, so that a staging buffer of 100 MB occupies all
threads."""


class _Pinned:
    """An anonymous mapping that is registered with CUDA, in large pages if the system has them."""

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
        # At the end of the process CUDA may be unloaded, and the system frees the memory.
        if hasattr(self, "_address") and not sys.is_finalizing():
            self._runtime.hostUnregister(self._address)


def _touch(memory: NDArray[np.uint8]) -> None:
    """Allocate all pages of a mapping with several threads."""
    parts = range(0, memory.size, _PART_BYTES)

    def touch(start: int) -> None:
        memory[start : start + _PART_BYTES : _PAGE_BYTES] = 0

    parallel_for(len(parts), lambda i: touch(parts[i]), _THREADS)


def count_devices() -> int:
    """Number of GPUs that CuPy can use; 0 if CuPy is not installed or finds none.

    Raises
    ------
    DeviceError
        If CuPy cannot be imported because it has no folder for compiled kernels.
    """
    try:
        import cupy
    except ImportError:
        return 0
    except OSError as error:  # CuPy creates a folder at import, in a home that may not exist
        raise DeviceError(
            f"CuPy cannot be used ({error}): set CUPY_CACHE_DIR to a writable folder for compiled "
            "kernels, or use --device cpu"
        ) from None
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


def pinned_empty(shape: tuple[int, ...] | int, dtype: DTypeLike = float) -> NDArray[Any]:
    """Array of arbitrary values in pinned memory, if there is a GPU.

    A GPU copies from and to such an array at the full speed of the link and while it computes. A
    scan or a result in such an array is not copied on the host. The memory is freed with the array.

    Parameters
    ----------
    shape : int or tuple of int
        Shape of the array.
    dtype : dtype
        Element type.

    Returns
    -------
    ndarray
        The array. Without a GPU it is made by `numpy.empty`.

    Raises
    ------
    MemoryError
        If there is not enough memory, or the system does not allow to pin it.
    """
    if not count_devices():
        return np.empty(shape, dtype)
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    return pinned(dims, np.dtype(dtype))


def pinned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Array of arbitrary values in pinned memory on a machine with a GPU. See `pinned_empty`."""
    import cupy

    try:
        return np.asarray(_Pinned(shape, dtype))
    except (OSError, cupy.cuda.runtime.CUDARuntimeError) as error:
        if not is_out_of_memory(error):  # CUDA may report an earlier failure of the device here
            raise
        n_bytes = math.prod(shape) * dtype.itemsize
        raise MemoryError(f"cannot pin {n_bytes} bytes of host memory: {error}") from None


_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
"""Kinds of copies (``cudaMemcpyKind``)."""
_PINNED = 1
"""Type of pinned and of registered host memory (``cudaMemoryTypeHost``)."""


class DeviceEvent:
    """A point in a GPU's queue of work."""

    def __init__(self, event: Any, origin: Any, origin_s: float) -> None:
        self.event = event
        self._origin, self._origin_s = origin, origin_s

    def synchronize(self) -> None:
        """Wait until the GPU reaches it."""
        self.event.synchronize()

    def time_s(self) -> float:
        """Time at which it was reached, in seconds of `time.perf_counter`."""
        import cupy

        return self._origin_s + float(cupy.cuda.get_elapsed_time(self._origin, self.event)) / 1e3


class CopyEngine:
    """Copies of one GPU that overlap with each other and with computing.

    The arrays of a copy must not change until the event at its end is reached.

    Methods compute on CUDA's default stream, which keeps the order with libraries that use streams
    of their own. Copies use streams that the default stream does not wait for.

    Parameters
    ----------
    number : int
        CUDA device number.
    """

    def __init__(self, number: int) -> None:
        import cupy

        self._cupy = cupy
        self._device = cupy.cuda.Device(number)
        with self._device:
            self._compute = cupy.cuda.Stream.null
            self._in = cupy.cuda.Stream(non_blocking=True)
            self._out = cupy.cuda.Stream(non_blocking=True)
            self._origin = cupy.cuda.Event()
            self._origin.record(self._compute)
            self._origin.synchronize()
            self._origin_s = time.perf_counter()

    def staging(self, n_bytes: int) -> NDArray[np.uint8]:
        """Allocate pinned memory. Any thread may call this."""
        with self._device:
            return pinned((n_bytes,), np.dtype(np.uint8))

    def is_direct(self, array: NDArray[Any]) -> bool:
        """True if the first and the last byte of an array are in pinned memory."""
        if array.size == 0:
            return False
        attributes = self._cupy.cuda.runtime.pointerGetAttributes
        low, high = np.lib.array_utils.byte_bounds(array)
        return all(attributes(address).type == _PINNED for address in (low, high - 1))

    def buffer(self, n_bytes: int) -> Any:
        """Allocate bytes from CuPy's pool."""
        return self._cupy.empty(n_bytes, np.uint8)

    def send(
        self, host: NDArray[Any], buffer: Any, after: DeviceEvent
    ) -> tuple[DeviceEvent, DeviceEvent]:
        """Queue a copy to the device. Any thread may call this.

        Parameters
        ----------
        host : ndarray
            3D, with gaps along the first axis only.
        buffer : device array
            C-contiguous, of the same shape and dtype.
        after : DeviceEvent
            The copy begins after this event, when the buffer is free.

        Returns
        -------
        begin, end : DeviceEvent
            Begin and end of the copy.
        """
        target, source = (buffer.data.ptr, buffer), (host.ctypes.data, host)
        return self._copy(self._in, target, source, _HOST_TO_DEVICE, after)

    def fetch(
        self, data: Any, host: NDArray[Any], after: DeviceEvent
    ) -> tuple[DeviceEvent, DeviceEvent]:
        """Queue a copy to the host. Any thread may call this.

        Parameters
        ----------
        data : device array
            3D, with gaps along the first axis only.
        host : ndarray
            Of the same shape and dtype, with gaps along the first axis only.
        after : DeviceEvent
            The copy begins after this event, when the data are computed.

        Returns
        -------
        begin, end : DeviceEvent
            Begin and end of the copy.
        """
        target, source = (host.ctypes.data, host), (data.data.ptr, data)
        return self._copy(self._out, target, source, _DEVICE_TO_HOST, after)

    def record(self) -> DeviceEvent:
        """Event after all work that is queued so far."""
        return self._record(self._compute)

    def wait(self, event: DeviceEvent) -> None:
        """Let all work that is queued from now on wait for an event."""
        self._compute.wait_event(event.event)

    def upload(self, host: NDArray[Any]) -> Any:
        """Copy a C-contiguous array of the host to the device at the speed of the link.

        Pinned arrays are copied asynchronously. Other arrays are copied through pieces of pinned
        memory, one of which is filled by threads while another one is copied. With CuPy's own copy
        httomo's pipeline with its result in pinned memory takes 8 % longer, and a run from pageable
        to pageable memory 21 % (H200, 2026-11-22, the latter within the spread).
        """
        data = self._cupy.empty(host.shape, host.dtype)
        if host.ndim == 3 and self.is_direct(host):
            _, end = self.send(host, data, self.record())
            self.wait(end)
            return data
        source, target = host.reshape(-1).view(np.uint8), data.reshape(-1).view(np.uint8)
        staging = block_memory.upload_staging(source.size)
        used: list[tuple[NDArray[np.uint8], DeviceEvent]] = []
        after = self.record()
        try:
            for start in range(0, source.size, staging.n_bytes):
                part = source[start : start + staging.n_bytes]
                if len(used) < staging.count:
                    piece = self.staging(staging.n_bytes)
                else:
                    piece, copied = used.pop(0)
                    copied.synchronize()
                parallel_copy(piece[: part.size], part)
                place = target[start : start + part.size].reshape(part.size, 1, 1)
                _, end = self.send(piece[: part.size].reshape(part.size, 1, 1), place, after)
                used.append((piece, end))
        finally:  # also after an error, no piece may be freed during its copy
            for _, end in used:
                end.synchronize()
        return data

    def _record(self, stream: Any) -> DeviceEvent:
        event = self._cupy.cuda.Event()
        event.record(stream)
        return DeviceEvent(event, self._origin, self._origin_s)

    def _copy(
        self,
        stream: Any,
        target: tuple[int, Any],
        source: tuple[int, Any],
        kind: int,
        after: DeviceEvent,
    ) -> tuple[DeviceEvent, DeviceEvent]:
        runtime = self._cupy.cuda.runtime
        with self._device:
            stream.wait_event(after.event)
            begin = self._record(stream)
            (to, target_array), (origin, source_array) = target, source
            n_bytes, height = source_array.nbytes, source_array.shape[0]
            width = n_bytes // height
            pitches = [_pitch(array, width) for array in (target_array, source_array)]
            if pitches == [width, width]:
                runtime.memcpyAsync(to, origin, n_bytes, kind, stream.ptr)
            else:
                runtime.memcpy2DAsync(
                    to, pitches[0], origin, pitches[1], width, height, kind, stream.ptr
                )
            return begin, self._record(stream)


def _pitch(array: Any, width: int) -> int:
    """Bytes from one index of the first axis to the next."""
    return int(array.strides[0]) if array.shape[0] > 1 else width
