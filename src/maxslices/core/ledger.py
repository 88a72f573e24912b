"""Count the allocations of a method in order, which gives its memory model.

A ledger rounds allocations as the device's allocator does, adds the workspaces of FFTs, and
records the peak. `from_ledger` turns a function that fills a ledger into an estimator.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import Any, overload

from numpy.typing import DTypeLike

from ..errors import RegistrationError, UsageError
from .allocators import CUDA_GRANULE_BYTES, Device
from .arrays import as_dtype, block_shape, normalized_axis
from .cuda_work import sort_bytes
from .cufft import Kind, work_bytes
from .memory_model import ChunkModel, MemoryModel

_SEQUENCES = (tuple, list)


@dataclass(slots=True, eq=False)
class Allocation:
    """Memory that a `Ledger` counts as in use until it is freed."""

    n_bytes: int
    """Bytes, rounded as the allocator rounds them."""
    freed: bool = False
    """Whether it was freed."""


class Ledger:
    """Counts allocations and records their peak.

    Parameters
    ----------
    device : {"cuda", "cpu"}
        Device of the allocator. On CUDA each allocation is rounded up to 512 bytes, and FFTs need
        workspaces. On the CPU an allocation is not rounded, and FFTs process row after row.

    Attributes
    ----------
    device : str
        The device, for methods that allocate differently on the two.
    in_use_bytes, peak_bytes : int
        Bytes allocated now, and their maximum so far.
    kept_bytes : int
        Bytes that stay allocated after the call: workspaces of FFT plans, and those of `keep`.

    Examples
    --------
    >>> with Ledger("cpu") as m:
    ...     data = m.alloc((10, 100, 100), "uint16")
    ...     result = m.alloc((10, 100, 100), "float32")
    ...     m.free(m.alloc((100, 100), "float64"))
    >>> m.peak_bytes
    680000
    """

    __slots__ = ("_granule", "_plans", "device", "in_use_bytes", "kept_bytes", "peak_bytes")

    def __init__(self, device: Device = "cuda") -> None:
        if device not in ("cuda", "cpu"):
            raise UsageError(f"the device of a ledger must be 'cuda' or 'cpu', not {device!r}")
        self.device = device
        self._granule = CUDA_GRANULE_BYTES if device == "cuda" else 1
        self._plans: set[object] = set()
        self.in_use_bytes = self.peak_bytes = self.kept_bytes = 0

    def __repr__(self) -> str:
        return f"<ledger on {self.device}>"

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return None

    def alloc(self, shape: tuple[int, ...] | list[int] | int, dtype: DTypeLike) -> Allocation:
        """Count an array of `shape` and `dtype`, and return a handle for `free`."""
        dims = _whole(shape if isinstance(shape, _SEQUENCES) else (shape,))
        if min(dims, default=0) < 0:
            raise ValueError(f"an array cannot have the dims {shape!r}")
        return self.alloc_bytes(math.prod(dims) * _itemsize(dtype))  # type: ignore[arg-type]

    def alloc_bytes(self, n_bytes: int) -> Allocation:
        """Count an allocation that is not an array."""
        try:
            n_bytes = index(n_bytes)
        except TypeError:
            raise TypeError(f"an allocation needs an int of bytes, not {n_bytes!r}") from None
        if n_bytes < 0:
            raise ValueError(f"an allocation cannot have {n_bytes} bytes")
        n_bytes = -(-n_bytes // self._granule) * self._granule
        in_use_bytes = self.in_use_bytes = self.in_use_bytes + n_bytes
        if in_use_bytes > self.peak_bytes:
            self.peak_bytes = in_use_bytes
        return Allocation(n_bytes)

    def free(self, *allocations: Allocation) -> None:
        """Count allocations as freed. Each can be freed once."""
        for allocation in allocations:
            if not isinstance(allocation, Allocation):
                raise TypeError(f"free needs an allocation that alloc returned, not {allocation!r}")
            if allocation.freed:
                raise ValueError(f"this allocation of {allocation.n_bytes} bytes was already freed")
            allocation.freed = True
            self.in_use_bytes -= allocation.n_bytes

    def keep(self, n_bytes: int) -> None:
        """Count memory that stays allocated after the call, such as a cache."""
        self.kept_bytes += self.alloc_bytes(n_bytes).n_bytes

    def library(self, n_bytes: int, *, kept: bool = False) -> Allocation:
        """Count the allocations of a C library, which meters cannot see on a CPU.

        Checks on a CPU ignore them. If `kept`, they stay allocated after the call.
        """
        allocation = self.alloc_bytes(n_bytes)
        if kept:
            self.kept_bytes += allocation.n_bytes
        return allocation

    def fft(
        self,
        shape: Sequence[int],
        dtype: DTypeLike,
        axes: Sequence[int],
        kind: Kind = "c2c",
    ) -> None:
        """Count the workspace of an FFT, without its input and output.

        On CUDA the workspace belongs to the plan, which stays in a cache. It is therefore counted
        in `kept_bytes`, and once for the same plan.

        Parameters
        ----------
        shape : sequence of int
            Shape of the array. For "r2c" and "c2r" the real one.
        dtype : dtype-like
            Its dtype, real or complex. It determines the precision: as in CuPy, single for
            float16, float32 and complex64, otherwise double.
        axes : sequence of int
            Axes that are transformed together. Real transforms halve the last one.
        kind : {"c2c", "r2c", "c2r"}
            Complex, real to complex or complex to real.
        """
        if kind not in ("c2c", "r2c", "c2r"):
            raise ValueError(f"the kind of an FFT must be 'c2c', 'r2c' or 'c2r', not {kind!r}")
        if not axes:
            raise ValueError("an FFT needs at least one axis")
        whole = _whole(shape)
        try:
            dims = tuple([whole[axis] for axis in axes])
        except IndexError:
            text = f"an array of {len(whole)} dims does not have all of the axes {tuple(axes)}"
            raise IndexError(text) from None
        if self.device != "cuda":
            return
        length = math.prod(dims)
        batch = math.prod(whole) // length if length else 0
        plan = (batch, dims, kind, _is_single(dtype))  # type: ignore[arg-type]
        if plan not in self._plans:
            self._plans.add(plan)
            self.keep(work_bytes(*plan))

    def sort(
        self, shape: Sequence[int], dtype: DTypeLike, axis: int = -1, *, indices: bool = False
    ) -> None:
        """Count the work memory of a sort, without its data and result. It is freed at the end.

        On a CPU nothing is counted, because NumPy sorts in place.

        Parameters
        ----------
        shape : sequence of int
            The array.
        dtype : dtype-like
            Its dtype.
        axis : int
            The axis to sort along.
        indices : bool
            Whether indices are returned, as by `cupy.argsort`.
        """
        if self.device == "cuda":
            n_bytes = sort_bytes(_whole(shape), dtype, axis, indices=indices)
            self.free(self.alloc_bytes(n_bytes))


LedgerFunction = Callable[..., Any]


class LedgerEstimator:
    """Estimator that wraps a function which fills a ledger. Made by `from_ledger`.

    It has the signature of every estimator,
    ``calc_max_slices(slice_dim, other_dims, dtype, available_memory, **kwargs)``. In addition it
    provides its `MemoryModel` directly, without bisection.
    """

    def __init__(self, function: LedgerFunction) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        parameters = list(inspect.signature(function).parameters.values())
        self.accepts_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.keywords = frozenset(
            p.name for p in parameters[3:] if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
        )
        self._taken = frozenset(p.name for p in parameters[:3] if p.kind is p.POSITIONAL_OR_KEYWORD)

    def __repr__(self) -> str:
        return f"<ledger estimator {self.__module__}.{self.__qualname__}>"

    @overload
    def model(
        self,
        shape: Sequence[int],
        dtype: DTypeLike,
        axis: int = 0,
        device: Device = "cuda",
        **parameters: Any,
    ) -> MemoryModel: ...

    @overload
    def model(
        self,
        shape: Sequence[int],
        dtype: DTypeLike,
        axis: Sequence[int],
        device: Device = "cuda",
        **parameters: Any,
    ) -> ChunkModel: ...

    def model(
        self,
        shape: Sequence[int],
        dtype: DTypeLike,
        axis: int | Sequence[int] = 0,
        device: Device = "cuda",
        **parameters: Any,
    ) -> MemoryModel | ChunkModel:
        """Memory of blocks of an array that is cut along one or several axes.

        Parameters
        ----------
        shape : sequence of int
            The whole array, of any number of dims.
        dtype : dtype-like
            Its dtype.
        axis : int or sequence of int
            Axis along which it is cut. Negative numbers count from the last axis.
        device : {"cuda", "cpu"}
            Device of the allocator.
        **parameters
            Parameters of the function after the ledger, the shape and the dtype.

        Returns
        -------
        MemoryModel or ChunkModel
            Bytes for n slices along the axis; for several axes, bytes for one size of each.

        Raises
        ------
        UsageError
            If an axis is invalid or repeated, or the function has a parameter ``axis`` or
            ``device``.

        Examples
        --------
        >>> @from_ledger
        ... def needs(m, shape, dtype):
        ...     m.alloc(shape, dtype)
        ...     m.alloc(shape, dtype)
        >>> needs.model((180, 200, 5, 7), "float32", axis=1, device="cpu").max_slices(10**6)
        19
        >>> needs.model((180, 200, 5, 7), "float32", axis=(0, 1), device="cpu").largest(10**6)
        (56, 63)
        """
        for name in ("axis", "device"):
            if name in self.keywords:
                raise UsageError(
                    f"{self!r} has a parameter {name!r}, which is an argument of `model` itself: "
                    "give it another name in the ledger"
                )
        axes = (axis,) if isinstance(axis, int) else tuple(axis)
        free = [normalized_axis(each, len(shape)) for each in axes]
        if len(set(free)) != len(axes) or not axes:
            raise UsageError(f"axis must be an axis or several different ones, not {axis!r}")
        if isinstance(axis, int):
            other_dims = [size for i, size in enumerate(shape) if i != free[0]]
            return self.slices_model(free[0], other_dims, dtype, device, None, **parameters)
        keywords, element = self._keywords(free[0], parameters), as_dtype(dtype)
        dims = _whole(shape)

        def bytes_at(*sizes: int) -> int:
            block = dims.copy()
            for i, size in zip(free, sizes, strict=True):
                block[i] = size
            ledger = Ledger(device)
            self.function(ledger, tuple(block), element, **keywords)
            return ledger.peak_bytes

        return ChunkModel(bytes_at, [dims[i] for i in free])

    def slices_model(
        self,
        axis: int,
        other_dims: Sequence[int],
        dtype: DTypeLike,
        device: Device = "cuda",
        named: Callable[..., Exception] | None = None,
        /,
        **kwargs: Any,
    ) -> MemoryModel:
        """Exact memory model for n slices along an axis.

        The function receives those of `kwargs` that it names, or all if it has ``**kwargs``.
        ``named(error, leading, keywords)`` makes an error that is raised instead of its own.
        """
        function, element = self.function, as_dtype(dtype)
        keywords = self._keywords(axis, kwargs)
        dims = _whole(other_dims)
        accounts: dict[int, tuple[int, int]] = {}

        def peak_bytes(n: int) -> int:
            if n not in accounts:
                leading = (Ledger(device), block_shape(axis, n, dims), element)
                try:
                    function(*leading, **keywords)
                except BaseException as error:
                    if named is None:
                        raise
                    raise named(error, leading, keywords) from error
                accounts[n] = leading[0].peak_bytes, leading[0].kept_bytes
            return accounts[n][0]

        def kept_bytes(n: int) -> int:
            peak_bytes(n)
            return accounts[n][1]

        return MemoryModel(peak_bytes, kept_bytes)

    def entered(
        self, axis: int, other_dims: Sequence[int], dtype: DTypeLike, /, **kwargs: Any
    ) -> Callable[[Ledger, int], None]:
        """Function that enters the allocations of n slices into a ledger. See `slices_model`."""
        function, element = self.function, as_dtype(dtype)
        keywords = self._keywords(axis, kwargs)
        return lambda ledger, n: function(
            ledger, block_shape(axis, n, other_dims), element, **keywords
        )

    def _keywords(self, slice_dim: int, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments of the function."""
        names = kwargs.keys() - self._taken if self.accepts_all else self.keywords & kwargs.keys()
        keywords = {name: kwargs[name] for name in names}
        return keywords | ({"slice_dim": slice_dim} if "slice_dim" in self.keywords else {})

    def __call__(
        self,
        slice_dim: int,
        other_dims: tuple[int, int],
        dtype: DTypeLike,
        available_memory: int,
        /,
        device: Device = "cuda",
        **kwargs: Any,
    ) -> tuple[int, None]:
        """Slices that fit, and None, as the method itself declares its output dtype."""
        model = self.slices_model(slice_dim, other_dims, dtype, device, **kwargs)
        return model.max_slices(available_memory), None


def from_ledger(function: LedgerFunction) -> LedgerEstimator:
    """Make an estimator from a function that lists a method's allocations.

    Parameters
    ----------
    function : callable
        ``function(m, shape, dtype, **kwargs)``, where `m` is an empty `Ledger`, and `shape` and
        `dtype` are those of a block; in pipelines its axes are angles, detector_y, detector_x. It
        enters everything that is alive during the call, input and output included. It may also
        name parameters of the method, and ``slice_dim``.

    Returns
    -------
    LedgerEstimator
        Pass it as ``calc_max_slices``. Its ``model`` gives the memory of blocks of any dims.

    Examples
    --------
    >>> @from_ledger
    ... def needs(m, shape, dtype):
    ...     m.alloc(shape, dtype)          # the input
    ...     m.alloc(shape, "float32")      # the result
    >>> needs(0, (10, 20), "float32", 20_000, device="cpu")
    (12, None)

    Raises
    ------
    RegistrationError
        If `function` is not a function.
    """
    if not callable(function) or isinstance(function, type):
        raise RegistrationError(
            f"a ledger must be a function of m, shape and dtype, not {function!r}"
        )
    return LedgerEstimator(function)


def _whole(shape: Sequence[int]) -> list[int]:
    """Dims as integers of Python, whose products do not overflow."""
    try:
        return [*map(index, shape)]
    except TypeError:
        raise TypeError(f"the dims of an array must be ints, not {shape!r}") from None


@lru_cache(maxsize=256)
def _itemsize(dtype: Any) -> int:
    return as_dtype(dtype).itemsize


@lru_cache(maxsize=256)
def _is_single(dtype: Any) -> bool:
    return as_dtype(dtype).str[1:] in ("f2", "f4", "c8")
