"""Slices of a block, each solved by a thread with a projector of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maxslices.core.ledger import Ledger

from . import _fbp_cpu, _projector_cpu, _tv_cpu
from ._fbp_geometry import Lengths, axis_of, host_angles, lengths
from ._projector_cpu import Projector
from ._threads import THREAD_BYTES, n_workers_for
from .namespaces import to_device_of, to_host

Image = NDArray[np.float32]
Rows = NDArray[np.float32]
Solver = Callable[[Projector, Rows], Image]


def account(
    m: Ledger,
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    size: Lengths,
    *,
    n_rows: int,
    n_images: int,
    n_subsets: int,
    smoothed: bool = False,
) -> None:
    """Enter the allocations of `solved` with `n_rows` and `n_images` arrays in each thread.

    Where the images are `smoothed`, the total variation's memory too.
    """
    m.alloc(shape, dtype)
    m.alloc((size.size, shape[1], size.size), np.float32)
    if m.device == "cuda":  # it works on the host
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
        smoothing = Ledger("cpu")
        if smoothed:
            _tv_cpu.account_pd(smoothing, (1, size.size, size.size))
        m.alloc_bytes(smoothing.peak_bytes)  # while it smooths, FINUFFT has nothing
        m.library(max(0, _projector_cpu.work_of_a_call(size) - smoothing.peak_bytes))


def solved(
    data: Any,
    angles: Any,
    center: float | None,
    detector_pad: bool | int,
    recon_size: int | None,
    recon_mask_radius: float | None,
    solve: Solver,
) -> Any:
    """Reconstruct all slices, each by a thread with a projector of its own."""
    source = to_host(data)
    size = lengths(source.shape, detector_pad, recon_size, recon_mask_radius)
    middle = axis_of(center, size.detector)
    radians = host_angles(angles, size.n_angles)
    n_slices = source.shape[1]
    result = np.empty((size.size, n_slices, size.size), np.float32)
    outside = _fbp_cpu.outside_of(size)
    n_workers = n_workers_for(n_slices)
    _fbp_cpu.load_library()

    def work(worker: int) -> None:
        projector = projectors[worker]
        measured = np.empty((size.n_angles, size.detector + 2 * size.pad), np.float32)
        for index in range(worker, n_slices, n_workers):
            measured[:, size.pad : size.pad + size.detector] = source[:, index]
            if size.pad:
                measured[:, : size.pad] = source[:, index, :1]
                measured[:, size.pad + size.detector :] = source[:, index, -1:]
            np.copyto(result[:, index], solve(projector, measured))
            if outside is not None:
                np.copyto(result[:, index], np.float32(0), where=outside)

    with ThreadPoolExecutor(n_workers) as pool:
        projectors = list(pool.map(lambda _: Projector(radians, middle, size), range(n_workers)))
        list(pool.map(work, range(n_workers)))
    return to_device_of(data, result)


def square(values: NDArray[Any]) -> float:
    """Sum of squares."""
    flat = values.reshape(-1)
    return float(np.dot(flat, flat))
