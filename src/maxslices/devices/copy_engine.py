"""The interface of copies between a device and the host."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray


class DeviceEvent(Protocol):
    """A point in a device's queue of work, which it reaches some time later."""

    def synchronize(self) -> None:
        """Wait until the device reaches it."""

    def time_s(self) -> float:
        """Time at which it was reached, in seconds of `time.perf_counter`; not before that."""


class CopyEngine(Protocol):
    """Copies between host and device that overlap with each other and with computing.

    The arrays of a copy must stay unchanged until the event at its end is reached.
    """

    def staging(self, n_bytes: int) -> NDArray[np.uint8]:
        """Host memory that the device copies from and to while the host goes on."""

    def is_direct(self, array: NDArray[Any]) -> bool:
        """True if an array is in such memory."""

    def buffer(self, n_bytes: int) -> Any:
        """Memory for blocks on the device, as an array of bytes."""

    def send(
        self, host: NDArray[Any], buffer: Any, after: DeviceEvent
    ) -> tuple[DeviceEvent, DeviceEvent]:
        """Queue a copy to the device.

        Parameters
        ----------
        host : ndarray
            3D, with gaps along the first axis only.
        buffer : device array
            Of the same shape and dtype, C-contiguous.
        after : DeviceEvent
            The copy begins after it, when the buffer is free.

        Returns
        -------
        begin, end : DeviceEvent
            Begin and end of the copy.
        """

    def fetch(
        self, data: Any, host: NDArray[Any], after: DeviceEvent
    ) -> tuple[DeviceEvent, DeviceEvent]:
        """Queue a copy to the host.

        Parameters
        ----------
        data : device array
            3D, with gaps along the first axis only.
        host : ndarray
            Of the same shape and dtype, with gaps along the first axis only.
        after : DeviceEvent
            The copy begins after it, when the data are computed.

        Returns
        -------
        begin, end : DeviceEvent
            Begin and end of the copy.
        """

    def record(self) -> DeviceEvent:
        """Event after all computing that was queued so far."""

    def wait(self, event: DeviceEvent) -> None:
        """Let all computing that is queued from now on wait for an event."""


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
