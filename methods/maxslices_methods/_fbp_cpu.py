"""Filtered back-projection on a CPU: a sum of waves, by a non-uniform FFT.

By the Fourier slice theorem the filtered spectra of the rows are the slice's spectrum on a
polar grid, and back-projection evaluates the sum of these waves at the pixels: a type-1 non-uniform
FFT (FINUFFT; Barnett, Magland and af Klinteberg, SIAM J. Sci. Comput. 41, C479, 2019). It costs
O(N^2 log N) instead of O(N^3), and interpolates between detector pixels by a sinc. To get the noise
of linear interpolation, the waves are weighted (`linear_response`). The data are real, so half of
the frequency plane is enough.

Each thread reconstructs its own slices with its own single-threaded plan. Therefore the operations
on a slice, and their order, do not depend on its block or thread.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from maxslices.core.ledger import Ledger
from maxslices.system.resource_limits import process_limit

from ._fbp_geometry import (
    Interpolation,
    Lengths,
    RowWindow,
    angle_weights,
    linear_response,
    row_filter,
)
from ._threads import THREAD_BYTES, n_workers_for
from .namespaces import fast_length

EPS = 1e-4
"""Relative error of the non-uniform FFT: about a tenth of the difference between two windows of the
ramp filter."""
UPSAMPLING = 1.25
"""FINUFFT's oversampling per side: at this accuracy four times as fast as its default of 2."""
ROWS = 32
"""Rows that a thread filters at a time, few enough for its cache."""
INDEX_BYTES = 8
"""Bytes per wave of FINUFFT's sorting index."""
TABLES_BYTES = 2**15
"""Bytes of the kernel tables and FFT plans of a thread. Together with `THREAD_BYTES` this is the
80 kB that memray counted for all sides up to 64 (FINUFFT 2.5.1, 2026-11-28)."""
LIBRARY_BYTES = 14 * 2**19
"""Library pages of FINUFFT and FFTW that the first plan of a process loads. The kernel counted
6.2 MB on Python 3.11 and 7.1 MB on 3.13 (FINUFFT 2.5.1, 2026-11-26)."""
MAPPED_BYTES = 2**26
"""Upper bound of the address space that loading FINUFFT takes: 30 MB for the library, and the heap
of a thread."""
PART_WAVES = (1000, 10_000)
"""Minimum and maximum number of waves that FINUFFT spreads at a time. It copies these waves and the
part of the grid around them. FINUFFT's default is 100,000, for which the copies took 6 MB on a grid
of 1280 x 1280. With 10,000 they took 0.6 MB in the same time (2026-11-23)."""
PARTS = 16
"""Minimum number of parts into which the waves are divided, unless a part would have fewer than the
minimum number of waves. A part of few waves may be spread over the whole grid."""
PART_SPREAD = 4
"""Largest fraction of the grid that a part covers, as a multiple of its fraction of the waves. The
largest multiple in 60 random choices of sizes, angles and angular ranges was 3.5 (2026-11-23)."""


def reconstruct(
    data: NDArray[Any],
    angles: NDArray[np.float64],
    center: float,
    window: RowWindow,
    size: Lengths,
    interpolation: Interpolation | None = None,
) -> NDArray[np.float32]:
    """Reconstruct slices (size, slices, size), float32, from a NumPy array, as `recon.fbp`."""
    n_slices, side = data.shape[1], size.size
    period = period_of(size)
    slices = np.empty((side, n_slices, side), dtype=np.float32)
    factors, rows_at, columns_at = _waves(angles, center, window, size, interpolation)
    outside = outside_of(size)
    edge = size.pad + size.detector
    n_workers = n_workers_for(n_slices)
    workspaces = [
        (
            np.zeros((min(ROWS, size.n_angles), period), dtype=np.float32),
            np.empty(factors.shape, dtype=np.complex64),
            np.empty((side, side), dtype=np.complex64),
        )
        for _ in range(n_workers)
    ]

    n_bytes = plan_bytes(side, rows_at.size)
    load_library()

    def plan(_: int) -> Any:
        # Checked in the worker thread because starting it may have taken address space.
        require_room(n_workers * n_bytes + LIBRARY_BYTES, "the plans of FINUFFT")
        return _plan(side, rows_at, columns_at)

    def work(worker: int) -> None:
        padded, spectrum, image = workspaces[worker]
        for index in range(worker, n_slices, n_workers):
            for first in range(0, size.n_angles, ROWS):
                part = data[first : first + ROWS, index]
                target = padded[: len(part)]
                target[:, size.pad : edge] = part
                if size.pad:
                    target[:, : size.pad] = part[:, :1]
                    target[:, edge : edge + size.pad] = part[:, -1:]
                last = first + len(part)
                np.multiply(scipy.fft.rfft(target), factors[first:last], out=spectrum[first:last])
            plans[worker].execute(spectrum.ravel(), out=image)
            np.copyto(slices[:, index], image.real)
            if outside is not None:
                np.copyto(slices[:, index], np.float32(0), where=outside)

    with ThreadPoolExecutor(n_workers) as pool:
        plans = list(pool.map(plan, range(n_workers)))
        list(pool.map(work, range(n_workers)))
    return slices


def account(m: Ledger, size: Lengths, n_slices: int) -> None:
    """Enter the allocations of `reconstruct` after its result, including those of FINUFFT."""
    period, side = period_of(size), size.size
    waves = (size.n_angles, period // 2 + 1)
    m.alloc(waves, np.complex64)  # factors
    m.alloc((2, *waves), np.float32)  # positions of the waves
    if np.isfinite(size.radius):
        m.alloc((side, side), np.bool_)  # outside
    rows = min(ROWS, size.n_angles)
    m.library(LIBRARY_BYTES, kept=True)
    for _ in range(n_workers_for(n_slices)):
        m.library(THREAD_BYTES + TABLES_BYTES)
        m.alloc((rows, period), np.float32)  # padded
        m.alloc(waves, np.complex64)  # spectrum
        m.alloc((side, side), np.complex64)  # image
        m.library(plan_bytes(side, waves[0] * waves[1]))
        m.alloc((rows, waves[1]), np.complex64)  # some rows' spectra


def _waves(
    angles: NDArray[np.float64],
    center: float,
    window: RowWindow,
    size: Lengths,
    interpolation: Interpolation | None,
) -> tuple[NDArray[np.complex64], NDArray[np.float32], NDArray[np.float32]]:
    """Factor of each (angle, frequency) and its position in the frequency plane.

    The factor is the product of the filter, the angular weight, and the phase that moves the axis
    from `center` to the middle of the slice. FINUFFT counts pixels from the one at ``side // 2``.
    """
    period, side = period_of(size), size.size
    omega = np.arange(period // 2 + 1) * (2 * np.pi / period)
    response = row_filter(period, window) / period
    if interpolation == "linear":
        response *= linear_response(omega)
    response[1:] *= 2  # for the negative frequencies
    if period % 2 == 0:
        response[-1] /= 2
    offset = side // 2 - (side - 1) / 2
    shape = (size.n_angles, period // 2 + 1)
    factors = np.empty(shape, dtype=np.complex64)
    rows_at, columns_at = np.empty(shape, dtype=np.float32), np.empty(shape, dtype=np.float32)
    weights = angle_weights(angles)
    for a, angle in enumerate(angles):
        cos, sin = np.cos(angle), np.sin(angle)
        phase = center + size.pad + offset * (cos - sin)
        factors[a] = (weights[a] * response) * np.exp(1j * phase * omega)
        rows_at[a] = -sin * omega
        columns_at[a] = cos * omega
    return factors, rows_at, columns_at


def outside_of(size: Lengths) -> NDArray[np.bool_] | None:
    """Mask of the pixels outside the circle, or None without a mask."""
    if not np.isfinite(size.radius):
        return None
    squares = ((np.arange(size.size) - (size.size - 1) / 2) ** 2).astype(np.float32)
    outside = np.empty((size.size, size.size), dtype=np.bool_)
    for i, square in enumerate(squares):
        np.greater(squares + square, np.float32(size.radius**2), out=outside[i])
    return outside


def period_of(size: Lengths) -> int:
    return fast_length(size.row_min)


def load_library() -> None:
    """Import FINUFFT if its address space fits.

    Otherwise the import fails with the misleading message that FINUFFT is not installed.
    """
    if "finufft" not in sys.modules:
        require_room(MAPPED_BYTES, "FINUFFT")
        import finufft  # noqa: F401


def require_room(n_bytes: int, what: str) -> None:
    """Raise `MemoryError` if `n_bytes` exceed the limit of the address space.

    FFTW would end the process instead.
    """
    limit = process_limit("RLIMIT_AS")
    if limit is None:
        return
    mapped_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * PAGESIZE
    if limit < mapped_bytes + n_bytes:
        raise MemoryError(
            f"not enough address space for {what}: {n_bytes:,} bytes in addition to "
            f"{mapped_bytes:,} in use exceed the limit of {limit:,} (ulimit -v)"
        )


def _plan(side: int, rows_at: NDArray[np.float32], columns_at: NDArray[np.float32]) -> Any:
    import finufft

    plan = finufft.Plan(
        1,
        (side, side),
        eps=EPS,
        isign=1,
        dtype="complex64",
        nthreads=1,
        upsampfac=UPSAMPLING,
        spread_max_sp_size=part_waves(rows_at.size),
    )
    plan.setpts(rows_at.ravel(), columns_at.ravel())
    return plan


def plan_bytes(side: int, n_waves: int) -> int:
    """Bytes of a FINUFFT plan during execution: the sorting index of the waves and workspace."""
    return n_waves * INDEX_BYTES + work_bytes(side, n_waves)


def work_bytes(side: int, n_waves: int) -> int:
    """Workspace of a FINUFFT plan in bytes: the oversampled grid, and copies of its parts.

    FINUFFT copies a part of the waves (two positions and a value each) and the grid around it. The
    kernel reaches at most 16 rows from two rows of bins.
    """
    grid = _fine_side(side)
    n_part = min(part_waves(n_waves), n_waves)
    part = min(grid * grid, PART_SPREAD * grid * grid * n_part // n_waves + 16 * grid)
    return (grid * grid + part) * 8 + n_part * 16


def part_waves(n_waves: int) -> int:
    """Number of waves that are spread at a time."""
    fewest, most = PART_WAVES
    return max(fewest, min(most, n_waves // PARTS))


def _fine_side(side: int) -> int:
    """Side of FINUFFT's grid: even, without prime factors above 5, at least 16 for its kernel."""
    length = max(int(np.ceil(UPSAMPLING * side)), 16)
    length += length % 2
    while fast_length(length) != length:
        length += 2
    return length
