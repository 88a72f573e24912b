"""Rotation axis from two opposite projections."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from maxslices import Ledger, from_ledger, method
from maxslices.core.angles import HALF_TURN, TOLERANCE, angle_table

from .namespaces import to_host

logger = logging.getLogger(__name__)

Frame = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class OppositeFrames:
    """The two compared projections in host memory, as far as a block contains them."""

    first: Frame | None
    """Shape (detector_y, detector_x)."""
    last: Frame | None
    """Likewise."""
    tol: float
    """Accuracy in pixels."""
    guess: float | None
    """Approximate axis in pixels, or None for the middle."""


@from_ledger
def _find_center_pc_bytes(m: Ledger, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> None:
    m.alloc(shape, dtype)
    for _ in range(2):
        m.alloc(shape[1:], np.float32)


def _check(tol: float) -> None:
    if not 0 < tol < math.inf:
        raise ValueError(f"tol must be over 0 pixels and finite, not {tol}")


def _combine(blocks: list[OppositeFrames]) -> float:
    first = next(block.first for block in blocks if block.first is not None)
    last = next(block.last for block in reversed(blocks) if block.last is not None)
    return _axis(first, last, blocks[0].tol, blocks[0].guess)


@method(
    "projection",
    calc_max_slices=_find_center_pc_bytes,
    side_results=("cor",),
    combine=_combine,
    check_values=_check,
    host_only=True,
)
def find_center_pc(
    data: Any,
    proj1: Literal["auto"] = "auto",
    proj2: Literal["auto"] = "auto",
    tol: float = 0.5,
    rotc_guess: float | None = None,
    scan_angles: Any = None,
    first_slice: int = 0,
) -> OppositeFrames:
    """Find the rotation axis from two projections half a turn apart, by phase correlation.

    The second projection is mirrored and registered to the first.

    Parameters
    ----------
    data : array
        Projections, shape (angles, detector_y, detector_x), of any real dtype.
    proj1, proj2 : "auto"
        The two projections of the scan that are closest to half a turn apart.
    tol : float
        Accuracy of the result in pixels.
    rotc_guess : float, optional
        Approximate axis, in pixels as in the result.
    scan_angles : array, shape (n,), optional
        Angles in radians of all projections of the scan. A warning is logged if no projections are
        half a turn apart. By default, the first and the last projection are compared.
    first_slice : int
        Index in the scan of the first projection of `data`; supplied by the runner.

    Returns
    -------
    float
        Position of the rotation axis on the detector, in pixels from the centre of the first pixel:
        the middle is ``(detector_x - 1) / 2``.

    Raises
    ------
    ValueError
        If `tol` is out of range.

    Notes
    -----
    Follows the method of this name in httomolibgpu. The correlation is upsampled around its peak by
    a matrix multiplication (Guizar-Sicairos, Thurman and Fienup, Optics Letters 33, 156, 2008).
    """
    _check(tol)
    front, behind = first_slice, first_slice + len(data) - 1
    if scan_angles is not None:
        front, behind, apart = angle_table(to_host(scan_angles)).opposite_pair()
        if first_slice == 0 and abs(apart - HALF_TURN) > TOLERANCE * HALF_TURN:
            logger.warning(
                "find_center_pc compares projections half a turn apart, and the closest, %d and "
                "%d, are %.4g degrees apart: its result is likely wrong",
                front,
                behind,
                apart,
            )
    first, last = (
        np.array(to_host(data[at - first_slice]), np.float32)
        if 0 <= at - first_slice < len(data)
        else None
        for at in (front, behind)
    )
    return OppositeFrames(first, last, tol, rotc_guess)


def _axis(first: Frame, last: Frame, tol: float, guess: float | None) -> float:
    middle: float = (first.shape[1] - 1) / 2
    away = 0.0 if guess is None else guess - middle
    for frame in (first, last):
        np.nan_to_num(frame, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
    if away:
        first, last = (scipy.ndimage.shift(frame, (0, -away)) for frame in (first, last))
    return middle + away + _shift(first, last[:, ::-1], 1 / tol) / 2


def _shift(image: Frame, moved: Frame, per_pixel: float) -> float:
    """Columns by which `moved` must be shifted to match `image`."""
    product = scipy.fft.fft2(image) * np.conj(scipy.fft.fft2(moved))
    product /= np.maximum(np.abs(product), 100 * np.finfo(np.float32).eps)
    peak = np.unravel_index(np.argmax(np.abs(scipy.fft.ifft2(product))), product.shape)
    row, column = (
        at - size if at > size // 2 else at for at, size in zip(peak, product.shape, strict=True)
    )
    if per_pixel <= 1:
        return float(column)
    row = round(row * per_pixel) / per_pixel
    n_places = math.ceil(1.5 * per_pixel)
    steps = (np.arange(n_places) - n_places // 2) / per_pixel
    rows, columns = (scipy.fft.fftfreq(size) for size in product.shape)
    by_rows = np.exp(2j * np.pi * np.outer(row + steps, rows))
    by_columns = np.exp(2j * np.pi * np.outer(columns, column + steps))
    around = np.abs(by_rows @ product @ by_columns)
    return float(column + steps[np.unravel_index(np.argmax(around), around.shape)[1]])
