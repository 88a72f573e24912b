"""What Dask calls in each worker with a GPU as it starts."""

from __future__ import annotations

from ..system.threads import WorkThread
from .worker import device_of


def dask_setup(_worker: object) -> None:
    """Begin to use the GPU, beside connecting to the scheduler and importing methods.

    An error is left to who asks for the device, and meets it again.
    """
    WorkThread(lambda: device_of("cuda").free_bytes(), "device").start()
