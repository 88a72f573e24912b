"""Correction of single voxels: median filter, and removal of outliers (zingers)."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from maxslices import method
from maxslices.core.ledger import Ledger, from_ledger

from . import _median, _median_cuda
from .namespaces import array_namespace, on_gpu

KernelSize = Literal[3, 5, 7, 9, 11, 13]
DTYPES = ("uint8", "uint16", "float32")


def _halo(kernel_size: int) -> int:
    return kernel_size // 2


@from_ledger
def _filter_memory(
    m: Ledger,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    kernel_size: int,
) -> None:
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)
    if m.device == "cpu":
        _median.count_medians(m, shape, dtype, kernel_size, tests=False)


@from_ledger
def _outlier_memory(
    m: Ledger, shape: tuple[int, ...], dtype: np.dtype[Any], kernel_size: int
) -> None:
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)
    if m.device == "cpu":
        _median.count_medians(m, shape, dtype, kernel_size, tests=True)


@method("all", calc_max_slices=_filter_memory, halo=_halo, gives="same")
def median_filter(data: Any, kernel_size: KernelSize = 3) -> Any:
    """Replace every voxel by the median of the cube around it.

    Parameters
    ----------
    data : array
        Shape (angles, detector_y, detector_x); uint8, uint16 or float32.
    kernel_size : {3, 5, 7, 9, 11, 13}
        Edge of the cube in voxels.

    Returns
    -------
    array
        Same shape and dtype. The data are padded with their edge values. NaN counts as larger than
        every number, so a single NaN is replaced.

    Raises
    ------
    ValueError
        If the size or the dtype is not supported.
    """
    return _filtered(data, kernel_size, None)


def _check_dif(dif: float) -> None:
    if not dif > 0:
        raise ValueError(f"dif must be above 0, in the unit of the data, not {dif!r}")


@method(
    "all",
    calc_max_slices=_outlier_memory,
    halo=_halo,
    gives="same",
    side_data="too",
    check_values=_check_dif,
)
def remove_outlier(data: Any, kernel_size: KernelSize = 3, dif: float = 1000.0) -> Any:
    """Replace outliers by the median of the cube around them.

    Removes zingers (single voxels hit by a stray photon) and dead voxels.

    Parameters
    ----------
    data : array
        Shape (angles, detector_y, detector_x); uint8, uint16 or float32.
    kernel_size : {3, 5, 7, 9, 11, 13}
        Edge of the cube in voxels.
    dif : float
        Least difference from the median at which a voxel is replaced, in the unit of the data.

    Returns
    -------
    array
        Same shape and dtype. Edges are treated as in `median_filter`. NaN is always replaced.

    Raises
    ------
    ValueError
        If the size or the dtype is not supported, or `dif` is not above 0.
    """
    _check_dif(dif)
    return _filtered(data, kernel_size, float(dif))


def _filtered(data: Any, kernel_size: int, dif: float | None) -> Any:
    if kernel_size not in get_args(KernelSize):
        valid = ", ".join(map(str, get_args(KernelSize)))
        raise ValueError(f"kernel_size must be one of {valid}, not {kernel_size!r}")
    if str(data.dtype) not in DTYPES:
        raise ValueError(
            f"medians need {', '.join(DTYPES)} data, not {data.dtype}: put this step after a "
            "method that makes float32, such as minus_log, or save the scan as float32"
        )
    out = array_namespace(data).empty(data.shape, dtype=data.dtype)
    if on_gpu(data):
        _median_cuda.median(data, out, kernel_size, dif)
        return out
    finish = None if dif is None else partial(_median.put_back, limit=dif)
    if kernel_size == 3:
        _median.median_27(data, out, finish)
    else:
        _median.median_cube(data, out, kernel_size, finish)
    return out
