"""Reconstruction of slices from sinograms."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np

from maxslices import method
from maxslices.core.ledger import Ledger, from_ledger

from . import _fbp_cpu, _fbp_cuda
from ._fbp_geometry import (
    Filter,
    Interpolation,
    Lengths,
    RowWindow,
    axis_of,
    check_geometry,
    host_angles,
    lengths,
)
from .namespaces import on_gpu


def _enter(
    m: Ledger,
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    size: Lengths,
    interpolation: Interpolation | None,
) -> None:
    m.alloc(shape, dtype)
    m.alloc((size.size, shape[1], size.size), np.float32)
    if m.device == "cuda":
        _fbp_cuda.account(m, size, interpolation)
    else:
        _fbp_cpu.account(m, size, shape[1])


@from_ledger
def fbp_bytes(
    m: Ledger,
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    detector_pad: bool | int,
    recon_size: int | None,
    recon_mask_radius: float | None,
) -> None:
    """Enter the allocations of `back_projected` with the interpolation of the device."""
    _enter(m, shape, dtype, lengths(shape, detector_pad, recon_size, recon_mask_radius), None)


@from_ledger
def _fbp_needs(
    m: Ledger,
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    detector_pad: bool | int,
    recon_size: int | None,
    recon_mask_radius: float | None,
    interpolation: Interpolation | None,
) -> None:
    size = lengths(shape, detector_pad, recon_size, recon_mask_radius)
    _enter(m, shape, dtype, size, interpolation)


def slice_dims(other_dims: tuple[int, int], recon_size: int | None) -> tuple[int, int]:
    """Dims of a reconstructed slice."""
    side = other_dims[1] if recon_size is None else recon_size
    return side, side


@method(
    "sinogram",
    calc_max_slices=_fbp_needs,
    output_dims=slice_dims,
    output_dtype=np.float32,
    saved_by_default=True,
    check_values=check_geometry,
    takes=("line integrals", "thickness"),
    gives="slices",
)
def fbp(
    data: Any,
    angles: Any,
    center: float | None = None,
    detector_pad: bool | int = False,
    filter_type: Filter = "shepp-logan",
    recon_size: int | None = None,
    recon_mask_radius: float | None = 0.95,
    interpolation: Interpolation | None = None,
) -> Any:
    """Reconstruct slices by filtered back-projection (parallel beam).

    Parameters
    ----------
    data : array
        Line integrals, shape (angles, slices, detector_x), of any real dtype: the negative
        logarithm of the transmission.
    angles : array, shape (angles,)
        Angles in radians, in any order, over 180 or 360 degrees. Each projection is weighted by
        half of the gap between its neighbours modulo 180 degrees, as in
        `_fbp_geometry.angle_weights`.
    center : float, optional
        Position of the rotation axis on the detector, in pixels from the centre of the first pixel
        that is read, as from `find_center_vo`. By default the middle, ``(detector_x - 1) / 2``.
    detector_pad : bool or int
        Pixels by which rows are padded with their edge values on either side, for an object larger
        than the field of view. True: half of the detector. Without padding, values beyond the
        detector are zero.
    filter_type : {"ram-lak", "shepp-logan", "cosine", "hamming", "hann"}
        Window of the ramp filter, as in scikit-image.
    recon_size : int, optional
        Pixels along a side of a slice. By default, the number of detector columns.
    recon_mask_radius : float, optional
        Radius of the reconstructed disc, as a fraction of half the side. Pixels outside are set to
        0. None: no mask.
    interpolation : {"linear", "sinc"}, optional
        Interpolation between detector pixels. "sinc" keeps the sharpness of the data, and "linear"
        has 0.7 times the noise. By default "sinc" on a CPU and "linear" on CUDA. With the same
        interpolation the noise on both is equal to 2 %.

    Returns
    -------
    array
        Attenuation per pixel, shape (side, slices, side), float32. Rows go downwards, and the sense
        of rotation is as in `skimage.transform.iradon`.

    Raises
    ------
    ValueError
        If sizes are out of range, or the number of angles differs from that of the projections.

    Notes
    -----
    On a CPU slices are summed from their spectra by a non-uniform FFT (`_fbp_cpu`), on CUDA by a
    kernel (`_fbp_cuda`). ``docs/benchmarks/back-projection.md`` compares both.
    """
    if filter_type not in get_args(Filter):
        valid = ", ".join(get_args(Filter))
        raise ValueError(f"filter_type must be one of {valid}, not {filter_type!r}")
    size = lengths(data.shape, detector_pad, recon_size, recon_mask_radius)
    return back_projected(data, angles, center, RowWindow(filter_type), size, interpolation)


def back_projected(
    data: Any,
    angles: Any,
    center: float | None,
    window: RowWindow,
    size: Lengths,
    interpolation: Interpolation | None = None,
) -> Any:
    """Reconstruct slices by filtered back-projection, with any window, as `fbp`."""
    middle = axis_of(center, size.detector)
    radians = host_angles(angles, size.n_angles)
    back = _fbp_cuda if on_gpu(data) else _fbp_cpu
    return back.reconstruct(data, radians, middle, window, size, interpolation)
