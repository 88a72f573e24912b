"""One allocator for CuPy and torch: while it is in force, CuPy's arrays are torch's memory.

Two pools would each keep what the other lacks. torch's caching allocator is the one that can be
shared: CuPy takes its memory from any function, torch's own cannot be replaced once it is in use.
torch's statistics then count both, peak included.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..system.loaded_modules import torch_on_gpu


@contextmanager
def shared_allocator(budget_bytes: int) -> Iterator[None]:
    """Have CuPy allocate from torch's allocator on the current device, up to a budget in all.

    A limit that torch has already stays in force where it is the lower one. What CuPy's pool has
    handed out before stays there. Inside `cupy.cuda.using_allocator`, which CuPy does not let
    anything override, both allocators stay apart.
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
    """Return the part of a device that torch may use: all of it, where it cannot tell."""
    getter = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # since torch 2.8
    return 1.0 if getter is None else float(getter(number))


def _allocator(cupy: Any, torch: Any) -> Any:
    # What torch's public functions call, which ask for the device first: that takes 50 us.
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
    """Give back what torch's allocator holds but has not handed out; no torch, no effect."""
    torch = torch_on_gpu()
    if torch is not None:
        torch.cuda.empty_cache()


def cached_bytes() -> int:
    """Return what torch's allocator holds on the current device but has not handed out."""
    torch = torch_on_gpu()
    if torch is None:
        return 0
    return int(torch.cuda.memory_reserved()) - int(torch.cuda.memory_allocated())
