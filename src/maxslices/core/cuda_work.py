"""Work memory of CuPy's sorts, scans and matrix products, in bytes.

NVIDIA does not document it. The rules were fitted to 437 calls that CuPy 14.2 made on an NVIDIA
H200 with CUDA 13 (2026-11-28). They are below none of them; with input and result, a call of a
million values or more takes at least 95 % of what they say. What a call takes for its result is
not included, and neither are kernels and handles, which are outside of CuPy's pool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from .allocators import round_to_granule
from .arrays import normalized_axis

SORT_VALUES = 2**22
"""CuPy sorts so many values of an array of two or more dims at once, in whole rows."""
FEW_SORTED_BYTES = 17 * 1024
"""Beyond the histograms, what sorts of some thousand values take: 17,920 bytes of 4224 float64."""
FEW_SCANNED_BYTES = 84 * 1024
"""What `cupy.argmax` of 8-byte values takes, 85,504 bytes however many they are, rounded up."""


def sort_bytes(
    shape: Sequence[int], dtype: DTypeLike, axis: int = -1, *, indices: bool = False
) -> int:
    """Work memory of `cupy.sort` and `cupy.argsort`, and of what sorts: `cupy.median`.

    Parameters
    ----------
    shape : sequence of int
        The array.
    dtype : dtype-like
        Its dtype.
    axis : int
        The axis to sort along. For any but the last, CuPy sorts a copy with that axis last.
    indices : bool
        Whether indices are wanted: `cupy.argsort`, which sorts a copy of the data.

    Returns
    -------
    int
        Bytes beside the data and the result. `cupy.median` sorts a copy of the data.
        `cupy.percentile` sorts a copy that has the axis last: give that copy's shape.

    Notes
    -----
    One dim is sorted by radix, with a second buffer and a histogram of 1 kB for each tile. The
    smallest tiles, those of keys of 8 bytes, have 4224 values. More dims are sorted as pairs of
    row number and value: 8 bytes a value for the row numbers, and a buffer of 16 for both
    (24 with indices), whatever the dtype.
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

    `cupy.nonzero` needs 1 byte a value more and ``x[mask]`` 5, for flags and for positions.
    Along one axis of an array, sums and scans need 512 bytes.
    """
    return round_to_granule(8 * -(-n_values // 512) + FEW_SCANNED_BYTES) if n_values else 0


def matmul_bytes(a_shape: Sequence[int], b_shape: Sequence[int], dtype: DTypeLike) -> int:
    """Work memory of ``a @ b``, both contiguous.

    cuBLAS' own workspace belongs to its handle, outside of CuPy's pool. Products of float32,
    float64 and complex matrices need nothing else; a vector is copied, and so are factors with
    steps. A stack of float16 matrices is multiplied in float32, with copies of both factors and
    of the result.
    """
    itemsize = np.dtype(dtype).itemsize
    if len(b_shape) == 1:
        return round_to_granule(math.prod(b_shape) * itemsize)
    if np.dtype(dtype) != np.float16 or max(len(a_shape), len(b_shape)) == 2:
        return 0
    stack = np.broadcast_shapes(tuple(a_shape[:-2]), tuple(b_shape[:-2]))
    result = (*stack, a_shape[-2], b_shape[-1])
    return sum(round_to_granule(math.prod(shape) * 4) for shape in (a_shape, b_shape, result))
