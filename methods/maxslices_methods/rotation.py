"""Rotation axis from the sinogram of half a turn."""

from __future__ import annotations

import logging
import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from maxslices import method
from maxslices.core.ledger import Ledger, from_ledger

from ._angles import table_of, warn_of_short_turn
from .namespaces import array_namespace, on_gpu, scipy_module

logger = logging.getLogger(__name__)

WIDE, MANY = 2000, 2000
"""With more columns or angles than these, the coarse search averages 4 columns or 2 angles."""
REACH = 50
"""Columns searched on either side of an approximate axis."""
MANY_STEPS, LEAST_COLUMNS, MINIMA = 128, 256, 3
"""For more steps than the first number, means of columns are searched first. The other numbers are
the fewest columns of that search, and the number of its minima around which steps are searched."""
LARGE_FACTOR = 72
"""Largest prime factor of an FFT length for which SciPy never uses Bluestein's algorithm. By the
rule of its pocketfft, below a length of 9000 the smallest such factor is 73, in 5183 = 71 x 73.
From 223 it is used for all prime factors."""
SMALL_BYTES = {"cpu": 3 * 2**13, "cuda": 512}
"""Bytes of sums over an array: NumPy's buffers (three before 2.3), or a granule of CuPy's pool."""


def _middle_sinograms(
    n_slices: int, ind: int | Literal["mid"] | None = None, average_radius: int = 0
) -> range:
    """Indices of the sinograms that `find_center_vo` averages."""
    index = n_slices // 2 if ind is None or ind == "mid" else ind
    if not 0 <= index < n_slices:
        raise ValueError(f"ind must be a sinogram from 0 to {n_slices - 1}, not {index}")
    if average_radius < 0:
        raise ValueError(f"average_radius must be at least 0, not {average_radius}")
    return range(max(0, index - average_radius), min(n_slices, index + average_radius + 1))


@from_ledger
def _find_center_vo_bytes(
    m: Ledger, shape: tuple[int, int, int], dtype: np.dtype[Any], step: float
) -> None:
    n_angles, _, width = shape
    m.alloc(shape, dtype)
    m.alloc((n_angles, width), np.float32)  # mean of the sinograms
    by_rows, by_columns = _reductions(n_angles, width)
    stacked, small = (2 * n_angles, width), (2 * (n_angles // by_rows), width // by_columns)
    fewer = _fewer_columns(width // 2 // by_columns + 1, small[1])
    # Searches on fewer columns need less memory, but their FFT plans remain in the cache.
    for shape_of_search in {small, (small[0], small[1] // fewer)} - {stacked}:
        m.fft(shape_of_search, np.float32, (0, 1), "r2c")
    m.alloc(stacked, np.float32)
    half = (stacked[0], width // 2 + 1)
    m.alloc(half, np.float32)  # mask
    m.alloc(half, np.float32)  # magnitudes
    m.alloc_bytes(SMALL_BYTES[m.device])
    if 2 * step % 1:
        m.alloc((n_angles, width), np.float32)  # a term of the interpolation
        if m.device == "cuda":
            m.alloc((3, width), np.float32)  # positions of its samples
        if m.device == "cpu":  # NumPy's buffers, for rows with gaps between them
            m.free(m.alloc((3, min(8192, n_angles * width)), np.float32))
    m.fft(stacked, np.float32, (0, 1), "r2c")
    if m.device == "cpu":
        m.library(sum(map(_tables_bytes, stacked)))
    m.alloc(half, np.complex64)  # spectrum


def _tables_bytes(length: int) -> int:
    """Bytes of SciPy's tables for an FFT whose length has a large prime factor.

    Bluestein's algorithm uses a longer FFT. For lengths of 4006 and 2053, 160 and 177 bytes per
    element were measured (SciPy 1.17, 2026-11-28). Other tables are small.
    """
    rest, factor = length, 2
    while factor * factor <= rest:
        rest, factor = (rest // factor, factor) if rest % factor == 0 else (rest, factor + 1)
    return 180 * length if rest > LARGE_FACTOR else 0


def _check_search(
    smin: float | None,
    smax: float | None,
    srad: float,
    step: float,
    ratio: float,
    drop: int,
) -> None:
    sizes_are_right = all(0 < size < math.inf for size in (srad, step, ratio))
    is_range = smin is None or smax is None or smin < smax
    if not (is_range and sizes_are_right and drop >= 0):
        raise ValueError(
            "find_center_vo needs smin < smax, finite srad, step and ratio over 0, and drop of at "
            f"least 0, not {smin=}, {smax=}, {srad=}, {step=}, {ratio=}, {drop=}"
        )


@method(
    "sinogram",
    calc_max_slices=_find_center_vo_bytes,
    side_results=("cor",),
    check_values=_check_search,
    sample_slices=_middle_sinograms,
)
def find_center_vo(
    data: Any,
    ind: int | Literal["mid"] | None = None,
    average_radius: int = 0,
    cor_initialisation_value: float | None = None,
    smin: int | None = None,
    smax: int | None = None,
    srad: float = 6.0,
    step: float = 0.5,
    ratio: float = 0.5,
    drop: int = 20,
    angles: Any = None,
) -> float:
    """Find the rotation axis of a 180-degree scan from a sinogram (Vo's method).

    Parameters
    ----------
    data : array
        Sinograms, shape (angles, slices, detector_x), of any real dtype, over 180 degrees in even
        steps, or over more with `angles`. Their mean is used.
    ind : int or "mid", optional
        Index of the sinogram in the whole scan, by which the runner chooses `data`; by default the
        middle one.
    average_radius : int
        Number of sinograms on either side of `ind` that are averaged with it.
    cor_initialisation_value : float, optional
        Approximate axis, in pixels as in the result; by default the middle of the detector.
    smin, smax : int, optional
        Range of the search, in pixels relative to the approximate axis. By default 50 pixels on
        either side of `cor_initialisation_value`, or without it a quarter of the detector's
        columns. At a quarter, half of the columns still see the object from both sides, as the
        method requires.
    srad : float
        Radius in pixels of the fine search around the coarse result.
    step : float
        Step of the fine search in pixels; the result is interpolated between steps.
    ratio : float
        Width of the object as a fraction of the field of view.
    drop : int
        Rows around the middle of the spectrum that are ignored.
    angles : array, shape (angles,), optional
        Angles in radians. Projections are sorted by angle, and half a turn of a longer scan is
        used. A warning is logged if they do not cover 180 degrees. By default, projections are
        used in storage order.

    Returns
    -------
    float
        Position of the rotation axis on the detector, in pixels from the centre of the first pixel:
        the middle is ``(detector_x - 1) / 2``. This is the parameter ``center`` of `fbp`.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Notes
    -----
    A 180-degree sinogram and its mirror image below it form a 360-degree sinogram if they are
    aligned at the rotation axis. The spectrum of a 360-degree sinogram is nearly zero in a double
    wedge, so the axis minimizes the spectrum there (Vo, Drakopoulos, Atwood and Reinhard, Optics
    Express 22, 19078, 2014).

    The coarse search shifts by whole pixels. For more than 2000 columns or angles it uses means of
    4 columns or 2 angles, and a search of many steps is preceded by one on means of more columns.
    The fine search interpolates by cubic convolution. A parabola through three values around the
    minimum gives the fraction of a step.
    """
    _check_search(smin, smax, srad, step, ratio, drop)
    xp = array_namespace(data)
    n_angles, _, width = data.shape
    middle = (width - 1) / 2
    half_turn = _half_turn(angles, n_angles)
    sinogram = xp.mean(data, axis=1, dtype=xp.float32)
    xp.nan_to_num(sinogram, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
    if half_turn is not None:
        sinogram = sinogram[half_turn]
        n_angles = len(half_turn)

    by_rows, by_columns = _reductions(n_angles, width)
    columns = width // by_columns
    about = 0.0 if cor_initialisation_value is None else cor_initialisation_value - middle
    reach = width / 4 if cor_initialisation_value is None else REACH
    low = math.floor(about + (-reach if smin is None else smin))
    high = math.ceil(about + (reach if smax is None else smax))
    steps = np.arange(math.floor(low / by_columns), math.ceil(high / by_columns) + 1)
    steps = steps[np.abs(steps) <= (columns - 1) / 2]
    if len(steps) == 0:
        raise ValueError(
            f"find_center_vo: {low} to {high} pixels from the middle are not on a detector of "
            f"{width} pixels"
        )
    first, last = steps[0], steps[-1]
    steps = _likely_steps(sinogram, steps, by_rows, by_columns, ratio, drop)
    metrics = _metrics(_stacked(sinogram, (3, 1), by_rows, by_columns), 2 * steps, ratio, drop)
    best = int(np.argmin(metrics))
    if last - first > 1 and steps[best] in (first, last):
        logger.warning(
            "find_center_vo: the best axis is at an end of the search, %d to %d pixels from the "
            "middle: change smin or smax",
            low,
            high,
        )
        if smin is None and smax is None:
            best = _deepest_within(steps, metrics, best)
    coarse = (steps[best] + (columns - 1) / 2) * by_columns + (by_columns - 1) / 2 - middle

    n_steps = math.ceil(max(srad, by_columns) / step)
    offsets = coarse + step * np.arange(-n_steps, n_steps + 1)
    offsets = offsets[np.abs(offsets) <= middle]
    metrics = _metrics(_stacked(sinogram, (2, 2), 1, 1), 2 * offsets, ratio, drop)
    best = int(np.argmin(metrics))
    return float(middle + offsets[best] + step * _vertex(metrics, best))


def _half_turn(angles: Any, n_angles: int) -> NDArray[np.intp] | None:
    """Indices of the projections of half a turn, by angle. None: all, in storage order."""
    if angles is None:
        return None
    table = table_of("find_center_vo", angles, n_angles)
    warn_of_short_turn("find_center_vo", table)
    half_turn = table.half_turn()
    return None if np.array_equal(half_turn, np.arange(n_angles)) else half_turn


def _fewer_columns(n_steps: int, columns: int) -> int:
    """Number of columns averaged in a preceding search, or 1 without one."""
    fewer = 1
    while n_steps > MANY_STEPS * fewer and columns >= 2 * fewer * LEAST_COLUMNS:
        fewer *= 2
    return fewer


def _likely_steps(
    sinogram: Any, steps: Any, by_rows: int, by_columns: int, ratio: float, drop: int
) -> Any:
    """Steps around the deepest minima of a search on means of columns, or all if they are few."""
    columns = sinogram.shape[1] // by_columns
    fewer = _fewer_columns(len(steps), columns)
    if fewer == 1:
        return steps
    reduced = sinogram.shape[1] // (by_columns * fewer)
    tried = np.arange(math.floor(steps[0] / fewer), math.ceil(steps[-1] / fewer) + 1)
    tried = tried[np.abs(tried) <= (reduced - 1) / 2]
    stack = _stacked(sinogram, (3, 1), by_rows, by_columns * fewer)
    metrics = _metrics(stack, 2 * tried, ratio, drop)
    around = np.pad(metrics, 1, constant_values=np.inf)
    minima = np.flatnonzero((metrics <= around[:-2]) & (metrics <= around[2:]))
    deepest = tried[minima[np.argsort(metrics[minima])[:MINIMA]]]
    places = deepest * fewer + (reduced * fewer - columns) / 2
    return steps[(np.abs(steps - places[:, None]) <= fewer + 1).any(axis=0)]


def _deepest_within(steps: Any, metrics: Any, end: int) -> int:
    """Index of the least value that is lower than both neighbours, or `end` without one.

    The values decrease towards the ends of a wide search, where the two views no longer overlap. A
    minimum in between is therefore more likely to be the axis.
    """
    lower = (metrics[1:-1] < metrics[:-2]) & (metrics[1:-1] < metrics[2:])
    within = np.flatnonzero(lower & (steps[2:] - steps[:-2] == 2)) + 1
    return int(within[np.argmin(metrics[within])]) if len(within) else end


def _reductions(n_angles: int, width: int) -> tuple[int, int]:
    """Numbers of rows and columns averaged in the coarse search."""
    return (2 if n_angles > MANY else 1), (4 if width > WIDE else 1)


def _stacked(sinogram: Any, sigma: tuple[int, int], by_rows: int, by_columns: int) -> Any:
    """Allocate an array for two sinograms, one above the other, with the smoothed one on top."""
    xp = array_namespace(sinogram)
    rows, columns = sinogram.shape[0] // by_rows, sinogram.shape[1] // by_columns
    stack = xp.empty((2 * rows, columns), dtype=xp.float32)
    top = stack[:rows]
    gaussian_filter = scipy_module(sinogram, "ndimage").gaussian_filter
    if (by_rows, by_columns) == (1, 1):
        gaussian_filter(sinogram, sigma, output=top, mode="reflect")
        return stack
    smooth = gaussian_filter(sinogram, sigma, mode="reflect")
    top[...] = 0
    for i in range(by_rows):
        for j in range(by_columns):
            top += smooth[i : rows * by_rows : by_rows, j : columns * by_columns : by_columns]
    top *= 1 / (by_rows * by_columns)
    return stack


def _metrics(stack: Any, shifts: Any, ratio: float, drop: int) -> Any:
    """Sum the spectrum in the double wedge for each shift.

    Parameters
    ----------
    stack : array, shape (2 * angles, detector_x)
        From `_stacked`. Its lower half is overwritten.
    shifts : numpy.ndarray
        Columns by which the mirrored sinogram is shifted to the right.

    Returns
    -------
    numpy.ndarray
        One sum per shift.
    """
    xp = array_namespace(stack)
    rfft2 = scipy_module(stack, "fft").rfft2
    mask = _empty_wedge(xp, stack.shape, ratio, drop)
    magnitudes = xp.empty(mask.shape, dtype=xp.float32)
    fractional = bool(np.any(shifts % 1))
    term = xp.empty_like(stack[: len(stack) // 2]) if fractional else None
    metrics = xp.empty(len(shifts), dtype=xp.float32)
    for i, shift in enumerate(shifts):
        _mirror(xp, stack, float(shift), term)
        spectrum = rfft2(stack)
        xp.abs(spectrum, out=magnitudes)
        del spectrum  # before the next one is allocated
        xp.multiply(magnitudes, mask, out=magnitudes)
        metrics[i] = magnitudes.sum()
    return metrics.get() if on_gpu(stack) else metrics


def _mirror(xp: Any, stack: Any, shift: float, term: Any) -> None:
    """Fill the lower half with the upper half, mirrored and shifted to the right by `shift`.

    Columns that it does not cover are filled from the vertically flipped upper half, which nearly
    continues the sinogram.
    """
    n_rows, width = stack.shape[0] // 2, stack.shape[1]
    upper, lower = stack[:n_rows], stack[n_rows:]
    mirrored, turned = upper[:, ::-1], upper[::-1]
    whole = math.floor(shift)
    fraction = shift - whole
    taps = {0: 1.0} if fraction == 0 else {k: _cubic(abs(k - fraction)) for k in (-1, 0, 1, 2)}
    first = min(width, max(0, whole + max(taps)))
    last = max(first, min(width, width + whole + min(taps)))
    for n, (k, weight) in enumerate(taps.items()):
        source = mirrored[:, first - whole - k : last - whole - k]
        if n == 0:
            xp.multiply(source, np.float32(weight), out=lower[:, first:last])
        else:
            part = term[:, : last - first]
            xp.multiply(source, np.float32(weight), out=part)
            lower[:, first:last] += part
    lower[:, :first] = turned[:, :first]
    lower[:, last:] = turned[:, last:]


def _cubic(distance: float) -> float:
    """Weight of a sample in cubic convolution (Keys 1981, a = -1/2)."""
    if distance < 1:
        return (1.5 * distance - 2.5) * distance**2 + 1
    return ((-0.5 * distance + 2.5) * distance - 4) * distance + 2 if distance < 2 else 0.0


def _empty_wedge(xp: Any, shape: tuple[int, int], ratio: float, drop: int) -> Any:
    """Mask of the double wedge in the spectrum of a 360-degree sinogram: equation 3 of the paper.

    The layout is that of a real FFT: rows in the order of the FFT, and columns of frequencies from
    0. Columns that represent two columns of the full spectrum have the weight 2.
    """
    rows, width = shape
    row = np.abs(np.rint(np.fft.fftfreq(rows) * rows))
    limit = np.ceil(row * (rows - 1) / (np.pi * rows * ratio)).astype(np.float32)
    limit[row <= min(drop, math.ceil(0.05 * rows))] = -1
    column = np.arange(width // 2 + 1)
    weight = np.where((column == 0) | (2 * column == width), 1, 2).astype(np.float32)
    weight[:2] = 0  # the first columns contain the mean
    mask = xp.empty((rows, len(column)), dtype=xp.float32)
    mask[...] = xp.asarray(weight)
    beyond = xp.asarray(limit)[:, None] < xp.asarray(column.astype(np.float32))
    xp.copyto(mask, np.float32(0), where=beyond)
    return mask


def _vertex(values: Any, at: int) -> float:
    """Position of the minimum of a parabola through the values around `at`, in steps."""
    if not 0 < at < len(values) - 1:
        return 0.0
    left, mid, right = (float(v) for v in values[at - 1 : at + 2])
    curvature = left - 2 * mid + right
    return 0.5 * (left - right) / curvature if curvature > 0 else 0.0
