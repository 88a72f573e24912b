"""Device memory that a program takes beside its arrays: CUDA's context and what is loaded into it.

Once a program has its context, the memory in use on the GPU is that context and whatever other
programs have there. So the smallest amount ever seen in use is an upper bound of the context. It is
recorded for each kind of GPU, driver and libraries. Other programs can make a context seem larger,
never smaller. A program that is alone on its GPU finds it to some MiB, and later programs read the
record, however busy the GPU is by then.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..core.block_memory import CONTEXT_BYTES, MODULES_BYTES
from ..measure.cache_dir import cache_file, keep, read_cached

_COMPUTE_UNITS, _MAJOR, _MINOR = 16, 75, 76
"""Attributes of a device (``cudaDeviceAttr``)."""


def reserved_bytes(cupy: Any) -> int:
    """Device memory to set aside on the current device for context and modules."""
    runtime = cupy.cuda.runtime
    free, total = map(int, runtime.memGetInfo())  # makes the context, if there was none
    path = _file(cupy, total)
    known = _read(path)
    least = min(total - free, known)
    if least < known:
        keep(path, {"context_bytes": least})
    return least + MODULES_BYTES


def _read(path: Path) -> int:
    """Smallest amount on record, or the assumed one."""
    try:
        found = read_cached(path)["context_bytes"]
    except (KeyError, TypeError):
        return CONTEXT_BYTES  # no record, or a damaged one
    return found if type(found) is int and 0 < found < CONTEXT_BYTES else CONTEXT_BYTES


def _file(cupy: Any, total_bytes: int) -> Path:
    """Record of the current device; its name is a hash of all that a context's size depends on."""
    runtime = cupy.cuda.runtime
    number = runtime.getDevice()
    kind = [runtime.deviceGetAttribute(n, number) for n in (_COMPUTE_UNITS, _MAJOR, _MINOR)]
    versions = [runtime.driverGetVersion(), runtime.runtimeGetVersion(), cupy.__version__]
    with suppress(OSError), open("/proc/driver/nvidia/version", encoding="utf-8") as file:
        versions.append(file.readline())
    loading = os.environ.get("CUDA_MODULE_LOADING", "")  # EAGER: much more at once
    return cache_file("contexts", [total_bytes, *kind, *versions, loading])
