"""Three methods: one with each way to declare the cost, and one of somebody else."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from maxslices import from_ledger, method, registry


def _max_slices(slice_dim, other_dims, dtype, available_memory, **kwargs):
    per_slice = 2 * other_dims[0] * other_dims[1] * dtype.itemsize
    return available_memory // per_slice, dtype


@method("projection", calc_max_slices=_max_slices)
def scale(data, *, strength: float = 1.0):
    """Multiply by a number."""
    return (data * strength).astype(data.dtype)


@from_ledger
def _binned_bytes(m, shape, dtype, factor):
    m.alloc(shape, dtype)
    m.alloc((shape[0], shape[1] // factor, shape[2] // factor), "float32")


def _binned_dims(other_dims, factor):
    return other_dims[0] // factor, other_dims[1] // factor


@method(
    "projection",
    calc_max_slices=_binned_bytes,
    output_dims=_binned_dims,
    output_dtype="float32",
)
def bin_detector(data, factor: int = 2):
    """Average squares of detector pixels."""
    n, rows, columns = data.shape
    rows, columns = rows // factor, columns // factor
    squares = data[:, : rows * factor, : columns * factor].reshape(n, rows, factor, columns, factor)
    return squares.mean(axis=(2, 4), dtype=np.float32)


@method("projection", halo=lambda radius: radius)
def mean_filter(data, radius: int = 1):
    """Average over neighbouring slices; the cost is not declared."""
    windows = sliding_window_view(
        np.pad(data, [(radius, radius), (0, 0), (0, 0)]), 2 * radius + 1, 0
    )
    return windows.mean(axis=-1, dtype=np.float32)


registry.register(
    np.flip, pattern="sinogram", calc_max_slices=_max_slices, module="fake_lab_methods"
)
