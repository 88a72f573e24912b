"""One hook to CuPy's memory pool, in every thread, shared by all measurements.

CuPy keeps its hooks per thread, so a hook in one thread does not see the allocations of another.
During measurements the allocator is therefore wrapped. The wrapper sets the hook in each thread
that allocates for the first time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from threading import RLock
from typing import Any

_HOOK = "maxslices meter"
"""Key of the hook in CuPy's table of a thread's hooks."""


class PoolListener:
    """Base of the meters of one device's pool, with a method for each event.

    The hook's lock is held during each call except `after_allocation`.
    """

    with_hooks = True
    """Whether it needs `allocated` and `freed`, or only `after_allocation`."""
    device_id = 0
    """The device whose events it receives."""

    def __init__(self) -> None:
        self.in_use_bytes: int | None = None
        self.held_bytes: int | None = None
        self.unseen: list[str] = []
        """Messages about memory missing from the figures, empty if everything was seen."""

    def begin(self, pool: Any, device: Any) -> None:
        """Read the pool before anything is counted."""
        self.device_id = int(device.id)

    def end(self, complaint: str | None) -> None:
        """Fill in the figures. A complaint is a message about memory that may be missing."""
        if complaint:
            self.unseen.append(complaint)

    def after_allocation(self, device_id: int) -> None:
        """Handle the end of an allocation on any device, with and without hooks."""

    def allocated(self, pointer: int, n_bytes: int, requested_bytes: int) -> None:
        """Handle an allocation: bytes rounded up to the pool's granule, and as requested."""

    def refused(self, requested_bytes: int) -> None:
        """Handle a request for which memory ran out."""

    def freed(self, pointer: int, n_bytes: int) -> None:
        """Handle memory that is about to return to the pool."""

    def pool_grew(self, pointer: int, n_bytes: int) -> None:
        """Handle an allocation of the pool from the driver."""


class SharedHook:
    """The one hook and the one wrapped allocator of all measurements.

    Its methods are CuPy's hook protocol. The lock is re-entrant, because garbage
    collection may free an array, and so call the hook, while an event is being counted.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self.meters: list[PoolListener] = []
        self.in_flight_bytes = 0
        self._original: Callable[[int], Any] | None = None
        self._installed: Callable[[int], Any] | None = None
        self._with_hooks = False
        self._hooks_of_thread: Callable[[], dict[str, Any]] = dict

    def add(self, meter: PoolListener) -> None:
        """Send events of the current device's pool to `meter` from now on."""
        cupy = _cupy()
        with self.lock:
            current = cupy.cuda.get_allocator()
            if self._installed is not None and current is self._installed:
                current = self._original
            if getattr(current, "counted_by", None) == "torch":
                meter.in_use_bytes = meter.held_bytes = 0  # torch's figures include it
                return
            pool = getattr(current, "__self__", None)
            if not isinstance(pool, cupy.cuda.MemoryPool):
                meter.unseen.append(
                    "CuPy's allocator is not a MemoryPool and does not call memory hooks"
                )
                return
            if not self.meters:
                self._install(cupy, current)
            meter.begin(pool, cupy.cuda.Device())
            self.meters.append(meter)
            self._set_hooks()

    def remove(self, meter: PoolListener) -> None:
        """Stop sending events to `meter`, and let it fill in its figures."""
        with self.lock:
            if meter not in self.meters:
                return
            cupy = _cupy()
            complaint = None
            if self._installed is not None and cupy.cuda.get_allocator() is not self._installed:
                complaint = "the code changed CuPy's allocator, which may have hidden memory"
            meter.end(complaint)
            self.meters.remove(meter)
            self._set_hooks()
            if not self.meters:
                self._uninstall(cupy)

    def _install(self, cupy: Any, current: Any) -> None:
        memory_hook = importlib.import_module(f"{cupy.__name__}.cuda.memory_hook")
        self._hooks_of_thread = memory_hook.get_memory_hooks
        self.in_flight_bytes = 0
        current_device = cupy.cuda.runtime.getDevice

        def allocate(n_bytes: int) -> Any:
            if self._with_hooks:
                hooks = self._hooks_of_thread()
                if _HOOK not in hooks:
                    hooks[_HOOK] = self
            memory = current(n_bytes)
            device_id = current_device()
            for meter in self.meters:
                meter.after_allocation(device_id)
            return memory

        self._original = current
        try:
            cupy.cuda.set_allocator(allocate)
        except ValueError:  # CuPy refuses inside `using_allocator`; only this thread is seen
            self._installed = None
        else:
            self._installed = allocate

    def _uninstall(self, cupy: Any) -> None:
        """Put the original allocator back."""
        if self._installed is not None and cupy.cuda.get_allocator() is self._installed:
            cupy.cuda.set_allocator(self._original)
        self._installed = self._original = None

    def _set_hooks(self) -> None:
        """Set the hook in this thread if a meter needs it, and else remove it.

        A hook set in another thread stays there and finds no meter: CuPy's table of hooks is
        reached from its own thread alone.
        """
        needs = [meter.with_hooks or self._installed is None for meter in self.meters]
        self._with_hooks = any(needs)
        hooks = self._hooks_of_thread()
        if not self._with_hooks:
            hooks.pop(_HOOK, None)
        elif _HOOK not in hooks:
            hooks[_HOOK] = self

    def malloc_preprocess(self, device_id: int, size: int, mem_size: int) -> None:
        """Count a request as in flight."""
        with self.lock:
            self.in_flight_bytes += mem_size

    def malloc_postprocess(
        self, device_id: int, size: int, mem_size: int, mem_ptr: int, pmem_id: int
    ) -> None:
        """Count an allocation. The pointer is null if memory ran out."""
        with self.lock:
            self.in_flight_bytes -= mem_size
            for meter in self.meters if mem_size else ():
                if meter.device_id != device_id:
                    continue
                if mem_ptr:
                    meter.allocated(mem_ptr, mem_size, size)
                else:
                    meter.refused(size)

    def free_preprocess(self, device_id: int, mem_size: int, mem_ptr: int, pmem_id: int) -> None:
        """Count a return, in flight until the pool has it."""
        with self.lock:
            self.in_flight_bytes += mem_size
            for meter in self.meters:
                if meter.device_id == device_id:
                    meter.freed(mem_ptr, mem_size)

    def free_postprocess(self, device_id: int, mem_size: int, mem_ptr: int, pmem_id: int) -> None:
        """End of a return."""
        with self.lock:
            self.in_flight_bytes -= mem_size

    def alloc_preprocess(self, device_id: int, mem_size: int) -> None:
        """Do nothing before an allocation of the pool from the driver. CuPy requires the method."""

    def alloc_postprocess(self, device_id: int, mem_size: int, mem_ptr: int) -> None:
        """Count an allocation of the pool from the driver. The pointer is null if it failed."""
        with self.lock:
            for meter in self.meters:
                if mem_ptr and meter.device_id == device_id:
                    meter.pool_grew(mem_ptr, mem_size)


def _cupy() -> Any:
    return importlib.import_module("cupy")


shared_hook = SharedHook()
"""The only instance."""
