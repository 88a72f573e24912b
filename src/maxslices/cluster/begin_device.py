"""What Dask calls in each worker with a GPU as it starts."""

from __future__ import annotations

from contextlib import suppress

from ..errors import DeviceError
from ..system.work_thread import WorkThread
from .worker import device_of


def dask_setup(_worker: object) -> None:
    """Begin to use the GPU, beside connecting to the scheduler and importing methods."""
    WorkThread(_begin, "device").start()


def _begin() -> None:
    with suppress(DeviceError):  # who asks for the device is told
        device_of("cuda").free_bytes()
