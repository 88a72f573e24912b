"""The interface between the runner and a device: arrays, copies, names."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..core.allocators import Device
from ..errors import DeviceError


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

    def reserve(self, n_bytes: int, largest_bytes: int) -> None:
        """Take memory from the system in one piece, and hand it out in parts until `release`.

        Parameters
        ----------
        n_bytes : int
            Estimated peak of a section.
        largest_bytes : int
            Largest array of a block.

        Raises
        ------
        Exception
            An error that `is_out_of_memory` recognises, if there is not as much.
        """

    def forget_plans(self) -> None:
        """Drop cached FFT plans, whose workspaces go back to the pool."""

    def release(self) -> None:
        """Give back memory that caches and pools hold but do not use."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """True if an exception means that memory ran out."""


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
    except OSError as error:  # CuPy makes its folder when imported, in a home that may not exist
        raise DeviceError(
            f"CuPy cannot be used ({error}): set CUPY_CACHE_DIR to a folder that can be written "
            "to, for compiled kernels, or use --device cpu"
        ) from None
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


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
