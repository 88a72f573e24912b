"""Work memory of CuPy's sorts, scans and matrix products, in bytes.

NVIDIA does not document it. The rules were fitted to 437 calls of CuPy 14.2 on an NVIDIA H200 with
CUDA 13 (2026-11-28). No measured call took more. For a million values or more, the measured memory
including input and result is at least 95 % of the estimated one. The rules exclude the result of a
call, and kernels and handles outside of CuPy's pool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from .allocators import round_to_granule
from .arrays import normalized_axis

SORT_VALUES = 2**22
"""Number of values that CuPy sorts at once, in whole rows, for arrays of two or more dims."""
FEW_SORTED_BYTES = 17 * 1024
"""Memory of small sorts in addition to histograms: 17,920 bytes in total for 4224 float64."""
FEW_SCANNED_BYTES = 84 * 1024
"""Memory of `cupy.argmax` for any number of 8-byte values, 85,504 bytes, rounded up."""


def sort_bytes(
    shape: Sequence[int], dtype: DTypeLike, axis: int = -1, *, indices: bool = False
) -> int:
    """Work memory of `cupy.sort`, `cupy.argsort` and functions that sort, such as `cupy.median`.

    Parameters
    ----------
    shape : sequence of int
        The array.
    dtype : dtype-like
        Its dtype.
    axis : int
        The axis to sort along. If it is not the last one, CuPy sorts a copy with this axis last.
    indices : bool
        Whether indices are returned. `cupy.argsort` sorts a copy of the data.

    Returns
    -------
    int
        Bytes in addition to the data and the result. `cupy.median` sorts a copy of the data.
        `cupy.percentile` sorts a copy that has the axis last: pass the shape of the copy.

    Notes
    -----
    Arrays of one dim are sorted by radix, with a second buffer and a histogram of 1 kB for each
    tile. The smallest tiles, for keys of 8 bytes, have 4224 values. Arrays of more dims are sorted
    as pairs of row number and value. For each value this takes 8 bytes for the row number, and a
    buffer of 16 bytes for both (24 with indices), for any dtype.
    """
    itemsize, n_values = np.dtype(dtype).itemsize, math.prod(shape)
    if n_values == 0:
        return 0
    if len(shape) == 1:
        tiles = -(-n_values // 4224)
        work = n_values * (itemsize + 8 * indices) + 1024 * tiles + FEW_SORTED_BYTES
        return round_to_granule(work) + round_to_granule(n_values * itemsize) * indices
    axis = normalized_axis(axis, len(shape))
    copied = indices or axis != len(shape) - 1
    at_once = n_values
    if not indices:
        at_once = min(n_values, max(1, SORT_VALUES // shape[axis]) * shape[axis])
    work = at_once * (24 if indices else 16) + 8 * -(-at_once // 2048) + 1024
    return (
        round_to_granule(at_once * 8)
        + round_to_granule(work)
        + round_to_granule(n_values * itemsize) * copied
    )


def scan_bytes(n_values: int) -> int:
    """Work memory of one pass over all values: `cupy.cumsum`, `cupy.sum`, `cupy.count_nonzero`.

    `cupy.nonzero` needs 1 byte more for each value, and ``x[mask]`` needs 5, for flags and
    positions. Sums and scans along one axis need 512 bytes.
    """
    return round_to_granule(8 * -(-n_values // 512) + FEW_SCANNED_BYTES) if n_values else 0


def matmul_bytes(a_shape: Sequence[int], b_shape: Sequence[int], dtype: DTypeLike) -> int:
    """Work memory of ``a @ b`` for contiguous arrays.

    The workspace of cuBLAS belongs to its handle, outside of CuPy's pool. Products of float32,
    float64 and complex matrices need no other memory, but vectors and non-contiguous factors are
    copied. Stacks of float16 matrices are multiplied in float32, with copies of both factors and of
    the result.
    """
    itemsize = np.dtype(dtype).itemsize
    if len(b_shape) == 1:
        return round_to_granule(math.prod(b_shape) * itemsize)
    if np.dtype(dtype) != np.float16 or max(len(a_shape), len(b_shape)) == 2:
        return 0
    stack = np.broadcast_shapes(tuple(a_shape[:-2]), tuple(b_shape[:-2]))
    result = (*stack, a_shape[-2], b_shape[-1])
    return sum(round_to_granule(math.prod(shape) * 4) for shape in (a_shape, b_shape, result))
