"""A GPU: CuPy arrays in its default memory pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..core import block_memory
from ..core.allocators import Device
from ..errors import DeviceError
from ..tuning.garbage_collection import quick_collections
from .cuda_context import reserved_bytes
from .cuda_copy_engine import CudaCopyEngine
from .device_count import count_devices
from .out_of_memory import is_out_of_memory
from .pinned_memory import pinned
from .pool_limit import limited_pool
from .torch_shared_pool import cached_bytes, release_cache

FREE_SHARE = 0.95
"""Part of the free device memory that a run uses by default. The rest is a
margin for what other programs and libraries take meanwhile; it was chosen, not measured."""


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
            there = f"there are {n_devices}" if n_devices else "CuPy finds no GPU here"
            raise DeviceError(f"no device cuda:{number}: {there}; use --device cpu")
        self._cupy = cupy
        self._device = cupy.cuda.Device(number)
        self._engine: CudaCopyEngine | None = None
        self.name = f"cuda:{number}"

    @property
    def reserved_bytes(self) -> int:
        """Device memory for CUDA's context and what is loaded into it."""
        return _reserved_bytes(self._cupy, self._device.id)

    def free_bytes(self) -> int:
        """Most of the device's free memory, counting what pools could give back as free."""
        with self._device:
            free, _ = self._cupy.cuda.runtime.memGetInfo()
            pool = self._cupy.get_default_memory_pool()
            unused = free + pool.free_bytes() + cached_bytes()
            return int(unused * FREE_SHARE) + self.reserved_bytes

    @contextmanager
    def limited(self, budget_bytes: int) -> Iterator[None]:
        """Make the device current, and limit the pool to what it has in use plus a budget."""
        with quick_collections(), self._device, limited_pool(self._cupy, budget_bytes):
            try:
                yield
            finally:
                with suppress(RuntimeError):  # if the device failed, the first error says so
                    self.release()

    def to_device(self, block: np.ndarray) -> Any:
        """Copy a block to the device."""
        if block.nbytes < block_memory.UPLOAD_PIECE_BYTES or not block.flags.c_contiguous:
            return self._cupy.asarray(block)
        return self.copy_engine().upload(block)

    def to_host(self, block: Any) -> np.ndarray:
        """The block as a NumPy array, finished and C-contiguous."""
        return np.asarray(self._cupy.asnumpy(self._cupy.ascontiguousarray(block)))

    def copy_engine(self) -> CudaCopyEngine:
        """The GPU's streams in and out."""
        if self._engine is None:
            self._engine = CudaCopyEngine(self._device.id)
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

    def reserve(self, n_bytes: int, largest_bytes: int) -> None:
        """Let the pool take one piece of memory from the driver, which it hands out in parts.

        Each piece that the pool takes costs 0.2 ms, and as much to give back. The piece is larger
        than the estimate by `maxslices.core.block_memory.POOL_SPARE`. Without, httomo's pipeline
        with its result in pinned memory took 5.5 % longer (H200, 2026-11-22; within the spread).
        """
        self._cupy.empty(block_memory.pool_bytes(n_bytes), np.uint8)

    def forget_plans(self) -> None:
        """Take all plans out of CuPy's cache of FFT plans.

        Its method ``clear`` collects garbage as well, also where there are no plans: 20 ms each
        time where httomolibgpu was imported meanwhile (H200, 2026-11-27).
        """
        cache = self._cupy.fft.config.get_plan_cache()
        for key in [key for key, _ in cache]:
            del cache[key]

    def release(self) -> None:
        """Drop cached FFT plans and unused blocks of the pool and of torch's allocator."""
        self.forget_plans()
        self._cupy.get_default_memory_pool().free_all_blocks()
        release_cache()

    def is_out_of_memory(self, error: BaseException) -> bool:
        """True if CuPy or one of CUDA's libraries says that memory ran out."""
        return is_out_of_memory(error)


@cache
def _reserved_bytes(cupy: Any, number: int) -> int:
    """`cuda_context.reserved_bytes` of a device, once per process, which has one context."""
    with cupy.cuda.Device(number):
        return reserved_bytes(cupy)
