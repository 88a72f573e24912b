"""Name of a device, as records and runs remember it."""

from __future__ import annotations

from functools import lru_cache

from .backend import Backend


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
