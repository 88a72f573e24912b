"""Fake of CuPy 14: a pool, per-thread hooks and an allocator."""

from __future__ import annotations

import sys
import threading
from types import ModuleType

GRANULE_BYTES = 512
GRAIN_BYTES = 2 * 2**20


class FakePool:
    """Counts as `cupy.cuda.MemoryPool` does, and keeps freed blocks."""

    def __init__(self, module):
        self._module = module
        self._used = self._total = self._driver = self._small = 0
        self._next_pointer = GRAIN_BYTES
        self._lock = threading.Lock()
        self.largest = 2**62  # larger requests are refused

    def used_bytes(self):
        return self._used

    def total_bytes(self):
        return self._total

    def hold(self, n_bytes):
        self._total += n_bytes

    def free_all_blocks(self):
        kept = -(-self._used // GRAIN_BYTES) * GRAIN_BYTES
        self._module.device_used_bytes -= self._driver - kept
        self._total, self._driver, self._small = self._used, kept, 0

    def _take(self, n_bytes):
        """Take from the driver in whole grains, shared by small blocks."""
        before = -(-self._small // GRAIN_BYTES)
        if n_bytes < GRAIN_BYTES:
            self._small += n_bytes
            grains = -(-self._small // GRAIN_BYTES) - before
        else:
            grains = -(-n_bytes // GRAIN_BYTES)
        self._driver += grains * GRAIN_BYTES
        self._module.device_used_bytes += grains * GRAIN_BYTES

    def malloc(self, size):
        rounded = -(-size // GRANULE_BYTES) * GRANULE_BYTES
        hooks = list(self._module.get_memory_hooks().values())
        for hook in hooks:
            hook.malloc_preprocess(device_id=0, size=size, mem_size=rounded)
        if rounded > self.largest:
            for hook in hooks:
                hook.malloc_postprocess(
                    device_id=0, size=size, mem_size=rounded, mem_ptr=0, pmem_id=0
                )
            raise MemoryError
        with self._lock:
            self._used += rounded
            pointer = self._next_pointer
            self._next_pointer += rounded
        taken = self._used - self._total
        if taken > 0:
            for hook in hooks:
                hook.alloc_preprocess(device_id=0, mem_size=taken)
            self._take(taken)
            self._total = self._used
            for hook in hooks:
                hook.alloc_postprocess(device_id=0, mem_size=taken, mem_ptr=pointer)
        block = FakeBlock(self, pointer, rounded)
        for hook in hooks:
            hook.malloc_postprocess(
                device_id=0, size=size, mem_size=rounded, mem_ptr=pointer, pmem_id=id(block)
            )
        return block


class FakeBlock:
    """Pooled memory, which any thread may give back."""

    def __init__(self, pool, pointer, size):
        self.pool, self.ptr, self.size = pool, pointer, size

    def free(self):
        hooks = list(self.pool._module.get_memory_hooks().values())
        ids = {"mem_ptr": self.ptr, "pmem_id": id(self)}
        arguments = {"device_id": 0, "mem_size": self.size, **ids}
        for hook in hooks:
            hook.free_preprocess(**arguments)
        with self.pool._lock:
            self.pool._used -= self.size
        for hook in hooks:
            hook.free_postprocess(**arguments)


class FakeDevice:
    id = 0

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        return None


def install(monkeypatch):
    """Install a new fake in `sys.modules`."""
    cupy = ModuleType("cupy")
    cupy.cuda = ModuleType("cupy.cuda")
    hook_module = ModuleType("cupy.cuda.memory_hook")
    local = threading.local()
    cupy.device_used_bytes = 10**9

    def get_memory_hooks():
        if not hasattr(local, "hooks"):
            local.hooks = {}
        return local.hooks

    hook_module.get_memory_hooks = cupy.get_memory_hooks = get_memory_hooks
    cupy.cuda.memory_hook = hook_module
    cupy.cuda.MemoryPool = FakePool
    cupy.cuda.Device = FakeDevice
    cupy.pool = FakePool(cupy)
    cupy.allocator = cupy.pool.malloc

    def set_allocator(allocator):
        cupy.allocator = allocator

    cupy.cuda.set_allocator = set_allocator
    cupy.cuda.get_allocator = lambda: cupy.allocator
    cupy.cuda.runtime = ModuleType("cupy.cuda.runtime")
    cupy.cuda.runtime.CUDARuntimeError = RuntimeError
    cupy.cuda.runtime.getDevice = lambda: 0
    cupy.n_device_reads = 0

    def read_device():
        free_and_total = 10**11 - cupy.device_used_bytes, 10**11
        cupy.n_device_reads += 1
        return free_and_total

    cupy.cuda.runtime.memGetInfo = read_device
    cupy.alloc = lambda size: cupy.allocator(size)
    for name, module in {
        "cupy": cupy,
        "cupy.cuda": cupy.cuda,
        "cupy.cuda.memory_hook": hook_module,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    return cupy
