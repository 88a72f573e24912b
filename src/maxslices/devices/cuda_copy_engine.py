"""The way between a GPU and the host: a stream in, a stream out."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model import account
from ..system.threads import copy
from .copy_engine import DeviceEvent
from .pinned_memory import pinned

_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
_PINNED = 1
"""What CUDA calls registered or pinned host memory (``cudaMemoryTypeHost``)."""


class CudaEvent:
    """A CUDA event; see `DeviceEvent`."""

    def __init__(self, event: Any, origin: Any, origin_s: float) -> None:
        self.event = event
        self._origin, self._origin_s = origin, origin_s

    def synchronize(self) -> None:
        """Wait until it is reached."""
        self.event.synchronize()

    def time_s(self) -> float:
        """Return when it was reached."""
        import cupy

        return self._origin_s + float(cupy.cuda.get_elapsed_time(self._origin, self.event)) / 1e3


class CudaCopyEngine:
    """Copies of one GPU; see `CopyEngine`.

    Methods compute on CUDA's default stream, as they do for anyone who calls them: then what
    a library does on a stream of its own still comes in order. The copies have streams that
    the default stream does not wait for.

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
        """Return pinned memory; from any thread."""
        with self._device:
            return pinned((n_bytes,), np.dtype(np.uint8))

    def is_direct(self, array: NDArray[Any]) -> bool:
        """Tell whether an array is in pinned memory, from its first byte to its last."""
        if array.size == 0:
            return False
        attributes = self._cupy.cuda.runtime.pointerGetAttributes
        low, high = np.lib.array_utils.byte_bounds(array)
        return all(attributes(address).type == _PINNED for address in (low, high - 1))

    def buffer(self, n_bytes: int) -> Any:
        """Return bytes from CuPy's pool."""
        return self._cupy.empty(n_bytes, np.uint8)

    def send(
        self, host: NDArray[Any], buffer: Any, after: DeviceEvent
    ) -> tuple[DeviceEvent, DeviceEvent]:
        """Begin to copy to the device; from any thread."""
        target, source = (buffer.data.ptr, buffer), (host.ctypes.data, host)
        return self._copy(self._in, target, source, _HOST_TO_DEVICE, after)

    def fetch(
        self, data: Any, host: NDArray[Any], after: DeviceEvent
    ) -> tuple[DeviceEvent, DeviceEvent]:
        """Begin to copy to the host; from any thread."""
        target, source = (host.ctypes.data, host), (data.data.ptr, data)
        return self._copy(self._out, target, source, _DEVICE_TO_HOST, after)

    def record(self) -> DeviceEvent:
        """Record an event after what was computed so far."""
        return self._record(self._compute)

    def wait(self, mark: DeviceEvent) -> None:
        """Let the default stream wait for an event."""
        assert isinstance(mark, CudaEvent)
        self._compute.wait_event(mark.event)

    def upload(self, host: NDArray[Any]) -> Any:
        """Return a C-contiguous array of the host on the device, as fast as the link.

        What is not pinned goes there in pieces that are; what is, while the host goes on.
        """
        data = self._cupy.empty(host.shape, host.dtype)
        if host.ndim == 3 and self.is_direct(host):
            _, end = self.send(host, data, self.record())
            self.wait(end)
            return data
        source, target = host.reshape(-1).view(np.uint8), data.reshape(-1).view(np.uint8)
        staging = account.upload_staging(source.size)
        free: list[tuple[NDArray[np.uint8], DeviceEvent]] = []
        after = self.record()
        try:
            for start in range(0, source.size, staging.n_bytes):
                part = source[start : start + staging.n_bytes]
                if len(free) < staging.count:
                    slab = self.staging(staging.n_bytes)
                else:
                    slab, copied = free.pop(0)
                    copied.synchronize()
                copy(slab[: part.size], part)
                place = target[start : start + part.size].reshape(part.size, 1, 1)
                _, end = self.send(slab[: part.size].reshape(part.size, 1, 1), place, after)
                free.append((slab, end))
        finally:  # no slab may go while it is copied from, even if there was none for the next
            for _, end in free:
                end.synchronize()
        return data

    def _record(self, stream: Any) -> CudaEvent:
        event = self._cupy.cuda.Event()
        event.record(stream)
        return CudaEvent(event, self._origin, self._origin_s)

    def _copy(
        self,
        stream: Any,
        target: tuple[int, Any],
        source: tuple[int, Any],
        kind: int,
        after: DeviceEvent,
    ) -> tuple[DeviceEvent, DeviceEvent]:
        assert isinstance(after, CudaEvent)
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
    """Return the bytes from one index of the first axis to the next."""
    return int(array.strides[0]) if array.shape[0] > 1 else width
