"""What the runner asks of the way between a device and the host."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray


class DeviceEvent(Protocol):
    """A point in the work that a device was given; reached some time later."""

    def synchronize(self) -> None:
        """Wait until it is reached."""

    def time_s(self) -> float:
        """Return when it was reached, in seconds of `time.perf_counter`; once it was."""


class CopyEngine(Protocol):
    """Copies between host and device, each way beside the other and beside computing.

    What is given to a copy must stay as it is until the mark at its end is reached.
    """

    def staging(self, n_bytes: int) -> NDArray[np.uint8]:
        """Return host memory that the device can copy from and to while the host goes on."""

    def is_direct(self, array: NDArray[Any]) -> bool:
        """Tell whether the device can do so with this array."""

    def buffer(self, n_bytes: int) -> Any:
        """Return a place for blocks on the device, an array of bytes."""

    def send(
        self, host: NDArray[Any], buffer: Any, after: DeviceEvent
    ) -> tuple[DeviceEvent, DeviceEvent]:
        """Begin to copy to the device once `after` is reached; return its begin and its end.

        Parameters
        ----------
        host : ndarray
            3D, without gaps but along the first axis.
        buffer : device array
            Of its shape and dtype, C-contiguous.
        after : DeviceEvent
            From when on the buffer is free.
        """

    def fetch(
        self, data: Any, host: NDArray[Any], after: DeviceEvent
    ) -> tuple[DeviceEvent, DeviceEvent]:
        """Begin to copy to the host once `after` is reached; return its begin and its end.

        Parameters
        ----------
        data : device array
            3D, without gaps but along the first axis.
        host : ndarray
            Of its shape and dtype, likewise.
        after : DeviceEvent
            From when on the data are there.
        """

    def record(self) -> DeviceEvent:
        """Return the point at which all is computed that was given to the device so far."""

    def wait(self, mark: DeviceEvent) -> None:
        """Let what is computed from here on wait for a mark."""


def is_copyable(array: Any) -> bool:
    """Tell whether a 3D array has no gaps but along its first axis."""
    _, rows, columns = array.shape
    size = array.dtype.itemsize
    strides = array.strides
    return bool(
        (columns == 1 or strides[2] == size)
        and (rows == 1 or strides[1] == columns * size)
        and (array.shape[0] == 1 or strides[0] >= rows * columns * size)
    )


def as_block(memory: Any, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
    """Return the beginning of a piece of memory, an array of bytes, as an array."""
    dtype = np.dtype(dtype)
    n_bytes = int(np.prod(shape)) * dtype.itemsize
    return memory[:n_bytes].view(dtype).reshape(shape)
