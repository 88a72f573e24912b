"""Removal of all kinds of stripes from sinograms: dead, fluctuating, large and small ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from maxslices import Ledger, from_ledger, method

from ._angles import is_stored_order, order_by_angle
from ._threads import n_workers_for
from .namespaces import to_device_of, to_host

Sinogram = NDArray[np.float32]

DROPPED = 0.1
"""Fraction of the smallest and of the largest values of a column that its mean omits, as in the
paper's code."""
SMOOTHED_ANGLES = 10
"""Angles in the moving mean for the detection of fluctuating stripes, as in the paper's code."""
LEAST_COLUMNS = 8
"""Fewest columns in which stripes are detected: a line is fitted to their middle half."""
LEAST_NOISE = 1e-6
"""Least noise with which stripes are compared: without noise every column would be a stripe."""
SMALL_BYTES = 2**17
"""Bytes of NumPy's buffers, rows of values and Python objects, which matter for small data."""


@from_ledger
def _all_stripe_bytes(m: Ledger, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> None:
    n_angles, n_slices, width = shape
    m.alloc(shape, dtype)
    m.alloc(shape, np.float32)
    if m.device == "cuda":  # computed on the host
        return
    m.alloc_bytes(SMALL_BYTES)
    for _ in range(n_workers_for(n_slices)):
        one = (n_angles, width)
        for _ in range(3):  # the sinogram, its columns sorted, and filtered
            m.alloc(one, np.float32)
        m.alloc(one, np.int64)  # order of the columns' values


def _check(snr: float, la_size: int, sm_size: int) -> None:
    if not 0 < snr < np.inf:
        raise ValueError(f"snr must be over 0 and finite, not {snr!r}")
    if min(la_size, sm_size) < 1:
        raise ValueError(f"la_size and sm_size must be at least 1, not {la_size} and {sm_size}")


@method(
    "sinogram",
    calc_max_slices=_all_stripe_bytes,
    output_dtype=np.float32,
    check_values=_check,
    host_only=True,
    gives="same",
)
def remove_all_stripe(
    data: Any,
    snr: float = 3.0,
    la_size: int = 61,
    sm_size: int = 21,
    dim: Literal[1, 2] = 1,
    normalize: bool = False,
    angles: Any = None,
) -> Any:
    """Remove dead, fluctuating, large and small stripes, one kind after the other.

    Uses algorithms 6, 5 and 3 of Vo et al. 2018, on the CPU. A slice without stripes loses up to
    19 dB, so use it for scans with large stripes.

    Parameters
    ----------
    data : array, shape (angles, detector_y, detector_x)
        Sinograms of any real dtype.
    snr : float
        A column is a stripe if it differs from the others by this many times half the noise. Higher
        values detect fewer stripes.
    la_size : int
        Width in pixels of the median filter for large stripes.
    sm_size : int
        Width in pixels of the median filter for small stripes.
    dim : {1, 2}
        Shape of the second filter. 1: a line across the columns. 2: a square, also along the sorted
        values.
    normalize : bool
        Whether each column is divided by its factor before large stripes are replaced.
    angles : array, shape (angles,), optional
        Angles in radians. Projections are filtered in the order of their angles, or by default in
        storage order.

    Returns
    -------
    array, float32, shape as `data`
        Values that are not finite count as 0.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Notes
    -----
    Has the parameters and defaults of the method of this name in httomolibgpu.

    References
    ----------
    N. T. Vo, R. C. Atwood, M. Drakopoulos, Opt. Express 26, 28396 (2018).
    """
    _check(snr, la_size, sm_size)
    if dim not in (1, 2):
        raise ValueError(f"dim must be 1 or 2, not {dim!r}")
    source = to_host(data)
    result = np.empty(source.shape, np.float32)
    n_angles, n_slices, _ = source.shape
    order = order_by_angle("remove_all_stripe", angles, n_angles)
    window = (sm_size if dim == 2 else 1, sm_size)

    def work(worker: int) -> None:
        for index in range(worker, n_slices, n_workers):
            sinogram = np.empty((n_angles, source.shape[2]), np.float32)
            for row, projection in zip(sinogram, order, strict=True):
                row[...] = source[projection, index]
            _interpolate_dead(sinogram, snr, la_size)
            _replace_large(sinogram, snr, la_size, normalize)
            _filter_sorted(sinogram, window, order, result[:, index])

    n_workers = n_workers_for(n_slices)
    with ThreadPoolExecutor(n_workers) as pool:
        list(pool.map(work, range(n_workers)))
    return to_device_of(data, result)


def _interpolate_dead(sinogram: Sinogram, snr: float, size: int) -> None:
    """Interpolate columns in place that fluctuate not at all, or far more than their neighbours."""
    change = scipy.ndimage.uniform_filter1d(sinogram, SMOOTHED_ANGLES, axis=0)
    np.subtract(sinogram, change, out=change)
    np.abs(change, out=change)
    total = change.sum(axis=0)
    del change
    stripes = _stripes(_ratio(total, scipy.ndimage.median_filter(total, size)), snr)
    stripes[:2] = stripes[-2:] = False
    missing, good = np.flatnonzero(stripes), np.flatnonzero(~stripes)
    if len(missing) == 0:
        return
    after = np.searchsorted(good, missing)
    left, right = good[after - 1], good[after]
    weight = ((missing - left) / (right - left)).astype(np.float32)
    for row in sinogram:
        row[missing] = row[left] + weight * (row[right] - row[left])


def _replace_large(sinogram: Sinogram, snr: float, size: int, normalize: bool) -> None:
    """Replace columns that are brighter or darker than their neighbours, in place."""
    n_dropped = int(0.5 * DROPPED * len(sinogram))
    order = np.argsort(sinogram, axis=0, kind="stable")
    values = np.take_along_axis(sinogram, order, axis=0)
    smooth = scipy.ndimage.median_filter(values, (1, size))
    kept = slice(n_dropped, len(values) - n_dropped)
    factor = _ratio(values[kept].mean(axis=0), smooth[kept].mean(axis=0))
    del values
    stripes = np.flatnonzero(_stripes(factor, snr))
    if normalize:
        sinogram /= factor
        order = np.argsort(sinogram, axis=0, kind="stable")
    for column in stripes:
        sinogram[order[:, column], column] = smooth[:, column]


def _filter_sorted(
    sinogram: Sinogram, window: tuple[int, int], by_angle: NDArray[np.intp], out: Sinogram
) -> None:
    """Median across columns of sorted values, sorted back into `out` as projections are stored."""
    order = np.argsort(sinogram, axis=0, kind="stable")
    values = np.take_along_axis(sinogram, order, axis=0)
    scipy.ndimage.median_filter(values, window, output=sinogram)
    del values
    np.nan_to_num(sinogram, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
    if not is_stored_order(by_angle):
        for rows in order:
            rows[...] = by_angle[rows]
    np.put_along_axis(out, order, sinogram, axis=0)


def _ratio(values: NDArray[Any], around: NDArray[Any]) -> NDArray[Any]:
    ratio: NDArray[Any] = np.ones_like(values)
    np.divide(values, around, out=ratio, where=around != 0)
    return ratio


def _stripes(values: NDArray[Any], snr: float) -> NDArray[np.bool_]:
    """Columns of stripes, widened by one on either side (algorithm 4).

    The middle half of the sorted values is nearly a line. Values beyond its ends by more than `snr`
    times half its rise are stripes.
    """
    if len(values) < LEAST_COLUMNS:
        return np.zeros(len(values), np.bool_)
    values = values.astype(np.float64)
    ordered = np.sort(values)[::-1]
    place = np.arange(len(values), dtype=np.float64)
    quarter = len(values) // 4
    middle = slice(quarter, len(values) - quarter - 1)
    slope, first = np.polyfit(place[middle], ordered[middle], 1)
    last = first + slope * place[-1]
    noise = max(abs(last - first), LEAST_NOISE)
    is_stripe = np.zeros(len(values), np.bool_)
    if abs(ordered[0] - first) / noise >= snr:
        is_stripe |= values > first + noise * snr * 0.5
    if abs(ordered[-1] - last) / noise >= snr:
        is_stripe |= values <= last - noise * snr * 0.5
    spread: NDArray[np.bool_] = scipy.ndimage.binary_dilation(is_stripe)
    return spread
