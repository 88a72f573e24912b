"""Context manager that runs all meters of one device."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from ..core.allocators import Device
from ..core.units import format_bytes
from ..errors import DeviceError, RecordingError
from .cupy_hook import shared_hook
from .cupy_pool import CupyMeter, GrowthMeter
from .device_memory import DeviceMeter
from .host_memory import HostMeter
from .numpy_sequence import numpy_events_sent_to
from .peak import Peak
from .resident_memory import ResidentPeak
from .sequence_recorder import SequenceRecorder
from .torch_cuda_memory import TorchMeter

_LEAST_BYTES = 512
"""Least size in bytes of a recorded array, because Python code makes many small ones."""
SAMPLE_INTERVAL_S = 0.002
"""Time between two samples of the GPU's memory; shorter allocations of C libraries may be missed.
"""
_OUTSIDE_BYTES = 32 * 2**20
"""Largest growth outside the allocators that is not reported. Kernels and buffers of C libraries
take several MiB at their first use."""
_OUTSIDE_FRACTION = {"cpu": 0.10, "cuda": 0.02}
"""The same limit as a fraction of the memory in the allocators. It is larger on a CPU, because the
kernel counts pages in batches, and C's allocator keeps freed pages."""


@contextmanager
def measure_peak(
    device: Device = "cpu",
    *,
    hooks: bool = True,
    interval_s: float = SAMPLE_INTERVAL_S,
    record: tuple[int, int] | None = None,
) -> Iterator[Peak]:
    """Measure the peak memory of a ``with`` block.

    Memory from before the block is excluded. The figures are set when the block ends, also if it
    raises. Blocks may be nested, and all threads are counted.

    Parameters
    ----------
    device : {"cpu", "cuda"}
        "cpu" counts NumPy and the process. "cuda" counts CuPy, torch and the current GPU. Libraries
        that are not imported are ignored.
    hooks : bool
        Whether CuPy's hooks count each allocation and each return, in 10 us for both. Without them,
        the pool's bytes in use are read after each allocation, and earlier memory that is freed in
        the block lowers the figure.
    interval_s : float
        Seconds between two samples of the GPU's memory.
    record : tuple of int, optional
        Slices of the measured call, and bytes of its input. The sequence of its allocations from
        CuPy's pool or NumPy is then recorded.

    Yields
    ------
    Peak
        The figures, with None for those that are not available.

    Notes
    -----
    The figures are for the whole process, so other threads are counted. The kernel's maximum of
    resident memory and the peaks of tracemalloc and torch are reset, which concurrent measurements
    of this kind take into account.

    Examples
    --------
    >>> import numpy as np
    >>> with measure_peak() as peak:
    ...     data = np.ones((10, 100, 100), np.float32)
    >>> 400_000 <= peak.counted_bytes < 420_000
    True
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'cpu' or 'cuda', not {device!r}")
    peak = Peak(device)
    recorder = None
    if record is not None and (device == "cpu" or _wants_cupy()):
        recorder = SequenceRecorder(*record, sys._getframe(2))
    if device == "cpu":
        finish = _start_cpu(peak, recorder)
    else:
        finish = _start_cuda(peak, hooks, interval_s, recorder)
    began = time.perf_counter()
    try:
        yield peak
    finally:
        peak.wall_s = time.perf_counter() - began
        finish()


def _start_cpu(peak: Peak, recorder: SequenceRecorder | None) -> Callable[[], None]:
    numpy = HostMeter()
    resident = ResidentPeak()
    numpy.start()
    recording = ExitStack()
    if recorder is not None:
        try:
            recording.enter_context(numpy_events_sent_to(recorder, _LEAST_BYTES))
        except DeviceError:  # this NumPy cannot
            recorder = None

    def finish() -> None:
        recording.close()
        peak.numpy_bytes = numpy.stop()
        peak.device_before_bytes = resident.before_bytes
        peak.device_peak_bytes = resident.highest_bytes
        if peak.numpy_bytes is None:
            peak.unseen.append("the code switched tracemalloc off")
            return
        _report_outside(peak, peak.numpy_bytes, "NumPy")
        if recorder is not None and recorder.is_disturbed:
            raise RecordingError("an exception inside NumPy was lost: measure without `record`")
        if recorder is not None and recorder.is_complete:
            peak.sequence = recorder.sequence()

    return finish


def _start_cuda(
    peak: Peak, hooks: bool, interval_s: float, recorder: SequenceRecorder | None
) -> Callable[[], None]:
    torch = TorchMeter()
    meter = CupyMeter if hooks else GrowthMeter
    cupy = meter() if _wants_cupy() else None
    within = None if cupy is None else cupy.sample_with
    device = DeviceMeter(interval_s, (torch.sample,), within)
    device.start()
    torch.start()
    if cupy is not None:
        cupy.read_device = device.sample if device.before_bytes is not None else None
        shared_hook.add(cupy)
    if recorder is not None:
        shared_hook.add(recorder)

    def finish() -> None:
        if recorder is not None:
            shared_hook.remove(recorder)
            peak.sequence = recorder.sequence() if recorder.is_complete else None
        if cupy is not None:
            shared_hook.remove(cupy)
            peak.cupy_in_use_bytes, peak.cupy_held_bytes = cupy.in_use_bytes, cupy.held_bytes
            peak.unseen += cupy.unseen
        torch.stop()
        peak.unseen += torch.unseen
        peak.torch_allocated_bytes = torch.allocated_bytes
        device.stop()
        peak.device_before_bytes, peak.device_peak_bytes = device.before_bytes, device.highest_bytes
        grown = after = 0
        if cupy is not None and cupy.in_use_bytes is not None:
            peak.rounding_bytes = cupy.rounding_bytes
            peak.earlier_freed_bytes = cupy.earlier_freed_bytes
            grown += cupy.highest_held - cupy.held_before + cupy.rounding_bytes
            after += cupy.held_after - cupy.held_before + cupy.rounding_bytes
        reserved = torch.before["reserved_bytes"]
        by_torch = max(0, torch.highest["reserved_bytes"] - reserved)
        after += torch.reserved_after - reserved
        if device.before_bytes is not None and device.after_bytes is not None:
            peak.outside_after_bytes = max(0, device.after_bytes - device.before_bytes - after)
            if cupy is not None and cupy.in_use_bytes is not None and not by_torch:
                peak.outside_readings = cupy.outside_readings(device.before_bytes)
                most = max((r.held_bytes + r.n_bytes for r in peak.outside_readings), default=0)
                peak.outside_bytes = max(most - cupy.in_use_bytes, peak.outside_after_bytes)
        _report_outside(peak, grown + by_torch, "the allocators")

    return finish


def _report_outside(peak: Peak, seen_bytes: int, whom: str) -> None:
    """Add to `unseen` if the device's memory grew clearly more than the allocators account for."""
    grown = peak.device_bytes
    if grown is None:
        return
    if peak.outside_bytes is None:
        peak.outside_bytes = max(0, grown - seen_bytes)
    if peak.outside_bytes > max(_OUTSIDE_BYTES, _OUTSIDE_FRACTION[peak.device] * seen_bytes):
        what = "resident memory" if peak.device == "cpu" else "the GPU's memory in use"
        peak.unseen.append(
            f"{what} grew by {format_bytes(grown)}, but {whom} took only "
            f"{format_bytes(seen_bytes)}: {format_bytes(peak.outside_bytes)} were allocated "
            "elsewhere, such as by a C library"
        )


def _wants_cupy() -> bool:
    """True if CuPy is imported, or may be: it is installed, and torch is not used instead."""
    if "cupy" in sys.modules:
        return True
    return "torch" not in sys.modules and importlib.util.find_spec("cupy") is not None
