"""Share one allocator between CuPy and torch: CuPy's arrays come from torch's memory.

Two pools would each keep what the other lacks. The shared one is torch's caching allocator, because
CuPy takes memory from any function, while torch's allocator cannot be replaced once it is in use.
torch's statistics then count both, peak included.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..system.process_state import torch_on_gpu


@contextmanager
def shared_allocator(budget_bytes: int) -> Iterator[None]:
    """Let CuPy allocate from torch's allocator on the current device, within one budget for both.

    A limit that torch has already stays in force if it is lower. Arrays that CuPy's pool has handed
    out before stay where they are. Inside `cupy.cuda.using_allocator`, which CuPy does not let
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
    """Share of a device's memory that torch may use; all of it if this torch does not say."""
    getter = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # since torch 2.8
    return 1.0 if getter is None else float(getter(number))


def _allocator(cupy: Any, torch: Any) -> Any:
    # torch's public function calls this after looking up the device, which takes 50 us.
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
    """Give back what torch's allocator holds but has not handed out, if torch is imported."""
    torch = torch_on_gpu()
    if torch is not None:
        torch.cuda.empty_cache()


def cached_bytes() -> int:
    """Bytes that torch's allocator holds on the current device but has not handed out."""
    torch = torch_on_gpu()
    if torch is None:
        return 0
    return int(torch.cuda.memory_reserved()) - int(torch.cuda.memory_allocated())
