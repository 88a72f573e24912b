"""Iterative reconstruction on a CPU, under httomolibgpu's names: SIRT, CGLS and FISTA."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from maxslices import Ledger, from_ledger, method

from . import _fbp_cpu, _projector_cpu, _tv_cpu
from ._fbp_geometry import Lengths, host_angles, lengths
from ._projector_cpu import Projector
from .httomo_names import log_unused
from .namespaces import to_device_of, to_host
from .recon import slice_dims

Image = NDArray[np.float32]
Rows = NDArray[np.float32]
Solver = Callable[[Projector, Rows], Image]

POWER_ITERATIONS = 15
"""Steps of the power method for the largest singular value: it is within 1 % then for parallel
beams, whose spectrum falls off steeply, and `LIPSCHITZ_MARGIN` covers that."""
LIPSCHITZ_MARGIN = 1.05
LEAST_RAY = 0.5
"""Pixels of the slice that a ray crosses at least, to count in SIRT: the projection of a slice of
ones rings where no pixel lies."""
TV_LIPSCHITZ = 8.0
"""Bound of the squared norm of the gradient in two dimensions."""


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
    _account(m, shape, dtype, size, n_rows=3, n_images=3, n_subsets=1)


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
    # The slice, the one before, the extrapolated one; a term, or seven arrays of the regulariser.
    n_images = 3 + (7 if regularisation_parameter > 0 else 1)
    size = lengths(shape, detector_pad, recon_size, recon_mask_radius)
    n_subsets = min(subsets_number, shape[0])
    _account(m, shape, dtype, size, n_rows=2, n_images=n_images, n_subsets=n_subsets)


def _account(
    m: Ledger,
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    size: Lengths,
    *,
    n_rows: int,
    n_images: int,
    n_subsets: int,
) -> None:
    m.alloc(shape, dtype)
    m.alloc((size.size, shape[1], size.size), np.float32)
    if m.device == "cuda":  # it works on the host
        return
    _projector_cpu.account_library(m)
    if np.isfinite(size.radius):
        m.alloc((size.size, size.size), np.bool_)
    for _ in range(_fbp_cpu.n_workers_for(shape[1])):
        _projector_cpu.account(m, size, n_subsets)
        for _ in range(n_rows):
            m.alloc((size.n_angles, size.detector + 2 * size.pad), np.float32)
        for _ in range(n_images):
            m.alloc((size.size, size.size), np.float32)


def _check(iterations: int) -> None:
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, not {iterations}")


def _check_fista(
    iterations: int,
    subsets_number: int,
    regularisation_parameter: float,
    regularisation_iterations: int,
) -> None:
    _check(iterations)
    if subsets_number < 1:
        raise ValueError(f"subsets_number must be at least 1, not {subsets_number}")
    if not 0 <= regularisation_parameter < np.inf or regularisation_iterations < 1:
        raise ValueError(
            "regularisation_parameter must be at least 0 and finite, and regularisation_iterations "
            f"at least 1: they are {regularisation_parameter} and {regularisation_iterations}"
        )


@method(
    "sinogram",
    calc_max_slices=_direct_bytes,
    output_dims=slice_dims,
    output_dtype=np.float32,
    saved_by_default=True,
    check_values=_check,
    host_only=True,
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
    """Reconstruct slices by simultaneous iterations (SIRT). It works on the CPU.

    Parameters
    ----------
    data, angles, center, detector_pad, recon_size, recon_mask_radius
        As in `fbp`.
    iterations : int
        Steps.
    nonnegativity : bool
        Whether values below 0 are set to 0 after each step.
    gpu_id : int
        Not used.

    Returns
    -------
    array
        Attenuation per pixel, (side, slices, side) float32, as of `fbp`.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Notes
    -----
    Each residual is divided by the length of its ray in the slice, and each correction by the
    number of rays through its pixel. Projections are by non-uniform FFTs: see `_projector_cpu`.
    """
    _check(iterations)
    log_unused("SIRT3d_tomobar", gpu_id=(gpu_id, 0))

    def solve(projector: Projector, measured: Rows) -> Image:
        side = projector.size.size
        image = np.ones((side, side), np.float32)
        residual = np.empty_like(measured)
        projector.forward(image, residual)
        per_ray = np.divide(1, residual, out=np.zeros_like(residual), where=residual > LEAST_RAY)
        seen = projector.transpose(np.ones_like(measured))
        per_pixel = np.divide(1, seen, out=np.zeros_like(image), where=seen > LEAST_RAY)
        image[...] = 0
        for _ in range(iterations):
            projector.forward(image, residual)
            np.subtract(measured, residual, out=residual)
            residual *= per_ray
            correction = projector.transpose(residual)
            correction *= per_pixel
            image += correction
            if nonnegativity:
                np.maximum(image, 0, out=image)
        return image

    return _solved(data, angles, center, detector_pad, recon_size, recon_mask_radius, solve)


@method(
    "sinogram",
    calc_max_slices=_direct_bytes,
    output_dims=slice_dims,
    output_dtype=np.float32,
    saved_by_default=True,
    check_values=_check,
    host_only=True,
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
    """Reconstruct slices by conjugate gradients for least squares (CGLS). It works on the CPU.

    Parameters
    ----------
    data, angles, center, detector_pad, recon_size, recon_mask_radius
        As in `fbp`.
    iterations : int
        Steps; the noise grows with them.
    nonnegativity : bool
        Whether values below 0 are set to 0 at the end.
    gpu_id : int
        Not used.

    Returns
    -------
    array
        Attenuation per pixel, (side, slices, side) float32, as of `fbp`.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """
    _check(iterations)
    log_unused("CGLS3d_tomobar", gpu_id=(gpu_id, 0))

    def solve(projector: Projector, measured: Rows) -> Image:
        residual, projected = measured.copy(), np.empty_like(measured)
        direction = projector.transpose(residual).copy()
        image = np.zeros_like(direction)
        slope = _square(direction)
        for _ in range(iterations):
            projector.forward(direction, projected)
            length = _square(projected)
            if slope == 0 or length == 0:
                break
            step = np.float32(slope / length)
            image += step * direction
            projected *= step
            residual -= projected
            gradient = projector.transpose(residual)
            before, slope = slope, _square(gradient)
            direction *= np.float32(slope / before)
            direction += gradient
        return np.maximum(image, 0, out=image) if nonnegativity else image

    return _solved(data, angles, center, detector_pad, recon_size, recon_mask_radius, solve)


@method(
    "sinogram",
    calc_max_slices=_fista_bytes,
    output_dims=slice_dims,
    output_dtype=np.float32,
    saved_by_default=True,
    check_values=_check_fista,
    host_only=True,
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
    """Reconstruct slices by FISTA with ordered subsets and total variation. It works on the CPU.

    Parameters
    ----------
    data, angles, center, detector_pad, recon_size, recon_mask_radius
        As in `fbp`.
    iterations : int
        Passes over all subsets.
    subsets_number : int
        Subsets of the angles, every so many; a step is made for each.
    data_fidelity : "LS"
        Least squares; httomolibgpu has weighted ones too.
    regularisation_type : {"PD_TV", "ROF_TV"}
        Both are the total variation of each slice alone, by the primal-dual method: a slice then
        does not depend on its block. httomolibgpu's is that of a block.
    regularisation_parameter : float
        Weight of the total variation; 0: none.
    regularisation_iterations : int
        Steps of the regulariser after each step.
    regularisation_half_precision : bool
        Not used.
    nonnegativity : bool
        Whether values below 0 are set to 0 after each step.
    gpu_id : int
        Not used.

    Returns
    -------
    array
        Attenuation per pixel, (side, slices, side) float32, as of `fbp`.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    References
    ----------
    A. Beck, M. Teboulle, SIAM J. Imaging Sci. 2, 183 (2009).
    """
    _check_fista(iterations, subsets_number, regularisation_parameter, regularisation_iterations)
    log_unused(
        "FISTA3d_tomobar",
        gpu_id=(gpu_id, 0),
        regularisation_half_precision=(regularisation_half_precision, True),
    )

    def solve(projector: Projector, measured: Rows) -> Image:
        n_subsets = min(subsets_number, len(measured))
        subsets = [slice(first, None, n_subsets) for first in range(n_subsets)]
        rows = np.empty_like(measured)
        side = projector.size.size
        step = np.float32(1 / _lipschitz(projector, rows, subsets[0]))
        image, ahead = np.zeros((side, side), np.float32), np.zeros((side, side), np.float32)
        momentum = 1.0
        for _ in range(iterations):
            for subset in subsets:
                residual = rows[: len(measured[subset])]
                projector.forward(ahead, residual, subset)
                residual -= measured[subset]
                before, image = image, ahead - step * projector.transpose(residual, subset)
                if nonnegativity:
                    np.maximum(image, 0, out=image)
                if regularisation_parameter > 0:
                    image = _smoothed(image, regularisation_parameter, regularisation_iterations)
                following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
                np.subtract(image, before, out=ahead)
                ahead *= np.float32((momentum - 1) / following)
                ahead += image
                momentum = following
        return image

    return _solved(data, angles, center, detector_pad, recon_size, recon_mask_radius, solve)


def _solved(
    data: Any,
    angles: Any,
    center: float | None,
    detector_pad: bool | int,
    recon_size: int | None,
    recon_mask_radius: float | None,
    solve: Solver,
) -> Any:
    """Reconstruct all slices, each by a thread with a projector of its own."""
    source = to_host(data)
    size = lengths(source.shape, detector_pad, recon_size, recon_mask_radius)
    middle = (size.detector - 1) / 2 if center is None else float(center)
    if not np.isfinite(middle):
        raise ValueError(f"center must be a number of pixels, not {center}")
    radians = host_angles(angles, size.n_angles)
    n_slices = source.shape[1]
    result = np.empty((size.size, n_slices, size.size), np.float32)
    outside = _fbp_cpu.outside_of(size)
    n_workers = _fbp_cpu.n_workers_for(n_slices)
    _fbp_cpu.load_library()

    def work(worker: int) -> None:
        projector = projectors[worker]
        measured = np.empty((size.n_angles, size.detector + 2 * size.pad), np.float32)
        for index in range(worker, n_slices, n_workers):
            measured[:, size.pad : size.pad + size.detector] = source[:, index]
            if size.pad:
                measured[:, : size.pad] = source[:, index, :1]
                measured[:, size.pad + size.detector :] = source[:, index, -1:]
            np.copyto(result[:, index], solve(projector, measured))
            if outside is not None:
                np.copyto(result[:, index], np.float32(0), where=outside)

    with ThreadPoolExecutor(n_workers) as pool:
        projectors = list(pool.map(lambda _: Projector(radians, middle, size), range(n_workers)))
        plans = [plan for projector in projectors for plan in projector.plans]
        with _fbp_cpu.shown_to_tracemalloc(plans, projectors[0].plan_bytes):
            list(pool.map(work, range(n_workers)))
    return to_device_of(data, result)


def _lipschitz(projector: Projector, rows: Rows, subset: slice) -> float:
    """Largest eigenvalue of the transpose after the projection, for a subset of the angles."""
    side = projector.size.size
    image = np.ones((side, side), np.float32)
    rows = rows[: len(rows[subset])]
    largest = 1.0
    for _ in range(POWER_ITERATIONS):
        projector.forward(image, rows, subset)
        image[...] = projector.transpose(rows, subset)
        largest = np.sqrt(_square(image))
        image /= np.float32(largest)
    return float(largest) * LIPSCHITZ_MARGIN


def _smoothed(image: Image, strength: float, iterations: int) -> Image:
    tau = 0.1 * strength
    return _tv_cpu.primal_dual(
        image[np.newaxis],
        iterations=iterations,
        tau=tau,
        sigma=1 / (TV_LIPSCHITZ * tau),
        pull=tau / strength,
        isotropic=True,
        nonnegativity=False,
    )[0]


def _square(values: NDArray[Any]) -> float:
    flat = values.reshape(-1)
    return float(np.dot(flat, flat))
