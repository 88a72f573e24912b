"""Sort the columns of sinograms, values together with their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from maxslices import Ledger

from ._angles import is_stored_order
from .namespaces import array_namespace, on_gpu

SORT_CHUNK = {"cuda": 2**23, "cpu": 2**16}
"""Pixels sorted at a time, in whole sinograms, at least one. On a CPU these are 0.5 MiB of 8-byte
keys, which fit in a core's cache. On a GPU they are 64 MiB, and the sort takes as much again."""

SIGN = 0x80000000
"""Sign bit of a float32."""


def sort_slices(shape: tuple[int, ...], device: str) -> int:
    """Number of sinograms of ``shape[0] * shape[2]`` pixels that are sorted together."""
    return max(1, SORT_CHUNK[device] // (shape[0] * shape[2]))


def account(m: Ledger, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> None:
    """Enter the allocations of sorting, a median filter and sorting back, excluding the data."""
    n_angles, n, width = shape
    columns = min(n, sort_slices(shape, m.device)) * width
    chunk = columns * n_angles
    bits = chunk * 4 if dtype.kind == "f" else 0
    values = m.alloc(chunk, dtype)
    m.free(m.alloc_bytes(bits))
    packed = m.alloc(chunk, np.uint64)
    m.free(m.alloc(n_angles, np.uint64))
    m.free(values)
    if m.device == "cuda":
        m.free(m.alloc(columns, np.uint64))
    m.sort([chunk], np.uint64)
    values = m.alloc(chunk, dtype)
    # NumPy uses buffers if dtypes differ or few angles are broadcast.
    buffer_items = min(chunk, 8192) if m.device == "cpu" else 0
    m.free(m.alloc_bytes(buffer_items * (8 + dtype.itemsize)))
    m.free(m.alloc_bytes(bits))
    medians = m.alloc(chunk, dtype)
    m.free(values)
    m.free(m.alloc(columns, np.int64), m.alloc(buffer_items, np.int64), medians, packed)


def _to_order(values: Any) -> Any:
    """Convert float32 values to uint32 of the same order, in place."""
    xp = array_namespace(values)
    values += 0.0  # makes zeros of both signs equal
    signed = values.view(xp.int32)
    _flip_negative(signed)
    order = values.view(xp.uint32)
    order ^= SIGN
    return order


def _from_order(order: Any) -> Any:
    """Undo `_to_order`."""
    xp = array_namespace(order)
    order ^= SIGN
    _flip_negative(order.view(xp.int32))
    return order.view(xp.float32)


def _flip_negative(signed: Any) -> None:
    """Flip all bits of negative numbers except the sign."""
    mask = signed >> 31
    mask &= SIGN - 1
    signed ^= mask


def sort_columns(chunk: Any, order: NDArray[np.intp]) -> tuple[Any, Any]:
    """Sort the columns of sinograms, with equal values in the order of their angles.

    Value and row are packed into one integer, and a plain sort orders both. On a GPU, the column is
    packed into the highest bits, so one radix sort sorts all columns.

    Parameters
    ----------
    chunk : array, float32 or uint16, shape (angles, slices, columns)
        Sinograms.
    order : ndarray of int, shape (angles,)
        Rows in the order of their angles.

    Returns
    -------
    values : array, shape (slices, columns, angles)
        Sorted values, in the dtype of `chunk`.
    rows : array, int64, shape (slices, columns, angles)
        Row of each value.
    """
    xp = array_namespace(chunk)
    n_angles, n_slices, width = chunk.shape
    is_float = chunk.dtype.kind == "f"
    row_bits = max(1, (n_angles - 1).bit_length())
    values = xp.empty((n_slices, width, n_angles), dtype=chunk.dtype)
    values[...] = chunk.transpose(1, 2, 0)
    packed = xp.empty(values.shape, dtype=xp.uint64)
    packed[...] = _to_order(values) if is_float else values
    del values
    packed <<= row_bits
    packed |= xp.asarray(np.argsort(order).view(np.uint64))  # rank of each row's angle
    if on_gpu(chunk):
        columns = xp.arange(n_slices * width, dtype=xp.uint64)
        columns <<= 32 + row_bits
        packed |= columns.reshape(n_slices, width, 1)
        packed.reshape(-1).sort()
    else:
        packed.sort(axis=-1)
    values = xp.empty(packed.shape, dtype=xp.uint32 if is_float else xp.uint16)
    xp.right_shift(packed, row_bits, out=values)
    packed &= (1 << row_bits) - 1
    rows = packed.view(xp.int64)
    if not is_stored_order(order):
        unchecked = {} if on_gpu(chunk) else {"mode": "clip"}  # NumPy then works in place
        xp.take(xp.asarray(order), rows, out=rows, **unchecked)
    return _from_order(values) if is_float else values, rows
