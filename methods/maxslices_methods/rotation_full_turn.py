"""Rotation axis and overlap of a full turn whose axis is near the edge of the detector."""

from __future__ import annotations

import logging
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from maxslices import Ledger, from_ledger, method

from ._angles import halves
from .namespaces import array_namespace, to_host
from .rotation import _middle_sinograms

logger = logging.getLogger(__name__)

Image = NDArray[np.float32]
Side = Literal["left", "right"]

LEAST_WINDOW = 6
"""Least number of columns that are compared, as in Algotom."""
UNLIKE = 0.2
"""One minus the correlation above which the two halves hardly show the same. For discs with 1 %
noise it is 0.005 at the right position, and at least 0.26 where the halves do not overlap."""
PARABOLA = 2
"""Positions on either side of the best one to which the parabola of its sharpness is fitted."""
LINES_BYTES = 256_000
"""Largest size in bytes of each of the two line buffers of scipy.ndimage's filters: `BUFFER_SIZE`
in its C code."""
GAUSS_REACH = 8
"""Radius of the Gaussian filter in pixels: four standard deviations."""
SMALL_BYTES = 2**15 + 2**13
"""Bytes of NumPy's buffers, of a window and of Python objects, which matter for small
data."""


@from_ledger
def _find_center_360_bytes(
    m: Ledger, shape: tuple[int, int, int], dtype: np.dtype[Any], denoise: bool
) -> None:
    n_angles, _, width = shape
    m.alloc(shape, dtype)
    m.alloc((n_angles, width), np.float32)
    if m.device == "cuda":  # continues with one sinogram on the host
        return
    half = n_angles // 2 + 1
    m.alloc_bytes(SMALL_BYTES)
    for _ in range(2):
        m.alloc((half, width), np.float32)
    if denoise:  # lines of its input and its output in double precision
        m.free(m.library(2 * min(LINES_BYTES, half * (width + 2 * GAUSS_REACH) * 8)))
    # A window of each half, and the scratch of their correlation, in double precision.
    m.alloc_bytes(6 * half * LEAST_WINDOW * 8)


def _check(win_width: int) -> None:
    if win_width < 1:
        raise ValueError(f"win_width must be at least 1 pixel, not {win_width}")


@method(
    "sinogram",
    calc_max_slices=_find_center_360_bytes,
    side_results=("cor", "overlap", "side", "overlap_position"),
    check_values=_check,
    sample_slices=lambda n_slices, ind: _middle_sinograms(n_slices, ind),
    host_only=True,
)
def find_center_360(
    data: Any,
    ind: int | Literal["mid"] | None = None,
    win_width: int = 10,
    side: Side | None = None,
    denoise: bool = True,
    norm: bool = False,
    use_overlap: bool = False,
    angles: Any = None,
) -> tuple[float, float, str, float]:
    """Find the rotation axis and overlap of a full turn for `sino_360_to_180`.

    Parameters
    ----------
    data : array
        Sinograms over 360 degrees, shape (angles, slices, detector_x), of any real dtype. Their
        mean is used.
    ind : int or "mid", optional
        Index of the sinogram in the whole scan, by which the runner chooses `data`; by default the
        middle one.
    win_width : int
        Columns at the edge of one half that are searched in the other, at least 6.
    side : {"left", "right"}, optional
        Side of the detector with the axis. By default, both are tried.
    denoise : bool
        Whether both halves are smoothed first.
    norm : bool
        Whether each row of both windows is scaled to the same mean.
    use_overlap : bool
        Whether both windows are also compared with their linear blend.
    angles : array, shape (angles,), optional
        Angles in radians. Projections half a turn apart are compared, and a warning is logged if
        there are too few. By default, the first half is compared with the second.

    Returns
    -------
    cor : float
        Rotation axis in the stitched sinogram, which is twice as wide as the detector: its middle,
        in pixels from the centre of the first pixel.
    overlap : float
        Common columns of both halves.
    side : str
        "left" or "right".
    overlap_position : float
        Middle column of the best window.

    Raises
    ------
    ValueError
        If there are fewer than two angles, or fewer columns than in two windows.

    Notes
    -----
    Follows Algotom and httomolibgpu (Vo et al., Opt. Express 29, 17849, 2021). On the detector, the
    axis is ``overlap / 2`` minus half a pixel from its side.
    """
    _check(win_width)
    xp = array_namespace(data)
    sinogram = np.asarray(to_host(xp.mean(data, axis=1, dtype=xp.float32)))
    np.nan_to_num(sinogram, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
    n_angles, width = sinogram.shape
    if n_angles < 2 or width < 2 * LEAST_WINDOW + 2:
        raise ValueError(
            f"find_center_360 needs two angles and {2 * LEAST_WINDOW + 2} columns or more, not "
            f"{n_angles} and {width}"
        )
    half = n_angles // 2 + 1
    front_rows, back_rows = halves("find_center_360", angles, n_angles, half, n_angles - half)
    front, behind = sinogram[front_rows], sinogram[back_rows, ::-1]
    del sinogram
    if denoise:
        front = scipy.ndimage.gaussian_filter(front, 2, mode="reflect")
        behind = scipy.ndimage.gaussian_filter(behind, 2, mode="reflect")
    n_columns = 2 * (min(max(win_width, LEAST_WINDOW), width // 2 - 1) // 2)
    candidates: dict[str, tuple[float, float]] = {}
    at_end: dict[str, bool] = {}
    unlike: dict[str, float] = {}
    for tried in ("right", "left") if side is None else (side,):
        metrics = _metrics(front, behind, n_columns, tried, norm=norm, use_overlap=use_overlap)
        least = metrics.min()
        unlike[tried] = float(least) / (3 if use_overlap else 1)
        sharpness, place = _sharpness(metrics / least if least > 0 else metrics)
        at_end[tried] = int(np.argmin(metrics)) in (0, len(metrics) - 1)
        candidates[tried] = sharpness, place + n_columns // 2
    best = max(candidates, key=lambda tried: candidates[tried][0])
    position = candidates[best][1]
    if at_end[best]:
        logger.warning(
            "find_center_360: the best overlap is at an end of its range, %d to %d columns: the "
            "axis may be off the detector, or the scan is not a full turn",
            n_columns,
            width,
        )
    elif unlike[best] > UNLIKE:
        logger.warning(
            "find_center_360: the two halves are unlike wherever they overlap (correlation %.2f at "
            "best): the axis may be off the detector, or the scan is not a full turn",
            1 - unlike[best],
        )
    overlap = (width - position if best == "right" else position) + n_columns // 2
    return width - 0.5, float(overlap), best, float(position)


def _metrics(
    front: Image, behind: Image, n_columns: int, side: str, *, norm: bool, use_overlap: bool
) -> NDArray[np.float64]:
    """Dissimilarity of the edge of `behind` and each window of `front`, least at the overlap."""
    down = np.linspace(1, 0, n_columns)
    if side == "right":
        edge, own, other = behind[:, :n_columns], down, 1 - down
    else:
        edge, own, other = behind[:, behind.shape[1] - n_columns :], 1 - down, down
    edge = edge.astype(np.float64)
    mean = np.abs(edge).mean(axis=1, keepdims=True)
    metrics = np.empty(front.shape[1] - n_columns)
    for first in range(len(metrics)):
        window = front[:, first : first + n_columns].astype(np.float64)
        if norm:
            size = np.abs(window).mean(axis=1, keepdims=True)
            window *= np.divide(mean, size, out=np.ones_like(mean), where=size > 0)
        metrics[first] = _unlikeness(window, edge)
        if use_overlap:
            mixed = window * own + edge * other
            metrics[first] += _unlikeness(window, mixed) + _unlikeness(edge, mixed)
    return metrics


def _unlikeness(a: NDArray[np.floating[Any]], b: NDArray[np.floating[Any]]) -> float:
    """One minus the correlation coefficient, or 1 if either is constant."""
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt(np.vdot(a, a) * np.vdot(b, b))
    return float(abs(1 - np.vdot(a, b) / scale)) if scale > 0 else 1.0


def _sharpness(metrics: NDArray[np.float64]) -> tuple[float, float]:
    """Curvature at the least value, and its position between the columns."""
    place = int(np.clip(np.argmin(metrics), PARABOLA, len(metrics) - PARABOLA - 1))
    around = metrics[place - PARABOLA : place + PARABOLA + 1]
    curvature = abs(np.polyfit(np.arange(len(around)), around, 2)[0])
    before, here, after = metrics[place - 1 : place + 2]
    bend = before - 2 * here + after
    shift = (before - after) / (2 * bend) if bend else 0.0
    return float(curvature), place + (shift if abs(shift) <= 1 else 0.0)
