"""Functions on blocks of arrays of other libraries, as large as memory allows."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.any_dims import BlockMethod
from ..core.arrays import ArraySpec
from ..core.method_meta import Halo
from ..core.units import format_bytes, parse_bytes
from ..devices import select_backend
from ..devices.method_call import call_method
from ..errors import DoesNotFitError, SourceError, UsageError
from ..estimate import ModelRequest, ModelResolver, Records
from ..io.access import SideName, Source
from ..pipeline import Pipeline
from .run_scan import run


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
        as many elements along `axis` as its input. Its memory is declared if it was decorated with
        a ledger. Otherwise it is recorded, or measured on a few small blocks of made-up values.
    array : array
        Any object with a shape and a dtype, of NumPy, CuPy, Dask, xarray, Zarr or h5py. Its data
        are not read.
    memory : str or int
        Budget of one call, input and output included, such as ``"16GB"``, or bytes. On a GPU it
        limits the use of the memory pool.
    axis : int
        Axis along which the array is cut.
    halo : int or (int, int), optional
        Elements (before, after) along the axis that the function needs around a block. Default:
        the halo that it declares, or 0.
    device : str
        "cpu", "cuda:N" or "auto": a GPU if there is one.
    **parameters
        Parameters of the function.

    Returns
    -------
    tuple of int
        Shape of a block: that of the array, with the size of a block along `axis`. Dask's
        ``rechunk`` takes it.

    Raises
    ------
    DoesNotFitError
        If not even one element along the axis fits.
    UsageError
        If the array has no such axis.
    MaxslicesError
        If the memory of the function cannot be estimated.

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
    blocks = _blocks_of(function, array, axis, halo, parameters)
    return blocks.block_shape(_fitting(blocks, parse_bytes(memory), device))


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

    Blocks of arrays in memory and in files are read, processed and written at the same time. The
    blocks of a Dask array are its chunks, and Dask computes the result.

    Parameters
    ----------
    function, axis, halo, device, **parameters
        As for `fit_blocks`. The result of the function may depend only on the block and its halo,
        which is smaller at the ends of the array.
    array : array
        Array of NumPy, Dask, xarray, Zarr or h5py.
    memory : str or int, optional
        Budget, such as ``"16GB"``, or bytes. Default: the free memory. On the CPU it includes the
        whole result and 4.5 MiB for Python. For a Dask array it is required, and is the budget of
        one call: on the CPU, Dask makes calls in all its threads. On a GPU, a process makes one
        call at a time.

    Returns
    -------
    array
        A Dask array for a Dask array, a ``DataArray`` with the same coordinates for a ``DataArray``
        whose shape is kept, otherwise a NumPy array.

    Raises
    ------
    UsageError
        If a Dask array has no budget, or the array has no such axis.
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
    blocks = _blocks_of(function, array, axis, halo, parameters)
    if hasattr(array, "map_overlap"):
        if memory is None:
            raise UsageError(
                "a Dask array needs a budget for one call: give memory, such as '4GB', the "
                "memory of a worker divided by its threads"
            )
        return _mapped_by_dask(blocks, array, parse_bytes(memory), device)
    source: Any = ArrayBlocks(array, blocks)
    if isinstance(array, np.ndarray) and array.flags.c_contiguous:
        source = array.reshape(blocks.flat(blocks.shape))  # used in place
    report = run(source, Pipeline.from_steps([blocks.meta]), device=device, memory=memory)
    return np.asarray(report.result).reshape(blocks.result_shape)


_backend = functools.cache(select_backend)
_one_call = threading.Lock()
"""Held during a call on a GPU, as the budget is for one call and Dask has several threads."""


def _blocks_of(
    function: Callable[..., Any],
    array: Any,
    axis: int,
    halo: Halo | None,
    parameters: Mapping[str, Any],
) -> BlockMethod:
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise UsageError(f"{type(array).__name__} is not an array: it has no shape and dtype")
    return BlockMethod(function, array.shape, array.dtype, axis, halo, parameters)


def _fitting(blocks: BlockMethod, n_bytes: int, device: str) -> int:
    """Return how many elements along the axis fit in a budget, in addition to their halo.

    Raises
    ------
    DoesNotFitError
        If not even one fits.
    """
    flat, total = ArraySpec(blocks.flat(blocks.shape), blocks.dtype), blocks.shape[blocks.axis]
    other_dims = flat.other_dims(blocks.slice_dim)
    request = ModelRequest(blocks.meta, blocks.slice_dim, other_dims, blocks.dtype, {}, total)
    backend = select_backend(device)
    resolver = ModelResolver(
        backend.kind, backend=backend, records=Records(), available_bytes=n_bytes
    )
    model = resolver.resolve(request).model.widened(sum(blocks.meta.halo_slices()), total)
    n = model.max_slices(n_bytes, total)
    if n == 0:
        raise DoesNotFitError(
            f"{blocks.meta.name} of a block {'x'.join(map(str, blocks.block_shape(1)))} of "
            f"{blocks.dtype} takes {format_bytes(model.bytes(1))}, but {format_bytes(n_bytes)} "
            "are allowed: allow more, or cut the array along another axis"
        )
    return n


def _mapped_by_dask(blocks: BlockMethod, array: Any, n_bytes: int, device: str) -> Any:
    """Return the Dask array of the results, with chunks that fit."""
    dask_overlap: Any = importlib.import_module("dask.array.overlap")
    n = _fitting(blocks, n_bytes, device)
    halo = blocks.meta.halo_slices()
    few = blocks.block_shape(min(blocks.shape[blocks.axis], 1 + sum(halo)))
    example = _call_on(blocks, device, np.ones(few, blocks.dtype))
    before, after = blocks.result_dims or ((), ())
    chunks = dict.fromkeys(range(len(blocks.shape)), -1) | {blocks.axis: n}
    depth = dict.fromkeys(range(len(blocks.shape)), 0) | {blocks.axis: halo}
    overlapped = dask_overlap.overlap(array.rechunk(chunks), depth, boundary="none")
    results = overlapped.map_blocks(
        functools.partial(_call_on, blocks, device),
        dtype=example.dtype,
        meta=example[:0],
        chunks=(*((k,) for k in before), overlapped.chunks[blocks.axis], *((k,) for k in after)),
        drop_axis=[i for i in range(len(blocks.shape)) if i != blocks.axis],  # one chunk each
        new_axis=[i for i in range(example.ndim) if i != blocks.axis],
    )
    depth = dict.fromkeys(range(results.ndim), 0) | {blocks.axis: halo}
    return dask_overlap.trim_internal(results, depth, boundary="none")


def _call_on(blocks: BlockMethod, device: str, block: NDArray[Any]) -> NDArray[Any]:
    """Compute one block, from host memory to host memory.

    The device is passed by name. Dask pickles the arguments of a task even within one process, and
    deleting a copy of a backend would destroy its streams.
    """
    backend = _backend(device)
    if backend.kind == "cpu":
        return blocks.result(call_method(blocks.meta, blocks.flattened(block), {}, backend))
    with _one_call:
        data = backend.to_device(blocks.flattened(block))
        return blocks.result(backend.to_host(call_method(blocks.meta, data, {}, backend)))


class ArrayBlocks(Source):
    """An array that is read block by block, as a scan of three dims.

    Parameters
    ----------
    array : array
        Array whose slices convert to NumPy arrays.
    blocks : BlockMethod
        The division into blocks.
    """

    def __init__(self, array: Any, blocks: BlockMethod) -> None:
        self.array, self._blocks = array, blocks
        self.name = type(array).__name__
        self.spec = ArraySpec(blocks.flat(blocks.shape), blocks.dtype)

    def close(self) -> None:
        """Do nothing, as the array belongs to the caller."""

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
        """Raise an error, as an array has no flats or darks."""
        raise SourceError(f"{self.name} has no {name}")
