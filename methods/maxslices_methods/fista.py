"""FISTA under httomolibgpu's name."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from maxslices import Ledger, from_ledger, method

from . import _tv_cpu, _tv_cuda
from ._fbp_geometry import check_geometry, lengths
from ._solve_slices import Image, Rows, account, solved, square
from .httomo_names import log_unused
from .namespaces import array_namespace, on_gpu
from .recon import slice_dims

POWER_ITERATIONS = 15
"""Steps of the power method for the largest singular value. For parallel beams, whose spectrum
decreases steeply, it is then within 1 %, which `LIPSCHITZ_MARGIN` covers."""
LIPSCHITZ_MARGIN = 1.05
TV_LIPSCHITZ = 8.0
"""Bound of the squared norm of the gradient in two dimensions."""


@from_ledger
def _fista_bytes(
    m: Ledger,
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    detector_pad: bool | int,
    recon_size: int | None,
    recon_mask_radius: float | None,
    subsets_number: int,
    regularisation_parameter: float,
) -> None:
    size = lengths(shape, detector_pad, recon_size, recon_mask_radius)
    account(
        *(m, shape, dtype, size),
        n_rows=2,
        n_images=3,  # the slice, the one before, the extrapolated one
        n_passing=2,  # a term and the next slice, before smoothing
        n_subsets=min(subsets_number, shape[0]),
        smoothed=regularisation_parameter > 0,
    )


def _check_fista(
    detector_pad: bool | int,
    recon_size: int | None,
    recon_mask_radius: float | None,
    iterations: int,
    subsets_number: int,
    regularisation_parameter: float,
    regularisation_iterations: int,
    **parameters: Any,
) -> None:
    check_geometry(detector_pad, recon_size, recon_mask_radius, **parameters)
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, not {iterations}")
    if subsets_number < 1:
        raise ValueError(f"subsets_number must be at least 1, not {subsets_number}")
    if not 0 <= regularisation_parameter < np.inf or regularisation_iterations < 1:
        raise ValueError(
            "regularisation_parameter must be at least 0 and finite, and regularisation_iterations "
            f"at least 1: they are {regularisation_parameter} and {regularisation_iterations}"
        )


@method(
    "sinogram",
    calc_max_slices=_fista_bytes,
    output_dims=slice_dims,
    output_dtype=np.float32,
    saved_by_default=True,
    check_values=_check_fista,
    takes=("line integrals", "thickness"),
    gives="slices",
)
def FISTA3d_tomobar(
    data: Any,
    angles: Any,
    center: float | None = None,
    detector_pad: bool | int = False,
    recon_size: int | None = None,
    recon_mask_radius: float | None = 0.95,
    iterations: int = 20,
    subsets_number: int = 6,
    data_fidelity: Literal["LS"] = "LS",
    regularisation_type: Literal["ROF_TV", "PD_TV"] = "PD_TV",
    regularisation_parameter: float = 1e-6,
    regularisation_iterations: int = 50,
    regularisation_half_precision: bool = True,
    nonnegativity: bool = True,
    gpu_id: int = 0,
) -> Any:
    """Reconstruct slices by FISTA with ordered subsets and total variation.

    Parameters
    ----------
    data, angles, center, detector_pad, recon_size, recon_mask_radius
        As in `fbp`.
    iterations : int
        Passes over all subsets.
    subsets_number : int
        Number of ordered subsets of the angles, with one step for each.
    data_fidelity : "LS"
        Least squares. httomolibgpu also has weighted least squares.
    regularisation_type : {"PD_TV", "ROF_TV"}
        Both use the total variation of each slice alone, by the primal-dual method, so a slice does
        not depend on its block. httomolibgpu uses the total variation of the block.
    regularisation_parameter : float
        Weight of the total variation when the image is denoised after each step. 0: no denoising.
        Unlike in FISTA, it is not multiplied by the step size. Relative to the squared residual the
        weight is therefore this times the Lipschitz constant of a subset, which grows with the
        number of angles and the size of the slice.
    regularisation_iterations : int
        Iterations of the regulariser after each step.
    regularisation_half_precision : bool
        Ignored.
    nonnegativity : bool
        Whether negative values are set to 0 after each step.
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

    References
    ----------
    A. Beck, M. Teboulle, SIAM J. Imaging Sci. 2, 183 (2009).
    """
    _check_fista(
        detector_pad,
        recon_size,
        recon_mask_radius,
        iterations,
        subsets_number,
        regularisation_parameter,
        regularisation_iterations,
    )
    log_unused(
        "FISTA3d_tomobar",
        gpu_id=(gpu_id, 0),
        regularisation_half_precision=(regularisation_half_precision, True),
    )

    steps: dict[Any, np.float32] = {}

    def solve(projector: Any, measured: Rows) -> Image:
        n_subsets = min(subsets_number, len(measured))
        subsets = [slice(first, None, n_subsets) for first in range(n_subsets)]
        xp = array_namespace(measured)
        rows = xp.empty_like(measured)
        if projector not in steps:
            steps[projector] = np.float32(1 / _lipschitz(projector, rows, subsets[0]))
        step = steps[projector]
        image, ahead = (xp.zeros(projector.image_shape, dtype=np.float32) for _ in range(2))
        momentum = 1.0
        for _ in range(iterations):
            for subset in subsets:
                residual = rows[: len(measured[subset])]
                projector.forward(ahead, residual, subset)
                residual -= measured[subset]
                before, image = image, ahead - step * projector.transpose(residual, subset)
                if nonnegativity:
                    xp.maximum(image, 0, out=image)
                if regularisation_parameter > 0:
                    image = _smoothed(image, regularisation_parameter, regularisation_iterations)
                following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
                xp.subtract(image, before, out=ahead)
                ahead *= np.float32((momentum - 1) / following)
                ahead += image
                momentum = following
        return image

    return solved(data, angles, center, detector_pad, recon_size, recon_mask_radius, solve)


def _lipschitz(projector: Any, rows: Rows, subset: slice) -> float:
    """Largest eigenvalue of projection followed by its transpose, for a subset of the angles."""
    image = array_namespace(rows).ones(projector.image_shape, dtype=np.float32)
    rows = rows[: len(range(*subset.indices(len(rows))))]
    largest = 1.0
    for _ in range(POWER_ITERATIONS):
        projector.forward(image, rows, subset)
        image[...] = projector.transpose(rows, subset)
        largest = float(np.sqrt(np.max(square(image))))  # on a GPU, of four equal slices
        image /= np.float32(largest)
    return largest * LIPSCHITZ_MARGIN


def _smoothed(image: Image, strength: float, iterations: int) -> Image:
    tau = 0.1 * strength
    back = _tv_cuda if on_gpu(image) else _tv_cpu
    planes = [image] if image.ndim == 2 else [image[..., k] for k in range(image.shape[2])]
    for plane in planes:  # each slice alone
        plane[...] = back.primal_dual(
            plane[np.newaxis],
            iterations=iterations,
            tau=tau,
            sigma=1 / (TV_LIPSCHITZ * tau),
            pull=tau / strength,
            isotropic=True,
            nonnegativity=False,
        )[0]
    return image
