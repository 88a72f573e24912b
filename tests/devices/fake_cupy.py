"""A simulated CuPy in host memory, with what the backend uses of it."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np


class CUDARuntimeError(RuntimeError):
    pass


class OutOfMemoryError(MemoryError):
    pass


CUDARuntimeError.__module__ = "cupy_backends.cuda.api.runtime"
OutOfMemoryError.__module__ = "cupy.cuda.memory"


class Pool:
    def __init__(self):
        self.limit, self.in_use, self.held, self.n_freed = 0, 300, 1000, 0

    def get_limit(self):
        return self.limit

    def malloc(self, n_bytes):
        if self.held + n_bytes > self.limit:
            raise OutOfMemoryError(n_bytes)
        self.held, self.in_use = self.held + n_bytes, self.in_use + n_bytes
        return n_bytes

    def set_limit(self, size):
        self.limit = size

    def total_bytes(self):
        return self.held

    def used_bytes(self):
        return self.in_use

    def free_bytes(self):
        return self.held - self.in_use

    def free_all_blocks(self):
        self.held, self.n_freed = self.in_use, self.n_freed + 1


class Plans(dict):
    """CuPy's cache of FFT plans, which yields pairs. Its method ``clear`` collects garbage."""

    def __iter__(self):
        return iter(list(self.items()))

    def clear(self):
        raise AssertionError("collects garbage")


def install(monkeypatch, n_devices=1):
    """Install the simulated CuPy in place of CuPy, and return it."""
    cupy = ModuleType("cupy")
    cupy.pool, cupy.entered, cupy.plans = Pool(), [], Plans(fft="its plan")

    class Device:
        def __init__(self, number=0):
            self.id = number

        def __enter__(self):
            cupy.entered.append(self.id)
            return self

        def __exit__(self, *exc_info):
            cupy.entered.append(None)

    def count():
        if n_devices == 0:
            raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
        return n_devices

    runtime = SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=count,
        memGetInfo=lambda: (cupy.free_bytes, cupy.total_bytes),
        getDevice=lambda: 0,
        deviceGetAttribute=lambda attribute, number: attribute,
        driverGetVersion=lambda: 13000,
        runtimeGetVersion=lambda: 13020,
    )
    cupy.free_bytes, cupy.total_bytes, cupy.__version__ = 100_000, 200_000, "14.2.0"
    memory = SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
    cupy.allocator = cupy.pool.malloc

    def set_allocator(allocator):
        cupy.allocator = allocator

    cupy.cuda = SimpleNamespace(
        runtime=runtime,
        Device=Device,
        memory=memory,
        get_allocator=lambda: cupy.allocator,
        set_allocator=set_allocator,
    )
    cupy.fft = SimpleNamespace(config=SimpleNamespace(get_plan_cache=lambda: cupy.plans))
    cupy.get_default_memory_pool = lambda: cupy.pool
    cupy.asarray, cupy.asnumpy = np.array, np.array
    cupy.ascontiguousarray = np.ascontiguousarray
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return cupy
