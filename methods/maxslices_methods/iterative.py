"""Iterative reconstruction under httomolibgpu's names: SIRT and CGLS."""

from __future__ import annotations

from typing import Any

import numpy as np

from maxslices import Ledger, from_ledger, method

from ._fbp_geometry import check_geometry, lengths
from ._solve_slices import Image, Rows, account, ratio, solved, square
from .httomo_names import log_unused
from .namespaces import array_namespace
from .recon import slice_dims

LEAST_RAY = 0.5
"""Least length in pixels of a ray in the slice for SIRT. Shorter rays are ignored, because the
projection of a slice of ones oscillates outside the slice."""


@from_ledger
def _direct_bytes(
    m: Ledger,
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    detector_pad: bool | int,
    recon_size: int | None,
    recon_mask_radius: float | None,
) -> None:
    # Rows: measured, residual, projected or per ray. Images: the slice, two more.
    size = lengths(shape, detector_pad, recon_size, recon_mask_radius)
    account(m, shape, dtype, size, n_rows=3, n_images=3)


def _check(
    detector_pad: bool | int,
    recon_size: int | None,
    recon_mask_radius: float | None,
    iterations: int,
    **parameters: Any,
) -> None:
    check_geometry(detector_pad, recon_size, recon_mask_radius, **parameters)
    _check_iterations(iterations)


def _check_iterations(iterations: int) -> None:
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, not {iterations}")


@method(
    "sinogram",
    calc_max_slices=_direct_bytes,
    output_dims=slice_dims,
    output_dtype=np.float32,
    saved_by_default=True,
    check_values=_check,
    takes=("line integrals", "thickness"),
    gives="slices",
)
def SIRT3d_tomobar(
    data: Any,
    angles: Any,
    center: float | None = None,
    detector_pad: bool | int = False,
    recon_size: int | None = None,
    recon_mask_radius: float | None = 0.95,
    iterations: int = 300,
    nonnegativity: bool = True,
    gpu_id: int = 0,
) -> Any:
    """Reconstruct slices by the simultaneous iterative reconstruction technique (SIRT).

    Parameters
    ----------
    data, angles, center, detector_pad, recon_size, recon_mask_radius
        As in `fbp`.
    iterations : int
        Number of iterations.
    nonnegativity : bool
        Whether negative values are set to 0 after each iteration.
    gpu_id : int
        Ignored.

    Returns
    -------
    array
        Attenuation per pixel, shape (side, slices, side), float32, as from `fbp`.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Notes
    -----
    Each residual is divided by the length of its ray in the slice, and each correction by the
    number of rays through its pixel. Projections are computed by non-uniform FFTs on a CPU and
    along rays on a GPU: see `_projector_cpu` and `_projector_cuda`.
    """
    _check_iterations(iterations)
    log_unused("SIRT3d_tomobar", gpu_id=(gpu_id, 0))

    def solve(projector: Any, measured: Rows) -> Image:
        xp = array_namespace(measured)
        image = xp.ones(projector.image_shape, dtype=np.float32)
        residual = xp.empty_like(measured)
        projector.forward(image, residual)
        per_ray = _inverse(xp, residual)
        residual[...] = 1
        per_pixel = _inverse(xp, projector.transpose(residual))
        image[...] = 0
        for _ in range(iterations):
            projector.forward(image, residual)
            xp.subtract(measured, residual, out=residual)
            residual *= per_ray
            correction = projector.transpose(residual)
            correction *= per_pixel
            image += correction
            if nonnegativity:
                xp.maximum(image, 0, out=image)
        return image

    return solved(data, angles, center, detector_pad, recon_size, recon_mask_radius, solve)


@method(
    "sinogram",
    calc_max_slices=_direct_bytes,
    output_dims=slice_dims,
    output_dtype=np.float32,
    saved_by_default=True,
    check_values=_check,
    takes=("line integrals", "thickness"),
    gives="slices",
)
def CGLS3d_tomobar(
    data: Any,
    angles: Any,
    center: float | None = None,
    detector_pad: bool | int = False,
    recon_size: int | None = None,
    recon_mask_radius: float | None = 0.95,
    iterations: int = 20,
    nonnegativity: bool = True,
    gpu_id: int = 0,
) -> Any:
    """Reconstruct slices by conjugate gradients for least squares (CGLS).

    Parameters
    ----------
    data, angles, center, detector_pad, recon_size, recon_mask_radius
        As in `fbp`.
    iterations : int
        Number of iterations. More iterations increase the noise.
    nonnegativity : bool
        Whether negative values are set to 0 at the end.
    gpu_id : int
        Ignored.

    Returns
    -------
    array
        Attenuation per pixel, shape (side, slices, side), float32, as from `fbp`.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """
    _check_iterations(iterations)
    log_unused("CGLS3d_tomobar", gpu_id=(gpu_id, 0))

    def solve(projector: Any, measured: Rows) -> Image:
        xp = array_namespace(measured)
        residual, projected = measured.copy(), xp.empty_like(measured)
        direction = projector.transpose(residual).copy()
        image = xp.zeros_like(direction)
        slope = square(direction)
        for _ in range(iterations):
            projector.forward(direction, projected)
            step = ratio(slope, square(projected))
            image += step * direction
            projected *= step
            residual -= projected
            gradient = projector.transpose(residual)
            before, slope = slope, square(gradient)
            direction *= ratio(slope, before)
            direction += gradient
        return xp.maximum(image, 0, out=image) if nonnegativity else image

    return solved(data, angles, center, detector_pad, recon_size, recon_mask_radius, solve)


def _inverse(xp: Any, lengths: Any) -> Any:
    """Reciprocal of lengths, or 0 for lengths that are too short."""
    inverse = xp.maximum(lengths, np.float32(LEAST_RAY))
    xp.divide(1, inverse, out=inverse)
    xp.copyto(inverse, np.float32(0), where=lengths <= LEAST_RAY)
    return inverse
