"""Correction of projections for lens distortion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import scipy

from maxslices import Ledger, from_ledger, method
from maxslices.httomo.paganin_reach import ALL_ROWS

from .namespaces import to_device_of, to_host

Mode = Literal[
    "constant", "nearest", "mirror", "reflect", "wrap", "grid-mirror", "grid-wrap", "grid-constant"
]
SMALL_BYTES = 2**14
"""Bytes of Python objects and of rows of values, which matter for small data."""


@from_ledger
def _distortion_bytes(
    m: Ledger, shape: tuple[int, int, int], dtype: np.dtype[Any], order: int
) -> None:
    frame = shape[1:]
    m.alloc(shape, dtype)
    if m.device == "cuda":  # computed on the host
        m.alloc(shape, dtype)
        return
    m.alloc_bytes(SMALL_BYTES)
    radius = m.alloc((3, *frame), np.float64)  # with its polynomial
    m.free(radius)
    m.alloc((2, *frame), np.float32)  # source position of each pixel
    scaled = m.alloc((3, *frame), np.float64)
    m.free(scaled)
    m.alloc(shape, dtype)
    if order > 1:
        m.alloc((2, *frame), np.float64)  # a frame, and the coefficients of its splines


def _check(
    metadata_path: str | None,
    xcenter: float | None,
    ycenter: float | None,
    list_fact: Sequence[float] | None,
    order: int,
    step_xy: Sequence[int],
) -> None:
    if metadata_path is None:
        _lens(xcenter, ycenter, list_fact)
    if not 0 <= order <= 5:
        raise ValueError(f"order must be from 0 to 5, not {order}")
    if list(step_xy) != [1, 1]:
        raise ValueError(f"step_xy must be [1, 1], because every pixel is needed, not {step_xy!r}")


@method(
    "projection",
    calc_max_slices=_distortion_bytes,
    check_values=_check,
    row_reach=ALL_ROWS,
    host_only=True,
    gives="same",
)
def distortion_correction_proj_discorpy(
    data: Any,
    metadata_path: str | None = None,
    xcenter: float | None = None,
    ycenter: float | None = None,
    list_fact: Sequence[float] | None = None,
    shift_xy: Sequence[int] | None = None,
    step_xy: Sequence[int] = (1, 1),
    order: int = 3,
    mode: Mode = "constant",
    detector_start: tuple[int, int] = (0, 0),
) -> Any:
    """Correct the distortion of a lens by the backward model of Discorpy, on the CPU.

    Parameters
    ----------
    data : array
        Projections, shape (angles, detector_y, detector_x), of any real dtype.
    metadata_path : str, optional
        Text file of Discorpy. The last words of its lines are the column of the centre, its row,
        and the coefficients. It overrides the next three parameters.
    xcenter, ycenter : float, optional
        Column and row of the centre of the distortion, in pixels on the whole detector.
    list_fact : list of float, optional
        Coefficients of the polynomial.
    shift_xy : list of int, optional
        Column and row of the detector at which the data start. By default, those of the loader's
        preview.
    step_xy : list of int
        Must be [1, 1], because every pixel is needed.
    order : int
        Order of the splines, from 0 to 5.
    mode : str
        Extension beyond the edges, as in `scipy.ndimage.map_coordinates`.
    detector_start : tuple of int
        First row and column of the preview; supplied by the runner.

    Returns
    -------
    array
        Corrected projections, of the same shape and dtype.

    Raises
    ------
    ValueError
        If neither the file nor the centre and the coefficients are passed, or a parameter is out of
        range.

    References
    ----------
    N. T. Vo, R. C. Atwood, M. Drakopoulos, Opt. Express 23, 32859 (2015).
    """
    _check(metadata_path, xcenter, ycenter, list_fact, order, step_xy)
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, not {mode!r}")
    if metadata_path is not None:
        xcenter, ycenter, list_fact = _coefficients(metadata_path)
    x, y, factors = _lens(xcenter, ycenter, list_fact)
    shift = list(reversed(detector_start)) if shift_xy is None else list(shift_xy)
    source = to_host(data)
    places = _places(source.shape[1:], x - shift[0], y - shift[1], factors)
    out = np.empty_like(source)
    for frame, corrected in zip(source, out, strict=True):
        scipy.ndimage.map_coordinates(frame, places, output=corrected, order=order, mode=mode)
    return to_device_of(data, out)


def _places(
    frame: tuple[int, ...], xcenter: float, ycenter: float, factors: Sequence[float]
) -> np.ndarray:
    """Row and column of the source of each pixel, shape (2, rows, columns), float32."""
    rows, columns = frame
    y = (np.arange(rows) - ycenter)[:, None]
    x = (np.arange(columns) - xcenter)[None, :]
    radius = np.sqrt(x * x + y * y)
    scale = np.polynomial.polynomial.polyval(radius, list(factors))
    del radius
    places = np.empty((2, rows, columns), np.float32)
    places[0] = np.clip(ycenter + scale * y, 0, rows - 1)
    places[1] = np.clip(xcenter + scale * x, 0, columns - 1)
    return places


def _lens(
    xcenter: float | None, ycenter: float | None, list_fact: Sequence[float] | None
) -> tuple[float, float, Sequence[float]]:
    """Centre and coefficients of the distortion. ValueError if one of them is missing."""
    if xcenter is None or ycenter is None or not list_fact:
        raise ValueError("give metadata_path, or all of xcenter, ycenter and list_fact")
    return xcenter, ycenter, list_fact


def _coefficients(path: str) -> tuple[float, float, list[float]]:
    """Read Discorpy's text file.

    Raises
    ------
    ValueError
        If it cannot be read, or its lines do not end in numbers.
    """
    try:
        lines = [line.split() for line in Path(path).read_text().splitlines() if line.strip()]
        x, y, *factors = (float(words[-1]) for words in lines)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"metadata_path: {path} is not a file of Discorpy, whose lines end in numbers: {error}"
        ) from None
    return x, y, factors
