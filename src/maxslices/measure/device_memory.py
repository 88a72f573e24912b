"""Memory in use on the whole GPU, sampled in a thread.

It includes memory outside the allocators: C libraries, `cudaMalloc`, cuSOLVER, modules that the
driver loads, and every other program on that GPU.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..errors import DeviceError
from ..system.process_state import loaded, torch_on_gpu
from ..system.threads import HANG_S, WorkThread


class DeviceMeter:
    """Bytes in use on the current CUDA device, at the start and at most.

    Parameters
    ----------
    interval_s : float
        Seconds between two samples.
    also : tuple of callable
        Called after each sample.
    within : callable, optional
        Called for each sample with the function that reads the device. It calls this function, and
        reads another figure at the same moment.
    """

    def __init__(
        self,
        interval_s: float,
        also: tuple[Callable[[], None], ...] = (),
        within: Callable[[Callable[[], int]], None] | None = None,
    ) -> None:
        self.interval_s = interval_s
        self._within = within
        self.before_bytes: int | None = None
        self.highest_bytes: int | None = None
        self.after_bytes: int | None = None
        self._also = also
        self._done = threading.Event()
        self._thread: WorkThread | None = None
        self._read: Callable[[], int] | None = None

    def start(self) -> None:
        """Take the first sample and start the thread, if there is a CUDA library."""
        self._read = _reader()
        if self._read is None:
            return
        self.before_bytes = self.highest_bytes = self._read()
        self._thread = WorkThread(self._run, "memory meter")
        self._thread.start()

    def stop(self) -> None:
        """Take the last sample and end the thread."""
        if self._thread is not None:
            self._done.set()
            self._thread.join(HANG_S)
            with suppress(RuntimeError):  # a device that failed raises where it is used
                self.after_bytes = self.sample()

    def sample(self) -> int:
        """Read the device once."""
        assert self._read is not None
        assert self.highest_bytes is not None
        now_bytes = self._read()
        self.highest_bytes = max(self.highest_bytes, now_bytes)
        return now_bytes

    def _run(self) -> None:
        with suppress(RuntimeError):  # a device that failed raises where it is used
            while not self._done.wait(self.interval_s):
                if self._within is None:
                    self.sample()
                else:
                    self._within(self.sample)
                for read in self._also:
                    read()


def _reader() -> Callable[[], int] | None:
    """Return a function that reads the bytes in use on the device that is current here."""
    torch = torch_on_gpu()
    if loaded("cupy") is None and torch is not None:
        index = torch.cuda.current_device()

        def read_torch() -> int:
            free, total = torch.cuda.mem_get_info(index)
            return int(total - free)

        return read_torch
    try:
        cupy: Any = importlib.import_module("cupy")
    except ImportError:
        return None
    try:
        device = cupy.cuda.Device()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(f"there is no CUDA device to measure: {error}") from None

    def read_cupy() -> int:
        with device:
            free, total = cupy.cuda.runtime.memGetInfo()
        return int(total - free)

    return read_cupy
