"""Blocks of arrays of other libraries: how large they may be, and a function run on them.

An array in C order can be seen as one of three dims: those before the axis of the blocks, the axis,
and those after it. In this way a function of arrays of any dims becomes a method, and is estimated
and run like any other.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import ArraySpec, normalized_axis
from ..core.ledger import Ledger, LedgerEstimator, from_ledger
from ..core.method_meta import MethodMeta
from ..core.method_registry import Registry
from ..core.units import format_bytes, parse_bytes
from ..devices import select_backend
from ..devices.method_call import call_method
from ..errors import DoesNotFitError, SourceError, UsageError
from ..estimate import ModelRequest, ModelResolver, Records
from ..io.access import Closing, SideName
from ..pipeline import Pipeline
from .run_scan import run

Dims = tuple[int, ...]
Halo = int | tuple[int, int]
"""Elements before and after a block, together or each."""


def fit_blocks(
    function: Callable[..., Any],
    array: Any,
    memory: str | int,
    *,
    axis: int = 0,
    halo: Halo | None = None,
    device: str = "auto",
    **parameters: Any,
) -> tuple[int, ...]:
    """Find the largest blocks of an array on which a function stays within a memory budget.

    Parameters
    ----------
    function : callable
        ``function(block, **parameters)``, for NumPy, CuPy or torch arrays. It returns an array with
        as many elements along `axis` as its input. What it takes is declared, if it was decorated
        with a ledger, else recorded or measured on a few small blocks of made-up values.
    array : array
        Anything with a shape and a dtype: of NumPy, CuPy, Dask, xarray, Zarr or h5py. Its data are
        not read.
    memory : str or int
        Budget of one call, input and output included, such as ``"16GB"``, or bytes. On a GPU it is
        what the call may take of the memory pool.
    axis : int
        Axis along which the array is cut.
    halo : int or (int, int), optional
        Elements (before, after) along the axis that the function needs around a block; by default
        those that it declares.
    device : str
        "cpu", "cuda:N" or "auto": a GPU if there is one.
    **parameters
        Of the function.

    Returns
    -------
    tuple of int
        Shape of a block: that of the array, with the size of a block along `axis`. Such a tuple is
        what ``rechunk`` of Dask takes.

    Raises
    ------
    DoesNotFitError
        If not even one element along the axis fits.
    UsageError
        If the array has no such axis.
    MaxslicesError
        If the memory of the function can't be found.

    Examples
    --------
    >>> import numpy as np
    >>> from maxslices import fit_blocks, from_ledger, method
    >>> @from_ledger
    ... def needs(m, shape, dtype):
    ...     m.alloc(shape, dtype)
    ...     m.alloc(shape, dtype)
    >>> @method("all", calc_max_slices=needs)
    ... def doubled(data):
    ...     return data * 2
    >>> fit_blocks(doubled, np.ones((64, 100, 50, 3), "float32"), 10**6, axis=1, device="cpu")
    (64, 13, 50, 3)
    """
    blocks = BlockMethod(function, array, axis, halo, parameters)
    return blocks.block_shape(blocks.fitting(parse_bytes(memory), device))


def map_blocks(
    function: Callable[..., Any],
    array: Any,
    memory: str | int | None = None,
    *,
    axis: int = 0,
    halo: Halo | None = None,
    device: str = "auto",
    **parameters: Any,
) -> Any:
    """Call a function on the blocks of an array, as large as a memory budget allows.

    Blocks of arrays in memory and in files are read, processed and written at the same time. Those
    of a Dask array are its chunks, and the result is computed when Dask is asked for it.

    Parameters
    ----------
    function, axis, halo, device, **parameters
        As for `fit_blocks`. The function does not know where a block lies; its result depends on
        nothing but the block and its halo, of which there is less at the ends of the array.
    array : array
        Of NumPy, Dask, xarray, Zarr or h5py.
    memory : str or int, optional
        Budget, such as ``"16GB"``, or bytes; by default what is free. Of a Dask array that of one
        call, and needed: Dask calls a function on the CPU in as many threads as it has. A process
        uses a GPU for one call at a time.

    Returns
    -------
    array
        Of Dask for Dask's, a ``DataArray`` with the same coordinates for one whose shape is kept,
        else of NumPy.

    Raises
    ------
    UsageError
        If a Dask array comes without a budget, or the array has no such axis.
    MaxslicesError
        If the function fails, or not even one element along the axis fits.

    Examples
    --------
    >>> import numpy as np
    >>> from maxslices import map_blocks
    >>> movie = np.arange(24.0, dtype="float32").reshape(4, 3, 2)
    >>> map_blocks(np.sqrt, movie, "1GB", axis=1, device="cpu").shape
    (4, 3, 2)
    """
    if hasattr(array, "dims") and hasattr(array, "coords") and hasattr(array, "data"):
        keywords = {"axis": axis, "halo": halo, "device": device, **parameters}
        result = map_blocks(function, array.data, memory, **keywords)
        return array.copy(data=result) if result.shape == array.shape else result
    blocks = BlockMethod(function, array, axis, halo, parameters)
    if hasattr(array, "map_overlap"):
        if memory is None:
            raise UsageError(
                "a Dask array needs a budget for one call: give memory, such as '4GB', by the "
                "memory and the threads of a worker"
            )
        return blocks.mapped_by_dask(array, parse_bytes(memory), device)
    source: Any = ArrayBlocks(array, blocks)
    if isinstance(array, np.ndarray) and array.flags.c_contiguous:
        source = array.reshape(blocks.flat(blocks.shape))  # its memory is used as it is
    report = run(source, Pipeline.from_steps([blocks.meta]), device=device, memory=memory)
    return np.asarray(report.result).reshape(blocks.result_shape)


_backend = functools.cache(select_backend)
_one_call = threading.Lock()
"""Held during a call on a GPU: the budget is for one, and Dask has several threads in a process."""


class BlockMethod:
    """A function of arrays of any dims, as a method of three.

    Parameters
    ----------
    function, array, axis, halo, parameters
        As for `fit_blocks`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        array: Any,
        axis: int,
        halo: Halo | None,
        parameters: Mapping[str, Any],
    ) -> None:
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            raise UsageError(f"{type(array).__name__} is not an array: it has no shape and dtype")
        self.shape: Dims = tuple(map(int, array.shape))
        """Shape of the whole array."""
        if not self.shape or min(self.shape) < 1:
            raise UsageError(f"an array of shape {self.shape} has no blocks")
        self.dtype = np.dtype(array.dtype)
        self.axis = normalized_axis(axis, len(self.shape))
        self.slice_dim = 1 if self.axis else 0
        """Axis of the blocks among the three dims: there are none before the first one."""
        self.result_dims: tuple[Dims, Dims] | None = None
        """Dims of the last result before the axis and after it; None before the first call."""
        self.meta = self._registered(function, halo, dict(parameters))
        """The method."""

    def flat(self, shape: Dims) -> tuple[int, int, int]:
        """The three dims of a block of this shape."""
        if self.axis:
            before, after = shape[: self.axis], shape[self.axis + 1 :]
            return math.prod(before), shape[self.axis], math.prod(after)
        return shape[0], math.prod(shape[1:2]), math.prod(shape[2:])

    def block_shape(self, n: int) -> Dims:
        """Shape of a block of n elements along the axis."""
        return (*self.shape[: self.axis], n, *self.shape[self.axis + 1 :])

    @property
    def result_shape(self) -> Dims:
        """Shape of the whole result, after a call."""
        assert self.result_dims is not None
        before, after = self.result_dims
        return (*before, self.shape[self.axis], *after)

    def fitting(self, n_bytes: int, device: str) -> int:
        """Elements along the axis that fit in so many bytes, with a halo beside them.

        Raises
        ------
        DoesNotFitError
            If not one does.
        """
        flat, total = ArraySpec(self.flat(self.shape), self.dtype), self.shape[self.axis]
        other_dims = flat.other_dims(self.slice_dim)
        request = ModelRequest(self.meta, self.slice_dim, other_dims, self.dtype, {}, total)
        backend = select_backend(device)
        resolver = ModelResolver(
            backend.kind, backend=backend, records=Records(), available_bytes=n_bytes
        )
        model = resolver.resolve(request).model.widened(sum(self.meta.halo_slices()), total)
        n = model.max_slices(n_bytes, total)
        if n == 0:
            raise DoesNotFitError(
                f"{self.meta.name} of a block {'x'.join(map(str, self.block_shape(1)))} of "
                f"{self.dtype} takes {format_bytes(model.bytes(1))}, and {format_bytes(n_bytes)} "
                "are allowed: allow more, or cut the array along another axis"
            )
        return n

    def mapped_by_dask(self, array: Any, n_bytes: int, device: str) -> Any:
        """Dask array of the results, with chunks that fit."""
        dask_overlap: Any = importlib.import_module("dask.array.overlap")
        n = self.fitting(n_bytes, device)
        halo = self.meta.halo_slices()
        few = self.block_shape(min(self.shape[self.axis], 1 + sum(halo)))
        example = self._call_on(device, np.ones(few, self.dtype))
        before, after = self.result_dims or ((), ())
        chunks = dict.fromkeys(range(len(self.shape)), -1) | {self.axis: n}
        depth = dict.fromkeys(range(len(self.shape)), 0) | {self.axis: halo}
        given = dask_overlap.overlap(array.rechunk(chunks), depth, boundary="none")
        results = given.map_blocks(
            functools.partial(self._call_on, device),
            dtype=example.dtype,
            meta=example[:0],
            chunks=(*((k,) for k in before), given.chunks[self.axis], *((k,) for k in after)),
            drop_axis=[i for i in range(len(self.shape)) if i != self.axis],  # of one chunk each
            new_axis=[i for i in range(example.ndim) if i != self.axis],
        )
        depth = dict.fromkeys(range(results.ndim), 0) | {self.axis: halo}
        return dask_overlap.trim_internal(results, depth, boundary="none")

    def _call_on(self, device: str, block: NDArray[Any]) -> NDArray[Any]:
        """Result of one block, from host memory to host memory.

        The device is named, and not held: Dask pickles what is in a task, also where it runs in
        this process, and the streams of a backend end with the first copy of them.
        """
        backend = _backend(device)
        if backend.kind == "cpu":
            return self._result(call_method(self.meta, self._flattened(block), {}, backend))
        with _one_call:
            data = backend.to_device(self._flattened(block))
            return self._result(backend.to_host(call_method(self.meta, data, {}, backend)))

    def _flattened(self, block: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(block).reshape(self.flat(block.shape))

    def _result(self, flat: NDArray[Any]) -> NDArray[Any]:
        before, after = self.result_dims or ((), ())
        return flat.reshape(*before, flat.shape[self.slice_dim], *after)

    def _registered(
        self, function: Callable[..., Any], halo: Halo | None, parameters: dict[str, Any]
    ) -> MethodMeta:
        """The function as a method, in a registry of its own."""
        known = getattr(function, "meta", None)
        own = known if isinstance(known, MethodMeta) else None
        if halo is None:
            halo = own.halo_slices(**own.merged(**parameters)) if own else 0

        def call(data: Any, *, dims: tuple[Dims, Dims], parameters: dict[str, Any]) -> Any:
            n = data.shape[self.slice_dim]
            result = function(data.reshape(*dims[0], n, *dims[1]), **parameters)
            shape = tuple(result.shape)
            if shape[self.axis : self.axis + 1] != (n,):
                raise ValueError(
                    f"a block with {n} elements along axis {self.axis} gave a result of shape "
                    f"{shape}: it must have as many there"
                )
            self.result_dims = shape[: self.axis], shape[self.axis + 1 :]
            return result.reshape(self.flat(shape))

        call.__signature__ = inspect.signature(call)  # type: ignore[attr-defined]
        call.__wrapped__ = function  # type: ignore[attr-defined] # whose code a record is of
        ledger = None
        if own is not None and isinstance(own.estimator, LedgerEstimator):
            ledger = self._ledger(own.estimator, own.merged(**parameters))
        module = str(getattr(function, "__module__", "") or "")
        name = str(getattr(function, "__name__", ""))
        return Registry().register(
            functools.partial(
                call,
                dims=(self.shape[: self.axis], self.shape[self.axis + 1 :]),
                parameters=parameters,
            ),
            pattern="sinogram" if self.slice_dim else "projection",
            name=name if name.isidentifier() else type(function).__name__,
            module=module or "functions",
            halo=halo,
            calc_max_slices=ledger,
            array_module="torch" if module.partition(".")[0] == "torch" else None,
        )

    def _ledger(self, estimator: LedgerEstimator, parameters: dict[str, Any]) -> LedgerEstimator:
        """Ledger of a function that has one, for its blocks as three dims."""

        @from_ledger
        def of_blocks(m: Ledger, shape: Dims, dtype: np.dtype[Any]) -> None:
            n = shape[self.slice_dim]
            estimator.entered(self.axis, self._other_dims, dtype, **parameters)(m, n)

        return of_blocks

    @property
    def _other_dims(self) -> Dims:
        return (*self.shape[: self.axis], *self.shape[self.axis + 1 :])


class ArrayBlocks(Closing):
    """An array that is read block by block, as a scan of three dims.

    Parameters
    ----------
    array : array
        With slices that become NumPy arrays.
    blocks : BlockMethod
        How it is cut.
    """

    flats = darks = angles = None

    def __init__(self, array: Any, blocks: BlockMethod) -> None:
        self.array, self._blocks = array, blocks
        self.name = type(array).__name__
        self.spec = ArraySpec(blocks.flat(blocks.shape), blocks.dtype)

    def close(self) -> None:
        """Leave the array to its owner."""

    def read(self, slice_dim: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read elements `start` to `stop` along the axis into `out`."""
        if slice_dim != self._blocks.slice_dim:
            raise UsageError(f"blocks are cut along dim {self._blocks.slice_dim}, not {slice_dim}")
        index = (slice(None),) * self._blocks.axis + (slice(start, stop),)
        try:
            block = np.asarray(self.array[index])
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            raise SourceError(f"{self.name}: {type(error).__name__}: {error}") from error
        out[...] = block.reshape(out.shape)

    def read_side(self, name: SideName, slice_dim: int, start: int, stop: int) -> NDArray[Any]:
        """Refuse: an array has no flats or darks."""
        raise SourceError(f"{self.name} has no {name}")
