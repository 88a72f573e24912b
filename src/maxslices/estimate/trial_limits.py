"""How a process is kept to an amount of memory, while a method is tried in it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from ..measure.cupy_pool import GRAIN_BYTES

PIECE_BYTES = 2**30
"""Pieces in which a GPU's memory is taken."""
LEFT_BYTES = 64 * 2**20
"""What a call may leave on a GPU (modules that its driver loads) if another is to be made."""
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(2**17)}
"""Of a process whose address space is limited: glibc would keep larger and larger arrays that
were freed, from which later ones are made that a limit does not see."""


class AddressSpace:
    """On the CPU: a limit to the process's address space."""

    def is_clean(self) -> bool:
        """Return True: an array that was freed is unmapped, see `ENVIRONMENT`."""
        return True

    @contextmanager
    def to(self, allowed_bytes: int) -> Iterator[None]:
        """Let this process take so much more memory than it has now."""
        import resource

        import psutil

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:  # what glibc keeps of freed memory would come on top
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
    """On a GPU: an allocation that leaves exactly so much of the device's memory free.

    Parameters
    ----------
    modules_bytes : int
        What the planner sets aside for what methods load; what calls leave beyond that counts
        as the method's.
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
        """Count what the process keeps by now; tell whether the last call has left little."""
        self._runtime.deviceSynchronize()
        free = self._free_bytes() + sum(size for _, size in self._held)
        before, self._settled_bytes = self._settled_bytes, free
        self._beyond_bytes = max(0, self._at_start_bytes - free - self._modules_bytes)
        return before - free <= LEFT_BYTES

    @contextmanager
    def to(self, allowed_bytes: int) -> Iterator[None]:
        """Leave so much free, to the step in which a driver hands out memory.

        Most of it stays taken until the next call, since it takes long to take.
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
        """Allocate until no more than what is allowed is free."""
        stuck = 0
        while (rest := self._free_bytes() - allowed_bytes - stuck) > 0:
            size = min(-(-rest // GRAIN_BYTES) * GRAIN_BYTES, PIECE_BYTES)
            try:
                self._held.append((int(self._runtime.malloc(size)), size))
            except self._runtime.CUDARuntimeError:  # all that is free cannot be had
                stuck += GRAIN_BYTES
