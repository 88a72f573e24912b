"""Backend for GPUs: CuPy's default memory pool, its limit, and CUDA's context."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..core import block_memory
from ..core.allocators import Device
from ..errors import DeviceError
from ..tuning.garbage_collection import quick_collections
from .cpu import Backend
from .cuda_copies import CopyEngine, count_devices, pinned
from .torch_shared_pool import cached_bytes, release_cache


@contextmanager
def limited_pool(cupy: Any, budget_bytes: int) -> Iterator[None]:
    """Limit the current device's pool to the memory in use plus a budget.

    Only the allocator of the pool itself is replaced. A method's own allocator, one shared with
    torch, and one inside `cupy.cuda.using_allocator` stay in use.
    """
    pool = cupy.get_default_memory_pool()
    limit_before, allocator_before = pool.get_limit(), cupy.cuda.get_allocator()
    allocator = None
    if allocator_before == pool.malloc:
        allocator = _retrying(pool, cupy.cuda.memory.OutOfMemoryError)
        with suppress(ValueError):
            cupy.cuda.set_allocator(allocator)
    pool.free_all_blocks()
    pool.set_limit(size=pool.total_bytes() + budget_bytes)
    try:
        yield
    finally:
        pool.set_limit(size=limit_before)
        if cupy.cuda.get_allocator() is allocator:
            cupy.cuda.set_allocator(allocator_before)


def _retrying(pool: Any, refusal: type[Exception]) -> Callable[[int], Any]:
    """The pool's allocation function, which frees unused memory and tries again if it fails."""

    def malloc(n_bytes: int) -> Any:
        for free_unused in (pool.free_all_blocks, collect, None):
            try:
                return pool.malloc(n_bytes)
            except refusal:
                if free_unused is None:
                    raise
            free_unused()

    def collect() -> None:
        gc.collect()  # arrays in reference cycles
        pool.free_all_blocks()

    malloc.__self__ = pool  # type: ignore[attr-defined]  # for the meters
    return malloc


FREE_SHARE = 0.95
"""Share of the free device memory that a run uses by default. The rest is a margin for other
programs and libraries. The share was chosen, not measured."""


class CudaBackend(Backend):
    """CuPy on one GPU. See `Backend`.

    Parameters
    ----------
    number : int
        CUDA device number.

    Raises
    ------
    DeviceError
        If CuPy is not installed, or the device does not exist.
    """

    kind: Device = "cuda"
    modules_bytes = block_memory.MODULES_BYTES

    def __init__(self, number: int = 0) -> None:
        n_devices = count_devices()
        try:
            import cupy
        except ImportError:
            raise DeviceError(
                "a GPU needs CuPy, which is not installed: pip install 'maxslices[cuda13]' (or "
                "cuda12, as nvidia-smi says), or use --device cpu"
            ) from None
        if number >= n_devices:
            devices = f"CuPy finds {n_devices}" if n_devices else "CuPy finds no GPU here"
            raise DeviceError(f"no device cuda:{number}: {devices}; use --device cpu")
        self._cupy = cupy
        self._device = cupy.cuda.Device(number)
        self._engine: CopyEngine | None = None
        self.name = f"cuda:{number}"

    @property
    def reserved_bytes(self) -> int:
        """Device memory for CUDA's context and its libraries."""
        return _reserved_bytes(self._cupy, self._device.id)

    def free_bytes(self) -> int:
        """Most of the device's free memory, including unused memory of pools."""
        with self._device:
            free, _ = self._cupy.cuda.runtime.memGetInfo()
            pool = self._cupy.get_default_memory_pool()
            unused = free + pool.free_bytes() + cached_bytes()
            return int(unused * FREE_SHARE) + self.reserved_bytes

    @contextmanager
    def limited(self, budget_bytes: int) -> Iterator[None]:
        """Make the device current, and limit the pool to the memory in use plus a budget."""
        with quick_collections(), self._device, limited_pool(self._cupy, budget_bytes):
            try:
                yield
            finally:
                with suppress(RuntimeError):  # after a failure, the first error is raised
                    self.release()

    def to_device(self, block: np.ndarray) -> Any:
        """Copy a block to the device."""
        if block.nbytes < block_memory.UPLOAD_PIECE_BYTES or not block.flags.c_contiguous:
            return self._cupy.asarray(block)
        return self.copy_engine().upload(block)

    def to_host(self, block: Any) -> np.ndarray:
        """The block as a NumPy array, finished and C-contiguous."""
        return np.asarray(self._cupy.asnumpy(self._cupy.ascontiguousarray(block)))

    def copy_engine(self) -> CopyEngine:
        """The GPU's streams in and out."""
        if self._engine is None:
            self._engine = CopyEngine(self._device.id)
        return self._engine

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """Array of arbitrary values from CuPy's pool."""
        return self._cupy.empty(shape, dtype)

    def host_empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Array of arbitrary values in pinned memory."""
        return pinned(shape, np.dtype(dtype))

    def contiguous(self, block: Any) -> Any:
        """The block, copied if it is a view with gaps."""
        return self._cupy.ascontiguousarray(block)

    def overlap(self, first: Any, second: Any) -> bool:
        """True if the address ranges of two arrays overlap."""
        return bool(self._cupy.may_share_memory(first, second))

    def forget_plans(self) -> None:
        """Remove all plans from CuPy's cache of FFT plans.

        Its method ``clear`` also collects garbage, even if the cache is empty. This takes 20 ms if
        httomolibgpu is imported (H200, 2026-11-27).
        """
        cache = self._cupy.fft.config.get_plan_cache()
        for key in [key for key, _ in cache]:
            del cache[key]

    def release(self) -> None:
        """Drop cached FFT plans and unused blocks of the pool and of torch's allocator."""
        self.forget_plans()
        self._cupy.get_default_memory_pool().free_all_blocks()
        release_cache()


@cache
def _reserved_bytes(cupy: Any, number: int) -> int:
    """Device memory to reserve for context and modules, measured at the first call.

    The memory of other programs cannot be distinguished from the context, so the measurement is
    limited to the largest context.
    """
    with cupy.cuda.Device(number):
        free, total = map(int, cupy.cuda.runtime.memGetInfo())  # makes the context, if needed
    return min(total - free, block_memory.CONTEXT_BYTES) + block_memory.MODULES_BYTES
