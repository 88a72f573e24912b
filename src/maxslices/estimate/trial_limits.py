"""Limit the memory that a worker process can allocate while a method runs."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from ..measure.cupy_pool import GRAIN_BYTES

PIECE_BYTES = 2**30
"""Size of the allocations that occupy a GPU's memory: 1 GiB, so that even 140 GiB take few
calls."""
LEFT_BYTES = 64 * 2**20
"""A worker is replaced if a call leaves more than this on the GPU. Modules that the driver loads
for a number of slices take less than that."""
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(2**17)}
"""Environment of a worker whose address space is limited: it fixes glibc's threshold for ``mmap``
at its initial 128 KiB. By default glibc raises it as arrays are freed, keeps freed arrays below it
and makes later arrays from them, which a limit of the address space does not see."""


class AddressSpace:
    """Limit on the CPU: a limit of the process's address space."""

    def is_clean(self) -> bool:
        """Always True: freed arrays are unmapped, see `ENVIRONMENT`."""
        return True

    @contextmanager
    def to(self, allowed_bytes: int) -> Iterator[None]:
        """Allow this process `allowed_bytes` more than it has now."""
        import resource

        import psutil

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:  # or freed memory that glibc keeps would be free to use
            trim(0)
        before, hard = resource.getrlimit(resource.RLIMIT_AS)
        limits = [n for n in (before, hard) if n != resource.RLIM_INFINITY]
        soft = psutil.Process().memory_info().vms + allowed_bytes
        resource.setrlimit(resource.RLIMIT_AS, (min(soft, *limits, soft), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (before, hard))


class Ballast:
    """Limit on a GPU: allocations that leave a given part of the device's memory free.

    Parameters
    ----------
    modules_bytes : int
        What the planner reserves for modules that methods load; memory that calls leave beyond
        that counts as the method's.
    """

    def __init__(self, modules_bytes: int) -> None:
        import cupy

        self._runtime = cupy.cuda.runtime
        self._runtime.free(0)  # makes the context
        self._at_start_bytes = self._free_bytes()
        self._modules_bytes = modules_bytes
        self._beyond_bytes = 0
        self._settled_bytes = self._at_start_bytes
        self._held: list[tuple[int, int]] = []

    def _free_bytes(self) -> int:
        return int(self._runtime.memGetInfo()[0])

    def is_clean(self) -> bool:
        """Update the memory that this process keeps; True if the last call has left little."""
        self._runtime.deviceSynchronize()
        free = self._free_bytes() + sum(size for _, size in self._held)
        before, self._settled_bytes = self._settled_bytes, free
        self._beyond_bytes = max(0, self._at_start_bytes - free - self._modules_bytes)
        return before - free <= LEFT_BYTES

    @contextmanager
    def to(self, allowed_bytes: int) -> Iterator[None]:
        """Leave `allowed_bytes` free, to the 2 MiB in which the driver hands out memory.

        Most of the ballast is kept for the next call, because allocating it takes long.
        """
        allowed = max(0, allowed_bytes - self._beyond_bytes)
        self._drop_until(allowed)
        self._fill(allowed)
        try:
            yield
        finally:
            self._drop_until(self._settled_bytes // 8)

    def _drop_until(self, free_bytes: int) -> None:
        while self._held and self._free_bytes() < free_bytes:
            self._runtime.free(self._held.pop()[0])

    def _fill(self, allowed_bytes: int) -> None:
        """Allocate until no more than `allowed_bytes` are free."""
        stuck = 0
        while (rest := self._free_bytes() - allowed_bytes - stuck) > 0:
            size = min(-(-rest // GRAIN_BYTES) * GRAIN_BYTES, PIECE_BYTES)
            try:
                self._held.append((int(self._runtime.malloc(size)), size))
            except self._runtime.CUDARuntimeError:  # the driver cannot hand out the last of it
                stuck += GRAIN_BYTES
