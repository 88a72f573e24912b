"""An account of what a method allocates, from which its memory model follows.

The author writes the allocations in the order in which the method makes them; the
ledger rounds them as the device's allocator does, adds the work areas of FFTs, and
remembers the peak. `from_ledger` turns such a function into an estimator.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from .arrays import block_shape
from .memory import MemoryModel

CUDA_GRANULE_BYTES = 512
"""CuPy's and torch's allocators hand out multiples of this."""

Device = Literal["cuda", "cpu"]


@dataclass(slots=True, eq=False)
class Allocation:
    """Memory that a `Ledger` counts as in use until it is freed."""

    n_bytes: int
    """Bytes, rounded as the allocator rounds them."""
    freed: bool = False
    """Whether it was given back."""


class Ledger:
    """Counts allocations and remembers the most that were alive at once.

    Parameters
    ----------
    device : {"cuda", "cpu"}
        Whose allocator is meant. CUDA rounds each allocation up to 512 bytes, and its
        FFTs need work areas; on the CPU an array takes its bytes, and FFTs work row by row.

    Attributes
    ----------
    device : str
        As given: a method that allocates differently on the two can ask.
    in_use_bytes, peak_bytes : int
        Bytes alive now, and the most that were alive at once.
    kept_bytes : int
        Bytes in caches that outlive the call: the work areas of FFT plans.

    Examples
    --------
    >>> with Ledger("cpu") as m:
    ...     data = m.alloc((10, 100, 100), "uint16")
    ...     result = m.alloc((10, 100, 100), "float32")
    ...     m.free(m.alloc((100, 100), "float64"))
    >>> m.peak_bytes
    680000
    """

    __slots__ = ("_granule", "device", "in_use_bytes", "kept_bytes", "peak_bytes")

    def __init__(self, device: Device = "cuda") -> None:
        if device not in ("cuda", "cpu"):
            raise ValueError(f"device must be 'cuda' or 'cpu', not {device!r}")
        self.device = device
        self._granule = CUDA_GRANULE_BYTES if device == "cuda" else 1
        self.in_use_bytes = self.peak_bytes = self.kept_bytes = 0

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return None

    def alloc(self, shape: Sequence[int] | int, dtype: DTypeLike) -> Allocation:
        """Count an array of `shape` and `dtype`; the handle is for `free`."""
        n_items = math.prod(shape) if isinstance(shape, Sequence) else shape
        return self.alloc_bytes(n_items * _itemsize(dtype))

    def alloc_bytes(self, n_bytes: int) -> Allocation:
        """Count an allocation that is not an array."""
        n_bytes = -(-n_bytes // self._granule) * self._granule
        self.in_use_bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self.in_use_bytes)
        return Allocation(n_bytes)

    def free(self, *allocations: Allocation) -> None:
        """Count allocations as given back; each once."""
        for allocation in allocations:
            if allocation.freed:
                raise ValueError("this allocation was freed before")
            allocation.freed = True
            self.in_use_bytes -= allocation.n_bytes

    def fft(
        self,
        shape: Sequence[int],
        dtype: DTypeLike,
        axes: Sequence[int],
        kind: Literal["c2c", "r2c", "c2r"] = "c2c",
    ) -> None:
        """Count the work area of one FFT, not its input and output.

        On CUDA the area belongs to the plan, and the plan stays in a cache: it is alive
        from here on, and counted in `kept_bytes`. Call it once for each distinct plan.

        Parameters
        ----------
        shape : sequence of int
            The array: for "r2c" and "c2r" that on the real side.
        dtype : dtype-like
            Its dtype, real or complex: what counts is the precision.
        axes : sequence of int
            The axes transformed; the last is the one that real transforms halve.
        kind : {"c2c", "r2c", "c2r"}
            Complex, real to complex or complex to real.
        """
        if self.device != "cuda":
            return
        scalar = np.dtype(dtype)
        single = scalar.itemsize <= (8 if scalar.kind == "c" else 4)
        area = self.alloc_bytes(_cufft_work_bytes(tuple(shape), tuple(axes), kind, single))
        self.kept_bytes += area.n_bytes


LedgerFunction = Callable[..., Any]


class LedgerEstimator:
    """An estimator made of a function that enters allocations into a ledger.

    It has the call of every estimator,
    ``calc_max_slices(slice_dim, other_dims, dtype, available_memory, **kwargs)``, and
    gives its `MemoryModel` directly, without bisection. Made by `from_ledger`.
    """

    def __init__(self, function: LedgerFunction) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        names = list(inspect.signature(function).parameters.values())
        self.accepts_all = any(p.kind is p.VAR_KEYWORD for p in names)
        self.keywords = frozenset(
            p.name for p in names[3:] if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
        )

    def __repr__(self) -> str:
        return f"<ledger estimator {self.__module__}.{self.__name__}>"

    def model(
        self,
        slice_dim: int,
        other_dims: tuple[int, int],
        dtype: np.dtype[Any],
        device: Device = "cuda",
        **kwargs: Any,
    ) -> MemoryModel:
        """Return the memory model for the slices described; exact for every n."""
        if not self.accepts_all:
            kwargs = {k: v for k, v in kwargs.items() if k in self.keywords}
        if "slice_dim" in self.keywords:
            kwargs["slice_dim"] = slice_dim

        def account(n: int) -> Ledger:
            ledger = Ledger(device)
            self.function(ledger, block_shape(slice_dim, n, other_dims), dtype, **kwargs)
            return ledger

        return MemoryModel(
            lambda n: account(n).peak_bytes, lambda n: account(n).kept_bytes
        )

    def __call__(
        self,
        slice_dim: int,
        other_dims: tuple[int, int],
        dtype: DTypeLike,
        available_memory: int,
        device: Device = "cuda",
        **kwargs: Any,
    ) -> tuple[int, None]:
        """Return how many slices fit, and None: the method itself declares its dtype."""
        model = self.model(slice_dim, other_dims, np.dtype(dtype), device, **kwargs)
        return model.max_slices(available_memory), None


def from_ledger(function: LedgerFunction) -> LedgerEstimator:
    """Make an estimator of a function that writes down what a method allocates.

    Parameters
    ----------
    function : callable
        ``function(m, shape, dtype, **kwargs)``: `m` is the `Ledger`, `shape` the whole
        block with its slices (axes angles, detector_y, detector_x), `dtype` the input's;
        it may name any of the method's parameters, and ``slice_dim``. It counts
        everything that is alive during the call, input and output included.

    Examples
    --------
    >>> @from_ledger
    ... def needs(m, shape, dtype):
    ...     m.alloc(shape, dtype)          # the input
    ...     m.alloc(shape, "float32")      # the result
    >>> needs(0, (10, 20), "float32", 20_000, device="cpu")
    (12, None)
    """
    return LedgerEstimator(function)


@lru_cache(maxsize=256)
def _dtype_itemsize(dtype: Any) -> int:
    return np.dtype(dtype).itemsize


def _itemsize(dtype: DTypeLike) -> int:
    return dtype.itemsize if isinstance(dtype, np.dtype) else _dtype_itemsize(dtype)


def _cufft_work_bytes(
    shape: tuple[int, ...], axes: tuple[int, ...], kind: str, single: bool
) -> int:
    """Return cuFFT's work area in bytes, as read off its plans (cuFFT 12, CUDA 13).

    Complex transforms of lengths up to about 20,000 whose primes have kernels of their
    own need none. Real ones of an even length that is not a power of two work in a
    complex array of half the length; those of an odd length in one of full length, two
    rows at a time. Lengths over 4096 with a large prime go through Bluestein's algorithm.
    """
    complex_bytes = 8 if single else 16
    length = shape[axes[-1]]
    rows = math.prod(shape) // length if length else 0
    if kind == "c2c":
        return max(
            (rows * length * _c2c_factor(shape[axis], complex_bytes) for axis in axes), default=0
        )
    if length <= 128 or (length <= 1024 and _largest_prime(length) <= 7):
        return 0
    if length & (length - 1) == 0 and length <= 16384:
        return 0
    if length % 2 == 0:
        return rows * length * complex_bytes // 2
    if _largest_prime(length) <= 7 and length <= 4096:
        return 0
    pairs = -(-rows // 2)
    return pairs * (
        2 * length * complex_bytes + length * _c2c_factor(length, complex_bytes)
    )


@lru_cache(maxsize=256)
def _c2c_factor(length: int, complex_bytes: int) -> int:
    """Return work bytes per element of a complex transform of `length`."""
    if length > 4096 and _largest_prime(length) > 127:
        return 17 * complex_bytes // 4
    if length > 20480 or (length > 128 and _largest_prime(length) == 127):
        return complex_bytes
    return 0


@lru_cache(maxsize=256)
def _largest_prime(number: int) -> int:
    largest, divisor = 1, 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            largest, number = divisor, number // divisor
        divisor += 1
    return max(largest, number)
