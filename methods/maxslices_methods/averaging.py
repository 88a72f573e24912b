"""Means of neighbouring projections."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from maxslices import Ledger, from_ledger, method

from .namespaces import array_namespace

SMALL_BYTES = 2**16
"""Bytes of NumPy's buffers for a mean, which count where the data are small."""


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
    m.alloc((n_slices, width), np.float32)  # one mean, before it is rounded
    if m.device == "cpu":
        m.alloc_bytes(SMALL_BYTES)


def _averaged_angles(angles: NDArray[Any], projection_averaging_factor: int = 2) -> NDArray[Any]:
    """Mean angle of each group of projections; the last group may be smaller."""
    angles = np.unwrap(angles)  # of 359 and 1 degree the mean is 360
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
def average_projection_frames(data: Any, projection_averaging_factor: int = 2) -> Any:
    """Replace each group of neighbouring projections by their mean, and their angles by the mean.

    Parameters
    ----------
    data : array
        Sinograms (angles, slices, detector_x) of any real dtype.
    projection_averaging_factor : int
        Projections in a group; the last group may be smaller.

    Returns
    -------
    array
        Shape (groups, slices, detector_x), of the same dtype; means of integers are cut to
        integers, as in httomolibgpu.

    Raises
    ------
    ValueError
        If the factor is below 1.
    """
    _check(projection_averaging_factor)
    xp = array_namespace(data)
    step = projection_averaging_factor
    out = xp.empty((-(-data.shape[0] // step), *data.shape[1:]), dtype=data.dtype)
    for group, mean in enumerate(out):
        mean[...] = xp.mean(data[group * step : (group + 1) * step], axis=0, dtype=xp.float32)
    return out
