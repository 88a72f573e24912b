"""Removal of stripes from sinograms, which cause rings in the reconstruction."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from maxslices import Ledger, from_ledger, method
from maxslices.core.cufft import work_bytes

from ._angles import is_stored_order, order_by_angle
from ._stripe_sorting import account as account_sorting
from ._stripe_sorting import sort_columns, sort_slices
from ._stripe_wavelet import (
    account,
    account_tables,
    cached_tables,
    chunk_slices,
    filter_length,
    level_count,
    make_tables,
    stripes_into,
)
from .namespaces import array_namespace, on_gpu, scipy_module

FOURIER_ROWS = 32
"""Number of profiles transformed together. Fewer are padded to this number, because cuFFT's
rounding may depend on the number of rows."""

OBJECT_BYTES = {"cuda": 0, "cpu": 8 * 1024}
"""Bytes of array objects and other Python objects, which count on a CPU."""


def _require_dtype(data: Any, name: str) -> None:
    if data.dtype not in (np.float32, np.uint16):
        raise ValueError(
            f"{name} takes data of float32 or uint16, not {data.dtype}: put it after a method that "
            "returns float32, such as minus_log, or save the scan as float32"
        )


@from_ledger
def _sorting_needs(m: Ledger, shape: tuple[int, int, int], dtype: np.dtype[Any], size: int) -> None:
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)
    m.alloc_bytes(OBJECT_BYTES[m.device])
    if size > 1:
        account_sorting(m, shape, dtype)


def _check_size(size: int) -> None:
    if size < 1:
        raise ValueError(f"size must be at least 1 pixel, not {size}")


@method(
    "sinogram",
    calc_max_slices=_sorting_needs,
    check_values=_check_size,
    gives="same",
)
def remove_stripe_based_sorting(
    data: Any, size: int = 11, dim: Literal[1, 2] = 1, angles: Any = None
) -> Any:
    """Remove partial stripes by a median filter of sorted columns.

    The values of each column are sorted, filtered by a median across the columns, and sorted back
    (algorithm 3 of Vo et al. 2018). A slice without stripes loses 5 dB.

    Parameters
    ----------
    data : array, float32 or uint16, shape (angles, detector_y, detector_x)
        Sinograms.
    size : int
        Width of the median filter in pixels. 1 changes nothing.
    dim : {1, 2}
        1: a line filter across the columns. 2: a square filter, also along the sorted values.
    angles : array, shape (angles,), optional
        Angles in radians, by which equal values are ordered. By default, they are in storage order.

    Returns
    -------
    array, dtype and shape as `data`

    Raises
    ------
    ValueError
        If `size`, `dim` or the dtype is invalid.

    References
    ----------
    N. T. Vo, R. C. Atwood, M. Drakopoulos, Opt. Express 26, 28396 (2018).
    """
    _require_dtype(data, "remove_stripe_based_sorting")
    _check_size(size)
    if dim not in (1, 2):
        raise ValueError(f"dim must be 1 or 2, not {dim!r}")
    xp, ndimage = array_namespace(data), scipy_module(data, "ndimage")
    if size == 1:
        return data.copy()
    n_angles, n, width = data.shape
    order = order_by_angle("remove_stripe_based_sorting", angles, n_angles)
    result = xp.empty(data.shape, dtype=data.dtype)
    flat = result.reshape(-1)
    window = (1, size, size if dim == 2 else 1)
    step = sort_slices(data.shape, "cuda" if on_gpu(data) else "cpu")
    for start in range(0, n, step):
        stop = min(start + step, n)
        values, place = sort_columns(data[:, start:stop], order)
        medians = xp.empty(values.shape, dtype=data.dtype)
        ndimage.median_filter(values, size=window, output=medians)
        del values
        place *= n * width
        place += xp.arange(start * width, stop * width).reshape(stop - start, width, 1)
        flat[place] = medians
        del place, medians
    return result


def _ti_max_slices(
    slice_dim: int,
    other_dims: tuple[int, int],
    dtype: np.dtype[Any],
    available_memory: int,
    device: Literal["cuda", "cpu"] = "cuda",
) -> tuple[int, np.dtype[np.float32]]:
    """Number of sinograms that fit, by the larger of two peaks."""
    n_angles, width = other_dims
    even = width + width % 2
    n_frequencies = even // 2 + 1
    input_bytes, float32_bytes = n_angles * width * dtype.itemsize, n_angles * width * 4
    constant_bytes = OBJECT_BYTES[device]
    if device == "cuda":
        for kind in ("r2c", "c2r"):  # cuFFT's plans stay in CuPy's cache with their workspaces
            constant_bytes += work_bytes(FOURIER_ROWS, (even,), kind, single=False)
        constant_bytes += 8 * 511  # CuPy's pool hands out multiples of 512 bytes: 8 arrays

    # While profiles are transformed: the response, FOURIER_ROWS padded rows and their spectrum,
    # and for each sinogram its profile (float64) and its correction (float32).
    transform_bytes = 8 * n_frequencies + FOURIER_ROWS * (8 * even + 16 * n_frequencies)
    transforming = (available_memory - constant_bytes - transform_bytes) // (
        input_bytes + width * (8 + 4)
    )
    # At the end: the correction and the result.
    adding = (available_memory - constant_bytes) // (input_bytes + width * 4 + float32_bytes)
    return max(0, min(transforming, adding)), np.dtype(np.float32)


def _ti_response(width: int, beta: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the spectrum of the low-pass kernel minus that of the identity.

    The kernel is ``beta * r ** abs(k)`` with ``r = (1 - beta) / (1 + beta)``: it solves
    u - c u'' = v with c = (1 - beta^2) / (4 beta^2).
    """
    distance = np.abs(np.fft.fftfreq(width, 1 / width))
    kernel = beta * ((1 - beta) / (1 + beta)) ** distance
    kernel[0] -= 1
    return np.ascontiguousarray(scipy.fft.rfft(kernel).real)


def _check_beta(beta: float) -> None:
    if not 0 < beta <= 1:
        raise ValueError(f"beta must be over 0 and at most 1, not {beta!r}")


@method(
    "sinogram",
    calc_max_slices=_ti_max_slices,
    order_matters=False,
    check_values=_check_beta,
    gives="same",
)
def remove_stripe_ti(data: Any, beta: float = 0.1) -> Any:
    """Remove stripes by smoothing the mean over the angles (Titarenko et al. 2010).

    The same correction is added to every row of a sinogram. It replaces the mean of all rows by a
    smooth one, as in TomoCuPy: the mean minus its first value, circularly convolved with a
    two-sided exponential. A slice without stripes loses 3 to 6 dB, and 20 dB at a `beta` of 0.01.

    Parameters
    ----------
    data : array, float32 or uint16, shape (angles, detector_y, detector_x)
        Sinograms.
    beta : float
        Above 0, at most 1. Lower is stronger: the kernel reaches about ``1 / (2 beta)`` pixels, and
        narrower details of the mean are removed, stripes and object alike. 1 changes nothing.

    Returns
    -------
    array, float32, shape as `data`

    Raises
    ------
    ValueError
        If `beta` or the dtype is invalid.

    Notes
    -----
    An odd number of columns is padded by one, as in httomolibgpu. Means and convolution are
    computed in double precision.

    References
    ----------
    S. Titarenko, P. J. Withers, A. Yagola, Appl. Math. Lett. 23, 1489 (2010).
    """
    _require_dtype(data, "remove_stripe_ti")
    _check_beta(beta)
    xp, fft = array_namespace(data), scipy_module(data, "fft")
    _, n, width = data.shape
    even = width + width % 2
    profile = xp.mean(data, axis=0, dtype=xp.float64)
    correction = xp.empty((n, width), dtype=xp.float32)
    response = xp.asarray(_ti_response(even, beta))
    for start in range(0, n, FOURIER_ROWS):
        stop = min(start + FOURIER_ROWS, n)
        rows = xp.zeros((FOURIER_ROWS, even), dtype=xp.float64)
        used = rows[: stop - start]
        used[:, :width] = profile[start:stop]
        if even > width:
            used[:, width:] = profile[start:stop, -1:]
        used -= profile[start:stop, :1]
        spectrum = fft.rfft(rows)
        del rows, used
        spectrum *= response
        filtered = fft.irfft(spectrum, n=even, overwrite_x=True)
        correction[start:stop] = filtered[: stop - start, :width]
        del spectrum, filtered
    del profile, response
    result = xp.empty(data.shape, dtype=xp.float32)
    if on_gpu(data):
        xp.add(data, correction, out=result)
    else:  # In this order NumPy needs no buffers, and a row stays in the cache.
        for row, corrected in zip(data, result, strict=True):
            corrected[...] = row
            corrected += correction
    return result


@lru_cache(maxsize=64)
def _fw_work(
    device: Literal["cuda", "cpu"],
    n_angles: int,
    width: int,
    sigma: float,
    wname: str,
    levels: int,
    pad: int,
) -> tuple[int, int]:
    """Bytes of computing the tables, and bytes of all later memory except the data."""
    tables, filtering = Ledger(device), Ledger(device)
    if device == "cpu":
        # Python objects of levels and tables, and a buffer of NumPy's.
        tables.alloc_bytes(16384)
        account_tables(tables, n_angles, sigma, wname, levels, pad)
        filtering.alloc_bytes(16384 + 4 * min(n_angles * width, 8192))
    n_slices = chunk_slices(device, n_angles, width, sigma, wname, levels, pad)
    account(filtering, n_angles, n_slices, width, sigma, wname, levels, pad)
    return tables.peak_bytes, filtering.peak_bytes


@from_ledger
def _fw_needs(
    m: Ledger,
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    sigma: float,
    wname: str,
    level: int | None,
    pad: bool | None,
) -> None:
    n_angles, _, width = shape
    levels = level_count(n_angles, width, level)
    n_pad = _mirrored(n_angles, level, pad)
    tables, filtering = _fw_work(m.device, n_angles, width, sigma, wname, levels, n_pad)
    m.alloc(shape, dtype)
    m.alloc_bytes(OBJECT_BYTES[m.device])
    m.free(m.alloc_bytes(tables))
    m.alloc(shape, np.float32)
    m.alloc_bytes(filtering)


def _mirrored(n_angles: int, level: int | None, pad: bool | None) -> int:
    """Number of angles that are mirrored at each end."""
    is_padded = level is None if pad is None else pad
    return n_angles // 2 if is_padded else 0


def _check_wavelet(sigma: float, wname: str) -> None:
    if not 0 < sigma < float("inf"):
        raise ValueError(f"sigma must be positive and finite, not {sigma!r}")
    filter_length(wname)


@method(
    "sinogram",
    calc_max_slices=_fw_needs,
    output_dtype="float32",
    check_values=_check_wavelet,
    gives="same",
)
def remove_stripe_fw(
    data: Any,
    sigma: float = 2,
    wname: str = "db5",
    level: int | None = None,
    pad: bool | None = None,
    angles: Any = None,
) -> Any:
    """Remove stripes by wavelets along the detector and Fourier filters along the angles.

    At each level, the wavelet coefficients with details along the detector alone are filtered:
    their frequencies f along the angles are multiplied by ``1 - exp(-f^2 / (2 sigma^2))`` (Münch
    et al. 2009). By default, a slice without stripes loses 1 to 2 dB.

    Parameters
    ----------
    data : array, float32 or uint16, shape (angles, detector_y, detector_x)
        Sinograms.
    sigma : float
        Width of the damped frequencies, in periods over the coefficients of a level.
    wname : str
        Discrete wavelet of PyWavelets, such as "db5", "haar", "sym5", "sym16", "bior4.4".
    level : int, optional
        Number of levels, at most the base-2 logarithm, rounded up, of the longer side of the
        sinogram. By default, all levels with coefficients of at most a 64th of the detector: 5 for
        2048 columns. Each further level removes stripes of twice the width, and more of the object.
    pad : bool, optional
        Whether the sinogram is padded at both ends by half of its angles, mirrored. By default it
        is padded if `level` is None.
    angles : array, shape (angles,), optional
        Angles in radians. Projections are filtered in the order of their angles, or by default in
        storage order.

    Returns
    -------
    array, float32, shape as `data`

    Raises
    ------
    ValueError
        If a parameter or the dtype is invalid.

    Notes
    -----
    As in the paper, signals of the wavelets are mirrored at their ends, and frequency 0 is removed.
    httomolibgpu pads the angles with zeros, and shifts frequencies by half a step for an even
    number of coefficients.

    References
    ----------
    B. Münch, P. Trtik, F. Marone, M. Stampanoni, Opt. Express 17, 8567 (2009).
    """
    _require_dtype(data, "remove_stripe_fw")
    _check_wavelet(sigma, wname)
    xp = array_namespace(data)
    n_angles, n, width = data.shape
    order = order_by_angle("remove_stripe_fw", angles, n_angles)
    levels = level_count(n_angles, width, level)
    arguments = (n_angles, width, float(sigma), wname, levels, _mirrored(n_angles, level, pad))
    tables = cached_tables(*arguments).on(xp) if on_gpu(data) else make_tables(*arguments)
    result = xp.empty(data.shape, dtype=xp.float32)
    step = chunk_slices("cuda" if on_gpu(data) else "cpu", *arguments)
    # The number of sinograms is fixed, because a library's order of summation may depend on it.
    block = xp.zeros((n_angles, step, width), dtype=xp.float32)
    for start in range(0, n, step):
        stop = min(start + step, n)
        used = block[:, : stop - start]
        _take(data[:, start:stop], order, used)
        stripes_into(block, tables)
        _subtract(data[:, start:stop], order, used, result[:, start:stop])
    return result


def _take(data: Any, order: NDArray[np.intp], out: Any) -> None:
    """Copy projections by angle."""
    if is_stored_order(order):
        out[...] = data
        return
    for place, projection in enumerate(order):  # together they would need another array
        out[place] = data[projection]


def _subtract(data: Any, order: NDArray[np.intp], by_angle: Any, out: Any) -> None:
    """Subtract values sorted by angle from projections in storage order."""
    xp = array_namespace(data)
    if is_stored_order(order):
        xp.subtract(data, by_angle, out=out)
        return
    for place, projection in enumerate(order):
        xp.subtract(data[projection], by_angle[place], out=out[projection])
