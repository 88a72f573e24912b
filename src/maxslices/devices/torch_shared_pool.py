"""Share one allocator between CuPy and torch.

With two pools, each would keep memory that the other one lacks. The shared one is torch's caching
allocator, because CuPy can allocate with any function, but torch's allocator cannot be replaced
once it is in use. torch's statistics then count both, including the peak.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..system.process_state import torch_on_gpu


@contextmanager
def shared_allocator(budget_bytes: int) -> Iterator[None]:
    """Let CuPy allocate from torch's allocator on the current device, within one budget for both.

    A lower limit of torch stays in force. Existing arrays stay in CuPy's pool. Inside
    `cupy.cuda.using_allocator` the allocators are not shared, because CuPy does not allow to
    replace its allocator there.
    """
    import cupy
    import torch

    number = int(cupy.cuda.Device().id)
    before = cupy.cuda.get_allocator()
    with torch.cuda.device(number):
        torch.cuda.empty_cache()
        total = int(torch.cuda.get_device_properties(number).total_memory)
        share = (int(torch.cuda.memory_reserved()) + budget_bytes) / total
        share_before = _share(torch, number)
        torch.cuda.set_per_process_memory_fraction(min(share_before, share), number)
    try:
        cupy.cuda.set_allocator(_allocator(cupy, torch))
    except ValueError:
        before = None
    try:
        yield
    finally:
        if before is not None:
            cupy.cuda.set_allocator(before)
        torch.cuda.set_per_process_memory_fraction(share_before, number)


def _share(torch: Any, number: int) -> float:
    """Share of a device's memory that torch may use, or 1 if torch is too old to report it."""
    getter = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # since torch 2.8
    return 1.0 if getter is None else float(getter(number))


def _allocator(cupy: Any, torch: Any) -> Any:
    # torch's public function calls this one after looking up the device, which takes 50 us.
    raw_alloc = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_alloc", None)

    def allocate(n_bytes: int, number: int) -> int:
        address: int
        stream = int(cupy.cuda.get_current_stream().ptr)
        if raw_alloc is not None:
            address = raw_alloc(n_bytes, stream)
        else:
            address = torch.cuda.caching_allocator_alloc(n_bytes, number, stream)
        return address

    def free(address: int, number: int) -> None:
        torch.cuda.caching_allocator_delete(address)

    memory = cupy.cuda.PythonFunctionAllocator(allocate, free)

    def malloc(n_bytes: int) -> Any:
        return memory.malloc(n_bytes)

    malloc.counted_by = "torch"  # type: ignore[attr-defined]  # for the meters
    return malloc


def release_cache() -> None:
    """Free unused memory of torch's allocator, if torch is imported."""
    torch = torch_on_gpu()
    if torch is not None:
        torch.cuda.empty_cache()


def cached_bytes() -> int:
    """Bytes of unused memory of torch's allocator on the current device."""
    torch = torch_on_gpu()
    if torch is None:
        return 0
    return int(torch.cuda.memory_reserved()) - int(torch.cuda.memory_allocated())
