"""Iterative solution of the slices of a block: one slice per thread, or four together on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maxslices.core.ledger import Ledger

from . import _fbp_cpu, _projector_cpu, _projector_cuda, _tv_cpu, _tv_cuda
from ._fbp_geometry import Lengths, axis_of, host_angles, lengths
from ._projector_cpu import Projector
from ._threads import THREAD_BYTES, n_workers_for
from .namespaces import on_gpu

Image = Any
"""Slice (side, side), float32, or four slices (side, side, 4) on a GPU."""
Rows = Any
"""Sinogram (angles, columns), float32, or four sinograms (angles, columns, 4) on a GPU."""
Solver = Callable[[Any, Rows], Image]


def account(
    m: Ledger,
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    size: Lengths,
    *,
    n_rows: int,
    n_images: int,
    n_passing: int = 0,
    n_subsets: int = 1,
    smoothed: bool = False,
) -> None:
    """Enter the allocations of `solved` with `n_rows` and `n_images` arrays for each slice.

    In addition there are `n_passing` temporary images and, if the images are `smoothed`, the memory
    of the total variation after these are freed.
    """
    m.alloc(shape, dtype)
    m.alloc((size.size, shape[1], size.size), np.float32)
    if m.device == "cuda":
        _account_cuda(m, size, n_rows, n_images, n_passing, smoothed)
        return
    _projector_cpu.account_library(m)
    if np.isfinite(size.radius):
        m.alloc((size.size, size.size), np.bool_)
    for _ in range(n_workers_for(shape[1])):
        m.library(THREAD_BYTES + _fbp_cpu.TABLES_BYTES)
        _projector_cpu.account(m, size, n_subsets)
        for _ in range(n_rows):
            m.alloc((size.n_angles, size.detector + 2 * size.pad), np.float32)
        for _ in range(n_images):
            m.alloc((size.size, size.size), np.float32)
        m.free(*[m.alloc((size.size, size.size), np.float32) for _ in range(n_passing)])
        smoothing = Ledger("cpu")
        if smoothed:
            _tv_cpu.account_pd(smoothing, (1, size.size, size.size))
        m.alloc_bytes(smoothing.peak_bytes)  # FINUFFT's workspace is free then
        m.library(max(0, _projector_cpu.work_of_a_call(size) - smoothing.peak_bytes))


def _account_cuda(
    m: Ledger, size: Lengths, n_rows: int, n_images: int, n_passing: int, smoothed: bool
) -> None:
    images = (size.size, size.size, _projector_cuda.SLICES)
    if np.isfinite(size.radius):
        m.alloc((size.size, size.size), np.bool_)
    _projector_cuda.account(m, size)
    rows = (size.n_angles, size.detector + 2 * size.pad, images[2])
    for _ in range(n_rows):
        m.alloc(rows, np.float32)
    m.alloc(images, np.float32)
    m.free(m.alloc(rows, np.bool_))  # mask of rays
    for _ in range(n_images - 1):
        m.alloc(images, np.float32)
    m.free(*[m.alloc(images, np.float32) for _ in range(n_passing)])
    if smoothed:
        m.alloc((1, size.size, size.size), np.float32)
        _tv_cuda.account_pd(m, (1, size.size, size.size))


def solved(
    data: Any,
    angles: Any,
    center: float | None,
    detector_pad: bool | int,
    recon_size: int | None,
    recon_mask_radius: float | None,
    solve: Solver,
) -> Any:
    """Reconstruct all slices by `solve`, on the device of the data."""
    size = lengths(data.shape, detector_pad, recon_size, recon_mask_radius)
    middle = axis_of(center, size.detector)
    radians = host_angles(angles, size.n_angles)
    outside = _fbp_cpu.outside_of(size)
    if on_gpu(data):
        return _solved_on_gpu(data, radians, middle, size, outside, solve)
    n_slices = data.shape[1]
    result = np.empty((size.size, n_slices, size.size), np.float32)
    n_workers = n_workers_for(n_slices)
    _fbp_cpu.load_library()

    def work(worker: int) -> None:
        projector = projectors[worker]
        measured = np.empty((size.n_angles, projector.columns), np.float32)
        for index in range(worker, n_slices, n_workers):
            _pad_into(measured, data[:, index], size.pad)
            np.copyto(result[:, index], solve(projector, measured))
            if outside is not None:
                np.copyto(result[:, index], np.float32(0), where=outside)

    with ThreadPoolExecutor(n_workers) as pool:
        projectors = list(pool.map(lambda _: Projector(radians, middle, size), range(n_workers)))
        list(pool.map(work, range(n_workers)))
    return result


def _solved_on_gpu(
    data: Any,
    radians: NDArray[np.float64],
    middle: float,
    size: Lengths,
    outside: NDArray[np.bool_] | None,
    solve: Solver,
) -> Any:
    """Reconstruct four slices at a time. The last group is padded with zero slices."""
    import cupy as cp

    n_slices, together = data.shape[1], _projector_cuda.SLICES
    result = cp.empty((size.size, n_slices, size.size), np.float32)
    masked = None if outside is None else cp.asarray(outside)
    projector = _projector_cuda.Projector(radians, middle, size)
    measured = cp.zeros((size.n_angles, projector.columns, together), np.float32)
    for first in range(0, n_slices, together):
        n = min(together, n_slices - first)
        measured[..., n:] = 0
        for k in range(n):
            _pad_into(measured[..., k], data[:, first + k], size.pad)
        images = solve(projector, measured)
        for k in range(n):
            result[:, first + k] = images[..., k]
            if masked is not None:
                cp.copyto(result[:, first + k], np.float32(0), where=masked)
        del images
    return result


def _pad_into(padded: Any, rows: Any, pad: int) -> None:
    """Copy rows into padded rows, and pad them with their edge values."""
    edge = pad + rows.shape[1]
    padded[:, pad:edge] = rows
    if pad:
        padded[:, :pad] = rows[:, :1]
        padded[:, edge:] = rows[:, -1:]


def square(values: Any) -> Any:
    """Sum of squares: a float, or on a GPU an array with the sums of four slices."""
    if on_gpu(values):
        return _squares()(values, axis=0).sum(axis=0)
    flat = values.reshape(-1)
    return float(np.dot(flat, flat))


def ratio(numerator: Any, denominator: Any) -> Any:
    """Quotient as float32, or 0 where both are 0 because a slice is already solved."""
    if on_gpu(numerator):
        is_nonzero = denominator > 0
        return (is_nonzero * numerator / (denominator + ~is_nonzero)).astype(np.float32)
    return np.float32(numerator / denominator if denominator else 0)


@lru_cache(maxsize=1)
def _squares() -> Any:
    import cupy as cp

    return cp.ReductionKernel(
        "float32 x", "float64 y", "(double)x * x", "a + b", "y = a", "0", "squares"
    )
