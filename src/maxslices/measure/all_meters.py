"""The context manager that runs the meters of one device together."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..model.units import format_bytes
from .cupy_growth import GrowthMeter
from .cupy_pool import CupyMeter
from .device_memory import DeviceMeter
from .host_memory import TRACE_FRAMES, HostMeter, ResidentMeter
from .line_tracer import LineTracer
from .peak import Device, Peak
from .torch_cuda_memory import TorchMeter

SAMPLE_INTERVAL_S = 0.002
_OUTSIDE_BYTES = 32 * 2**20
"""Memory outside the allocators that is not worth a word: kernels that the driver loads,
buffers of C libraries."""


@contextmanager
def measure_peak(
    device: Device = "cpu",
    *,
    trace: bool = False,
    objects: bool = True,
    hooks: bool = True,
    interval_s: float = SAMPLE_INTERVAL_S,
) -> Iterator[Peak]:
    """Measure the most memory that a ``with`` block has alive at once.

    What was alive before is excluded; what the block allocates, its input perhaps, is
    counted. The figures are there when the block ends, also if it raises. Blocks may be
    nested, and threads started in one are counted.

    Parameters
    ----------
    device : {"cpu", "cuda"}
        "cpu" counts NumPy and the process; "cuda" counts CuPy, torch and the GPU that is
        current. A library that is not imported is left alone.
    trace : bool
        Also record where memory was allocated, what was alive at the peak and how memory
        went over time. Slow; on the CPU the extra objects are counted as well.
    objects : bool
        Whether Python objects count on the CPU, beside arrays. They make a method that works
        in many small steps up to three times slower.
    hooks : bool
        Whether CuPy counts each allocation and each return, 10 us for both. Without, what its
        pool has in use is looked at after each allocation: then memory from before that is freed
        meanwhile makes room for as much.
    interval_s : float
        Seconds between two samples of the GPU's memory.

    Yields
    ------
    Peak
        The figures, each apart; None where one is not available.

    Notes
    -----
    The figures speak of the whole process: other threads that work meanwhile are counted
    too. The kernel's maximum of resident memory and tracemalloc's and torch's peaks are
    started anew; measurements of this kind that are under way take that into account.

    Examples
    --------
    >>> import numpy as np
    >>> with measure_peak() as peak:
    ...     data = np.ones((10, 100, 100), np.float32)
    >>> 400_000 <= peak.numpy_bytes < 410_000
    True
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'cpu' or 'cuda', not {device!r}")
    peak = Peak(device)
    if device == "cpu":
        finish = _cpu(peak, trace, objects)
    else:
        finish = _cuda(peak, trace, hooks or trace, interval_s)
    began = time.perf_counter()
    try:
        yield peak
    finally:
        peak.wall_s = time.perf_counter() - began
        finish()


def _cpu(peak: Peak, trace: bool, objects: bool) -> Callable[[], None]:
    numpy = HostMeter(TRACE_FRAMES if trace else 1, objects or trace)
    resident = ResidentMeter()
    lines = LineTracer() if trace else None
    resident.start()
    numpy.start()
    if lines is not None:
        lines.start()

    def finish() -> None:
        if lines is not None:
            lines.stop()
        peak.numpy_bytes = numpy.stop()
        peak.device_before_bytes, peak.device_peak_bytes = resident.stop()
        if peak.numpy_bytes is None:
            peak.unseen.append("the code switched tracemalloc off")
            return
        if lines is not None:
            peak.where, peak.alive, peak.steps = lines.where, lines.alive(), tuple(lines.steps)
        else:
            _outside(peak, peak.numpy_bytes, "NumPy", 0.10)

    return finish


def _cuda(peak: Peak, trace: bool, hooks: bool, interval_s: float) -> Callable[[], None]:
    torch = TorchMeter()
    meter = CupyMeter if hooks else GrowthMeter
    cupy = meter(trace, torch) if _wants_cupy() else None
    within = None if cupy is None else cupy.sample_with
    device = DeviceMeter(interval_s, (torch.sample,), within)
    device.start()
    torch.start()
    if cupy is not None:
        cupy.start()

    def finish() -> None:
        if cupy is not None:
            cupy.stop()
            peak.cupy_in_use_bytes, peak.cupy_held_bytes = cupy.in_use_bytes, cupy.held_bytes
            peak.unseen += cupy.unseen
            if trace:
                peak.where, peak.alive, peak.steps = cupy.where, cupy.alive_at_peak(), cupy.steps()
        torch.stop()
        peak.unseen += torch.unseen
        if torch.figures is not None:
            peak.torch_allocated_bytes = torch.figures["allocated_bytes"]
            peak.torch_requested_bytes = torch.figures["requested_bytes"]
            peak.torch_reserved_bytes = torch.figures["reserved_bytes"]
        device.stop()
        peak.device_before_bytes, peak.device_peak_bytes = device.before_bytes, device.highest_bytes
        if peak.cupy_in_use_bytes and peak.torch_allocated_bytes:
            assert cupy is not None
            peak.cupy_and_torch_bytes = cupy.with_torch_bytes
        grown = after = 0
        if cupy is not None and cupy.in_use_bytes is not None:
            peak.rounding_bytes = cupy.rounding_bytes
            grown += cupy.highest_held - cupy.held_before + cupy.rounding_bytes
            after += cupy.held_after - cupy.held_before + cupy.rounding_bytes
        reserved = torch.before["reserved_bytes"]
        by_torch = max(0, torch.highest["reserved_bytes"] - reserved)
        after += torch.reserved_after - reserved
        if device.before_bytes is not None and device.after_bytes is not None:
            peak.outside_after_bytes = max(0, device.after_bytes - device.before_bytes - after)
            if cupy is not None and cupy.in_use_bytes is not None and not by_torch:
                beside = cupy.most_beside(device.before_bytes)
                peak.outside_bytes = max(beside, peak.outside_after_bytes)
        _outside(peak, grown + by_torch, "the allocators", 0.02)

    return finish


def _outside(peak: Peak, seen_bytes: int, whom: str, part: float) -> None:
    """Say so if the device's memory grew by clearly more than the allocators account for."""
    grown = peak.device_bytes
    if grown is None:
        return
    if peak.outside_bytes is None:
        peak.outside_bytes = max(0, grown - seen_bytes)
    if peak.outside_bytes > max(_OUTSIDE_BYTES, part * seen_bytes):
        what = "resident memory" if peak.device == "cpu" else "the GPU's memory in use"
        peak.unseen.append(
            f"{what} grew by {format_bytes(grown)}, but {whom} took only "
            f"{format_bytes(seen_bytes)}: {format_bytes(peak.outside_bytes)} were allocated "
            "elsewhere, such as by a C library"
        )


def _wants_cupy() -> bool:
    """Tell whether CuPy is in use, or will be: it is there, and torch is not at work instead."""
    if "cupy" in sys.modules:
        return True
    return "torch" not in sys.modules and importlib.util.find_spec("cupy") is not None
