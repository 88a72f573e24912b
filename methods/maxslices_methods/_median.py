"""Medians of cubes of voxels: the selection network, and its use with NumPy.

The medians of 3 x 3 x 3 voxels share work between neighbours. Each column of three is sorted once,
and each plane of nine is merged from three sorted columns. In three sorted planes, only thirteen
voxels can be the median. This takes 92 minima and maxima per voxel with whole arrays. The CUDA
kernel takes 104, because a thread shares planes only within its own line of voxels. SciPy computes
the medians of larger cubes.

Values are compared as integer keys of the same order: integers unchanged, and floats by their bits.
NaN thus counts as larger than every number, and results of NumPy and CUDA are bitwise equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy

from maxslices.core.ledger import Ledger

MERGE_COLUMNS = ((1, 3), (5, 7), (2, 6), (4, 6), (2, 4), (2, 3), (5, 6))
"""Exchanges that sort nine values ``3 * i + k`` already sorted along i and along k: the end of
Floyd's network of 25 exchanges."""

LOWEST, MIDDLE, HIGHEST = range(5, 9), range(2, 7), range(4)
"""Ranks in three sorted planes at which the lowest, the middle or the highest of the three values
of that rank may be the median of all 27 values."""

SELECT = (
    (1, 12, "low"), (2, 6, "both"), (5, 1, "high"), (8, 10, "low"), (9, 2, "high"),
    (11, 6, "low"), (8, 3, "both"), (11, 2, "both"), (0, 8, "high"), (1, 3, "low"),
    (1, 4, "high"), (2, 7, "low"), (8, 4, "both"), (11, 2, "both"), (8, 11, "high"),
    (2, 4, "low"), (11, 2, "high"),
)  # fmt: skip
"""Steps (a, b, which) that move the median of the thirteen candidates to `SELECTED`. The candidates
are the lowest, then the middle, then the highest values, each by rank. A step writes the minimum to
a, the maximum to b, or only one of them for "low" and "high". Found by a search over pruned
selection networks. It is correct for all 120 arrangements of zeros and ones that the candidates can
have, and therefore for all values."""
SELECTED = 2
"""Index of the candidate that is the median after `SELECT`."""

VIEWS_BYTES = 12288
"""Bytes of NumPy views, which matter for small data."""

TILE_VOXELS = 8192
"""Voxels per tile: thirty arrays of this size fit in a core's cache."""

Array = np.ndarray[Any, np.dtype[Any]]
Finish = Callable[[Array, Array], None]


def key_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Dtype of the keys for values of `dtype`, an unsigned integer or float32."""
    return np.dtype(np.int32) if dtype.kind == "f" else dtype


def to_keys(values: Array, mask: Array) -> Array:
    """Convert values to keys in place. `mask` is contiguous bool scratch of the same size."""
    if values.dtype.kind != "f":
        return values
    keys = values.view(key_dtype(values.dtype))
    np.isnan(values, out=mask)
    _flip_negative(keys)
    np.copyto(keys, np.iinfo(keys.dtype).max, where=mask)
    return keys


def to_values(keys: Array, dtype: np.dtype[Any]) -> Array:
    """Convert keys back to values of `dtype`, in place."""
    if dtype.kind != "f":
        return keys
    _flip_negative(keys)
    return keys.view(dtype)


def _flip_negative(keys: Array) -> None:
    """Flip all bits of negative keys except the sign: converts bits of floats to keys and back."""
    top = np.iinfo(keys.dtype).max
    scratch = np.empty(min(keys.size, TILE_VOXELS), keys.dtype)
    for first in range(0, keys.size, TILE_VOXELS):
        part = keys[first : first + TILE_VOXELS]
        flip = np.right_shift(part, 31, out=scratch[: part.size])
        np.bitwise_and(flip, top, out=flip)
        np.bitwise_xor(part, flip, out=part)


def median_27(data: Array, out: Array, finish: Finish | None = None) -> None:
    """Write the median of the 3 x 3 x 3 voxels around each voxel of `data` to `out`.

    The data are padded with their edge values. `finish(values, medians)` may change the medians of
    each tile in `out` while they are in the cache.

    A tile is a line of voxels with one padding voxel at each end of a row. A shift along x is an
    offset into the line. This leaves two meaningless voxels at the end of each row, but every
    operation is on contiguous memory.
    """
    n_z, n_y, n_x = data.shape
    rows, wide = _tile_rows(n_y, n_x), n_x + 2
    raised = np.empty((4, (rows + 2) * wide), data.dtype)
    planes = np.empty((10, rows * wide), key_dtype(data.dtype))
    chosen = np.empty((15, rows * wide), key_dtype(data.dtype))
    mask = np.empty((rows + 2) * wide, bool)
    for z in range(n_z):
        for y in range(0, n_y, rows):
            n = min(rows, n_y - y)
            columns = []
            for line, near in zip(raised, (max(z - 1, 0), z, min(z + 1, n_z - 1)), strict=False):
                line = line[: (n + 2) * wide]
                _fill(line.reshape(n + 2, wide), data[near], y, n)
                columns.append(to_keys(line, mask[: line.size]))
            columns.append(raised[3, : (n + 2) * wide].view(planes.dtype))
            for a, b in ((0, 1), (1, 2), (0, 1)):
                _exchange(columns, a, b)
            nines = [line[: n * wide] for line in planes]
            for k in range(3):
                u, v, w = (columns[k][i * wide : (i + n) * wide] for i in range(3))
                _sort_three(u, v, w, nines[k], nines[3 + k], nines[6 + k], nines[9])
            for a, b in MERGE_COLUMNS:
                _exchange(nines, a, b)
            candidates = [line[: n * wide - 2] for line in chosen]
            _choose(nines, candidates)
            for a, b, which in SELECT:
                _exchange(candidates, a, b, which)
            candidates[SELECTED] = to_values(candidates[SELECTED], data.dtype)
            medians = out[z, y : y + n]
            medians[...] = _rows(candidates[SELECTED], n, wide)
            if finish is not None:
                finish(data[z, y : y + n], medians)


def _tile_rows(n_y: int, n_x: int) -> int:
    return min(n_y, max(1, TILE_VOXELS // n_x))


def _fill(column: Array, plane: Array, y: int, n: int) -> None:
    """Write rows y - 1 to y + n of a plane, with one padding voxel at each end of a row."""
    n_y = plane.shape[0]
    first, last = max(y - 1, 0), min(y + n + 1, n_y)
    column[first - (y - 1) : last - (y - 1), 1:-1] = plane[first:last]
    if first > y - 1:
        column[0] = column[1]
    if last < y + n + 1:
        column[-1] = column[-2]
    column[:, 0] = column[:, 1]
    column[:, -1] = column[:, -2]


def _rows(line: Array, n: int, wide: int) -> Array:
    """View a line as `n` rows, without the two meaningless voxels between rows."""
    step = line.itemsize
    return np.lib.stride_tricks.as_strided(line, (n, wide - 2), (wide * step, step))


def _exchange(arrays: list[Array], a: int, b: int, which: str = "both") -> None:
    """Write the minimum to ``arrays[a]`` and the maximum to ``arrays[b]``, or one of them.

    The last array is scratch.
    """
    if which == "low":
        np.minimum(arrays[a], arrays[b], out=arrays[a])
    elif which == "high":
        np.maximum(arrays[a], arrays[b], out=arrays[b])
    else:
        np.minimum(arrays[a], arrays[b], out=arrays[-1])
        np.maximum(arrays[a], arrays[b], out=arrays[b])
        arrays[a], arrays[-1] = arrays[-1], arrays[a]


def _sort_three(
    u: Array, v: Array, w: Array, low: Array | None, middle: Array | None, high: Array | None,
    scratch: Array, more: Array | None = None,
) -> None:  # fmt: skip
    """Sort three arrays elementwise into `low`, `middle` and `high`, as far as these are not None.

    `scratch` is overwritten, and without `high` also `more`. The three inputs are unchanged.
    """
    high_or_more = more if high is None else high
    if low is not None and middle is None:
        np.minimum(u, v, out=low)
        np.minimum(low, w, out=low)
        return
    assert high_or_more is not None
    np.maximum(u, v, out=high_or_more)
    if middle is not None:
        np.minimum(u, v, out=scratch)
        if low is not None:
            np.minimum(scratch, w, out=low)
        np.minimum(high_or_more, w, out=middle)
        np.maximum(scratch, middle, out=middle)
    if high is not None:
        np.maximum(high, w, out=high)


def _choose(nines: Sequence[Array], candidates: list[Array]) -> None:
    """Write the thirteen candidates for the median of three neighbouring sorted planes."""
    free = iter(candidates)
    low = {j: next(free) for j in LOWEST}
    middle = {j: next(free) for j in MIDDLE}
    high = {j: next(free) for j in HIGHEST}
    scratch, more = next(free), next(free)
    size = scratch.size
    for j in range(9):
        u, v, w = (nines[j][i : i + size] for i in range(3))
        _sort_three(u, v, w, low.get(j), middle.get(j), high.get(j), scratch, more)


def median_cube(data: Array, out: Array, size: int, finish: Finish | None = None) -> None:
    """Write the medians of cubes with `size` voxels a side by SciPy, several slices at a time."""
    n_z = data.shape[0]
    radius = size // 2
    for z in range(0, n_z, 4 * radius):
        first, last = max(z - radius, 0), min(z + 5 * radius, n_z)
        end = min(z + 4 * radius, n_z)
        values = data[first:last].copy()
        mask = np.empty(values.size, bool)
        keys = to_keys(values.reshape(-1), mask).reshape(values.shape)
        del mask
        medians = scipy.ndimage.median_filter(keys, size, mode="nearest")
        del values, keys
        out[z:end] = to_values(medians.reshape(-1), data.dtype).reshape(medians.shape)[
            z - first : end - first
        ]
        del medians
        if finish is not None:
            for i in range(z, end):
                finish(data[i], out[i])


def count_medians(
    m: Ledger, shape: Sequence[int], dtype: np.dtype[Any], size: int, tests: bool
) -> None:
    """Enter the scratch of `median_27` or `median_cube`, and with `tests` that of `put_back`."""
    n_z, n_y, n_x = shape
    if size == 3:
        rows, wide = _tile_rows(n_y, n_x), n_x + 2
        m.alloc((4, rows + 2, wide), dtype)
        m.alloc((10, rows, wide), dtype)
        m.alloc((15, rows, wide), dtype)
        m.alloc((rows + 2, wide), bool)
        m.alloc_bytes(VIEWS_BYTES)
        if dtype.kind == "f":
            m.free(m.alloc(min(TILE_VOXELS, (rows + 2) * wide), dtype))
        tile = rows * n_x
    else:
        cube = min(n_z, 6 * (size // 2)) * n_y * n_x
        m.alloc(cube, dtype)
        m.alloc(cube, dtype)
        m.alloc_bytes(VIEWS_BYTES // 2)
        tile = 0  # smaller than the cube that is freed before single slices are tested
    if tests:
        m.alloc((2, tile), dtype)
        m.alloc(tile, bool)


def put_back(values: Array, medians: Array, limit: float) -> None:
    """Restore the values that differ from their medians by less than `limit`."""
    difference = np.maximum(values, medians)
    with np.errstate(invalid="ignore", over="ignore"):
        np.subtract(difference, np.minimum(values, medians), out=difference)
    if values.dtype.kind == "f":
        near = difference < values.dtype.type(limit)
    else:
        near = difference <= min(math.ceil(limit) - 1, np.iinfo(values.dtype).max)
    np.copyto(medians, values, where=near)
