"""A GPU: CuPy arrays in its default memory pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..errors import DeviceError
from ..model import account
from ..model.allocators import Device
from ..tuning.garbage_collection import quick_collections
from .cuda_context import reserved_bytes
from .cuda_copy_engine import CudaCopyEngine
from .device_count import count_devices
from .out_of_memory import is_out_of_memory
from .pinned_memory import pinned
from .torch_shared_pool import cached_bytes, release_cache

FREE_SHARE = 0.95
"""Part of the free device memory that is used unasked."""


class CudaBackend:
    """CuPy on one GPU; see `Backend`.

    Parameters
    ----------
    number : int
        CUDA device number.

    Raises
    ------
    DeviceError
        If CuPy is not installed, or there is no such device.
    """

    kind: Device = "cuda"
    modules_bytes = account.MODULES_BYTES

    def __init__(self, number: int = 0) -> None:
        n_devices = count_devices()
        try:
            import cupy
        except ImportError:
            raise DeviceError(
                "a GPU needs CuPy, which is not installed: pip install 'maxslices[gpu]', "
                "or use --device cpu"
            ) from None
        if number >= n_devices:
            there = f"there are {n_devices}" if n_devices else "CuPy finds no GPU here"
            raise DeviceError(f"no device cuda:{number}: {there}; use --device cpu")
        self._cupy = cupy
        self._device = cupy.cuda.Device(number)
        self._engine: CudaCopyEngine | None = None
        self.name = f"cuda:{number}"

    @property
    def reserved_bytes(self) -> int:
        """Return what CUDA's context takes, and what is loaded into it."""
        return _reserved_bytes(self._cupy, self._device.id)

    def free_bytes(self) -> int:
        """Return most of the device's free memory, with what the pool could give back."""
        with self._device:
            free, _ = self._cupy.cuda.runtime.memGetInfo()
            pool = self._cupy.get_default_memory_pool()
            unused = free + pool.free_bytes() + cached_bytes()
            return int(unused * FREE_SHARE) + self.reserved_bytes

    @contextmanager
    def limited(self, budget_bytes: int, kept_bytes: int = 0) -> Iterator[None]:
        """Make the device current and limit the pool to what it holds in use plus a budget.

        What the pool keeps needs not be asked of the driver again, and the driver cleans what
        it gets: copies to the device wait for that, 2 ms for a GB.
        """
        with quick_collections(), self._device:
            pool = self._cupy.get_default_memory_pool()
            before = pool.get_limit()
            self._trim(kept_bytes)
            held_bytes = max(pool.used_bytes(), pool.total_bytes() - kept_bytes)
            pool.set_limit(size=held_bytes + budget_bytes)
            try:
                yield
            finally:
                with suppress(RuntimeError):  # of a device that failed, which was said before
                    self.release(kept_bytes)
                pool.set_limit(size=before)

    def _trim(self, kept_bytes: int) -> None:
        """Free what the pool holds unused, if that is more than it may keep."""
        pool = self._cupy.get_default_memory_pool()
        if pool.free_bytes() > kept_bytes:
            pool.free_all_blocks()

    def to_device(self, block: np.ndarray) -> Any:
        """Copy a block to the device."""
        if block.nbytes < account.UPLOAD_PIECE_BYTES or not block.flags.c_contiguous:
            return self._cupy.asarray(block)
        return self.copy_engine().upload(block)

    def to_host(self, block: Any) -> np.ndarray:
        """Return the block as a NumPy array, finished and C-contiguous."""
        return np.asarray(self._cupy.asnumpy(self._cupy.ascontiguousarray(block)))

    def copy_engine(self) -> CudaCopyEngine:
        """Return the GPU's streams in and out."""
        if self._engine is None:
            self._engine = CudaCopyEngine(self._device.id)
        return self._engine

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """Return an array from CuPy's pool."""
        return self._cupy.empty(shape, dtype)

    def host_empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Return an array in pinned memory."""
        return pinned(shape, np.dtype(dtype))

    def contiguous(self, block: Any) -> Any:
        """Return the block, copied where it is a view with gaps."""
        return self._cupy.ascontiguousarray(block)

    def overlap(self, first: Any, second: Any) -> bool:
        """Tell whether the bytes of two arrays are in one range of addresses."""
        return bool(self._cupy.may_share_memory(first, second))

    def reserve(self, n_bytes: int, largest_bytes: int) -> None:
        """Have the pool hold one piece of memory, which it hands out in parts.

        Each piece that it gets from the driver takes 0.2 ms, and as long to give back. It has
        some to spare (`maxslices.model.account.POOL_SPARE`).
        """
        self._cupy.empty(account.pool_bytes(n_bytes), np.uint8)

    def forget_plans(self) -> None:
        """Clear CuPy's cache of FFT plans."""
        cache = self._cupy.fft.config.get_plan_cache()
        if cache.get_curr_size():  # to clear it collects garbage, which takes a while
            cache.clear()

    def release(self, kept_bytes: int = 0) -> None:
        """Drop cached FFT plans and unused blocks of the pool and of torch's allocator.

        Those of the pool stay if they are no more than `kept_bytes`.
        """
        self.forget_plans()
        self._trim(kept_bytes)
        release_cache()

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Tell whether CuPy or one of CUDA's libraries says that memory did not suffice."""
        return is_out_of_memory(error)


@cache
def _reserved_bytes(cupy: Any, number: int) -> int:
    """Return what is set aside on a device: looked up once in a process, which has one context."""
    with cupy.cuda.Device(number):
        return reserved_bytes(cupy)
