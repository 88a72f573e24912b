"""Sort projections by angle, and average neighbouring projections."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maxslices import Ledger, from_ledger, method
from maxslices.core.angles import AngleTable, angle_table

from ._angles import is_stored_order, table_of
from .namespaces import array_namespace

logger = logging.getLogger(__name__)

WIDE = 3.0
"""A step of more than this multiple of the typical step is a gap, and a mean across it is blurred.
A mean across two typical steps, as in uneven scans, is not."""
SMALL_BYTES = 2**16
"""Bytes of NumPy's buffers for a mean, which matter for small data."""


@from_ledger
def _sorting_bytes(m: Ledger, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> None:
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)
    if m.device == "cpu":
        m.alloc_bytes(SMALL_BYTES)


def _sorted_angles(angles: NDArray[Any]) -> NDArray[Any]:
    return angles[angle_table(angles).order]


@method(
    "sinogram",
    calc_max_slices=_sorting_bytes,
    output_angles=_sorted_angles,
    gives="same",
)
def sort_by_angle(data: Any, angles: Any) -> Any:
    """Sort projections by angle, for methods that use them in storage order.

    Methods of this package do not need it, because they sort by angle themselves.

    Parameters
    ----------
    data : array
        Sinograms, shape (angles, slices, detector_x), of any real dtype.
    angles : array, shape (angles,)
        Angles in radians.

    Returns
    -------
    array
        Sorted sinograms, of the same shape and dtype. If the stage turned in one direction, the
        order is unchanged. Otherwise projections are in the order of their angles within one turn,
        starting after the largest gap.

    Raises
    ------
    ValueError
        If there is not one angle for each projection.
    """
    order = table_of("sort_by_angle", angles, data.shape[0]).order
    out = array_namespace(data).empty_like(data)
    for place, projection in zip(out, order, strict=True):
        place[...] = data[projection]
    return out


def _check(projection_averaging_factor: int) -> None:
    if projection_averaging_factor < 1:
        raise ValueError(
            "projection_averaging_factor must be at least 1 projection, not "
            f"{projection_averaging_factor}"
        )


def _averaged_dims(
    other_dims: tuple[int, int], projection_averaging_factor: int
) -> tuple[int, int]:
    return -(-other_dims[0] // projection_averaging_factor), other_dims[1]


@from_ledger
def _averaging_bytes(
    m: Ledger, shape: tuple[int, int, int], dtype: np.dtype[Any], projection_averaging_factor: int
) -> None:
    n_angles, n_slices, width = shape
    n_means = _averaged_dims((n_angles, width), projection_averaging_factor)[0]
    m.alloc(shape, dtype)
    m.alloc((n_means, n_slices, width), dtype)
    m.alloc((n_slices, width), np.float32)  # one mean before rounding
    if m.device == "cpu":
        m.alloc_bytes(SMALL_BYTES)
    else:
        m.alloc((n_slices, width), np.float32)  # its sum: CuPy divides it into a new array


def _averaged_angles(angles: NDArray[Any], projection_averaging_factor: int = 2) -> NDArray[Any]:
    """Mean angle of each group of neighbours. The last group may be smaller."""
    angles = np.unwrap(angles[angle_table(angles).order])  # of 359 and 1 degree the mean is 360
    starts = range(0, len(angles), projection_averaging_factor)
    groups = [angles[i : i + projection_averaging_factor] for i in starts]
    return np.array([group.mean() for group in groups], angles.dtype)


@method(
    "sinogram",
    calc_max_slices=_averaging_bytes,
    output_dims=_averaged_dims,
    output_angles=_averaged_angles,
    check_values=_check,
    gives="same",
)
def average_projection_frames(
    data: Any, projection_averaging_factor: int = 2, angles: Any = None
) -> Any:
    """Average groups of neighbouring projections, and their angles.

    The result is sorted by angle.

    Parameters
    ----------
    data : array
        Sinograms, shape (angles, slices, detector_x), of any real dtype.
    projection_averaging_factor : int
        Number of projections in a group. The last group may be smaller.
    angles : array, shape (angles,), optional
        Angles in radians, by which projections are neighbours. By default, neighbours in storage
        order are averaged. A warning is logged for groups across a gap.

    Returns
    -------
    array
        Means, shape (groups, slices, detector_x), of the same dtype. Means of integers are
        truncated, as in httomolibgpu.

    Raises
    ------
    ValueError
        If the factor is below 1.
    """
    _check(projection_averaging_factor)
    xp = array_namespace(data)
    step = projection_averaging_factor
    out = xp.empty((-(-data.shape[0] // step), *data.shape[1:]), dtype=data.dtype)
    order = np.arange(data.shape[0])
    if angles is not None:
        table = table_of("average_projection_frames", angles, data.shape[0])
        order = table.order
        _warn_of_gaps(table, step)
    if is_stored_order(order):
        for group, mean in enumerate(out):
            mean[...] = xp.mean(data[group * step : (group + 1) * step], axis=0, dtype=xp.float32)
        return out
    for group, mean in enumerate(out):
        projections = order[group * step : (group + 1) * step]
        total = data[projections[0]].astype(xp.float32)
        for projection in projections[1:]:
            total += data[projection]
        total /= len(projections)
        mean[...] = total
    return out


def _warn_of_gaps(table: AngleTable, step: int) -> None:
    """Log a warning if a group has projections on both sides of a gap."""
    group_of = np.empty(len(table.order), np.intp)
    group_of[table.order] = np.arange(len(table.order)) // step
    for before, after, degrees in table.gaps:
        if group_of[before] == group_of[after] and degrees > WIDE * table.step:
            logger.warning(
                "average_projection_frames: projections %d and %d are averaged, across a gap of "
                "%.4g degrees",
                before,
                after,
                degrees,
            )
            return
