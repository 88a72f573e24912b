"""How many GPUs there are."""

from __future__ import annotations


def count_devices() -> int:
    """Return the number of GPUs that CuPy can use; 0 where it is missing or finds none."""
    try:
        import cupy
    except ImportError:
        return 0
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0
