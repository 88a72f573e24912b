"""Methods of this package under httomolibgpu's names, with its parameters and defaults.

A pipeline of httomolibgpu runs with them if its ``module_path`` is omitted, also on a CPU.
Parameters that apply only to httomolibgpu's code on a GPU are accepted, and a log message says that
they are ignored.
"""

from __future__ import annotations

import logging
from typing import Any, Literal, get_args

import numpy as np

from maxslices import method

from . import denoise, recon
from ._fbp_geometry import SINC, RowWindow, check_geometry, lengths

logger = logging.getLogger(__name__)

TV_HALO = 20
"""Largest halo of total variation, in slices on either side. httomolibgpu has 5. With the defaults
of `total_variation_PD`, on a volume of noise and bodies, a slice next to the end of a block differs
by 2e-6 of the volume's range, and with a halo of 5 by 2e-5 (2026-11-23)."""

LogPolarFilter = Literal["none", "ramp", "shepp", "cosine", "cosine2", "hamming", "hann", "parzen"]
_LOG_POLAR = {"ramp": "ram-lak", "shepp": "shepp-logan"}
AstraFilter = Literal["ram-lak", "shepp-logan", "cosine", "hamming", "hann", "parzen"]

logged_unused: set[tuple[str, str]] = set()
"""Pairs (method, parameter) already logged as ignored."""


def log_unused(name: str, **parameters: tuple[Any, Any]) -> None:
    """Log ignored parameters that differ from their defaults, once each.

    Parameters
    ----------
    name : str
        Name of the method.
    **parameters : (value, default)
        Ignored parameters.
    """
    for parameter, (value, default) in parameters.items():
        if value != default and (name, parameter) not in logged_unused:
            logged_unused.add((name, parameter))
            logger.warning(
                "%s: %s=%r applies only to httomolibgpu on a GPU, and is ignored",
                name,
                parameter,
                value,
            )


def _check(
    detector_pad: bool | int,
    filter_freq_cutoff: float,
    recon_size: int | None,
    recon_mask_radius: float | None,
    **parameters: Any,
) -> None:
    check_geometry(detector_pad, recon_size, recon_mask_radius, **parameters)
    _check_cutoff(filter_freq_cutoff)


def _check_cutoff(filter_freq_cutoff: float) -> None:
    if not 0 < filter_freq_cutoff < np.inf:
        raise ValueError(f"filter_freq_cutoff must be over 0 and finite, not {filter_freq_cutoff}")


@method(
    "sinogram",
    calc_max_slices=recon.fbp_bytes,
    output_dims=recon.slice_dims,
    output_dtype=np.float32,
    saved_by_default=True,
    check_values=_check,
    takes=("line integrals", "thickness"),
    gives="slices",
)
def FBP3d_tomobar(
    data: Any,
    angles: Any,
    center: float | None = None,
    detector_pad: bool | int = False,
    filter_freq_cutoff: float = 0.35,
    recon_size: int | None = None,
    recon_mask_radius: float | None = 0.95,
    gpu_id: int = 0,
) -> Any:
    """Reconstruct slices by filtered back-projection, with ToMoBAR's sinc window.

    Parameters
    ----------
    data, angles, center, detector_pad, recon_size, recon_mask_radius
        As in `fbp`.
    filter_freq_cutoff : float
        Width of the window ``sinc(cutoff * f)``, f in cycles per pixel. Lower is sharper.
    gpu_id : int
        Ignored.

    Returns
    -------
    array
        As from `fbp`. ToMoBAR's values are lower by a factor from its window's fit to a line: 0.94
        for a cutoff of 0.35.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """
    _check_cutoff(filter_freq_cutoff)
    log_unused("FBP3d_tomobar", gpu_id=(gpu_id, 0))
    size = lengths(data.shape, detector_pad, recon_size, recon_mask_radius)
    return recon.back_projected(data, angles, center, RowWindow(SINC, filter_freq_cutoff), size)


@method(
    "sinogram",
    calc_max_slices=recon.fbp_bytes,
    output_dims=recon.slice_dims,
    output_dtype=np.float32,
    saved_by_default=True,
    check_values=check_geometry,
    takes=("line integrals", "thickness"),
    gives="slices",
)
def FBP2d_astra(
    data: Any,
    angles: Any,
    center: float | None = None,
    detector_pad: bool | int = False,
    filter_type: AstraFilter = "ram-lak",
    filter_parameter: float | None = None,
    filter_d: float | None = None,
    recon_size: int | None = None,
    recon_mask_radius: float | None = 0.95,
    gpu_id: int = 0,
) -> Any:
    """Reconstruct slices by filtered back-projection, with ASTRA's names of windows.

    Parameters
    ----------
    data, angles, center, detector_pad, recon_size, recon_mask_radius
        As in `fbp`.
    filter_type : str
        Window of the ramp filter.
    filter_parameter : float, optional
        Must be omitted, because the windows have no parameter.
    filter_d : float, optional
        Cutoff as a fraction of the highest frequency.
    gpu_id : int
        Ignored.

    Returns
    -------
    array
        As from `fbp`.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """
    if filter_type not in get_args(AstraFilter):
        valid = ", ".join(get_args(AstraFilter))
        raise ValueError(f"filter_type must be one of {valid}, not {filter_type!r}")
    if filter_parameter is not None:
        raise ValueError(
            f"filter_parameter must be omitted for these windows, not {filter_parameter}"
        )
    cutoff = 1.0 if filter_d is None else filter_d
    _check_cutoff(cutoff)
    log_unused("FBP2d_astra", gpu_id=(gpu_id, 0))
    size = lengths(data.shape, detector_pad, recon_size, recon_mask_radius)
    return recon.back_projected(data, angles, center, RowWindow(filter_type, cutoff), size)


@method(
    "sinogram",
    calc_max_slices=recon.fbp_bytes,
    output_dims=recon.slice_dims,
    output_dtype=np.float32,
    saved_by_default=True,
    check_values=_check,
    takes=("line integrals", "thickness"),
    gives="slices",
)
def LPRec3d_tomobar(
    data: Any,
    angles: Any,
    center: float | None = None,
    detector_pad: bool | int = False,
    filter_type: LogPolarFilter = "shepp",
    filter_freq_cutoff: float = 1.0,
    recon_size: int | None = None,
    recon_mask_radius: float | None = 0.95,
    power_of_2_oversampling: bool = True,
    power_of_2_cropping: bool = False,
    min_mem_usage_filter: bool = True,
    min_mem_usage_ifft2: bool = True,
) -> Any:
    """Reconstruct slices in the frequency domain, as `fbp` does on a CPU.

    The method of this name in httomolibgpu sums the same waves on a log-polar grid.

    Parameters
    ----------
    data, angles, center, detector_pad, recon_size, recon_mask_radius
        As in `fbp`.
    filter_type : str
        Window of the ramp filter. "none" disables the filter in httomolibgpu, and is an error here.
    filter_freq_cutoff : float
        Cutoff as a fraction of the highest frequency. In httomolibgpu it scales the values.
    power_of_2_oversampling, power_of_2_cropping, min_mem_usage_filter, min_mem_usage_ifft2 : bool
        Ignored.

    Returns
    -------
    array
        As from `fbp`.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """
    _check_cutoff(filter_freq_cutoff)
    if filter_type == "none" or filter_type not in get_args(LogPolarFilter):
        valid = ", ".join(get_args(LogPolarFilter)[1:])
        raise ValueError(f"filter_type must be one of {valid}, not {filter_type!r}")
    log_unused(
        "LPRec3d_tomobar",
        power_of_2_oversampling=(power_of_2_oversampling, True),
        power_of_2_cropping=(power_of_2_cropping, False),
        min_mem_usage_filter=(min_mem_usage_filter, True),
        min_mem_usage_ifft2=(min_mem_usage_ifft2, True),
    )
    window = RowWindow(_LOG_POLAR.get(filter_type, filter_type), filter_freq_cutoff)
    size = lengths(data.shape, detector_pad, recon_size, recon_mask_radius)
    return recon.back_projected(data, angles, center, window, size)


def _halo(iterations: int) -> int:
    return min(iterations, TV_HALO)


@method(
    "all",
    calc_max_slices=denoise.pd_bytes,
    halo=_halo,
    output_dtype=np.float32,
    check_values=denoise.check_pd,
    gives="same",
)
def total_variation_PD(
    data: Any,
    regularisation_parameter: float = 1e-5,
    iterations: int = 1000,
    isotropic: bool = True,
    nonnegativity: bool = False,
    lipschitz_const: float = 8.0,
    gpu_id: int = 0,
    half_precision: bool = False,
) -> Any:
    """Denoise a volume by the primal-dual method of total variation, as `total_variation_pd`.

    Parameters
    ----------
    data, regularisation_parameter, iterations, isotropic, nonnegativity, lipschitz_const
        As in `total_variation_pd`. The halo has at most 20 slices. With more iterations, slices
        next to the ends of a block differ by millionths of the range.
    gpu_id : int
        Ignored.
    half_precision : bool
        Ignored.

    Returns
    -------
    array
        The volume, float32.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """
    log_unused("total_variation_PD", gpu_id=(gpu_id, 0), half_precision=(half_precision, False))
    return denoise.total_variation_pd(
        data, regularisation_parameter, iterations, isotropic, nonnegativity, lipschitz_const
    )


@method(
    "all",
    calc_max_slices=denoise.rof_bytes,
    halo=_halo,
    output_dtype=np.float32,
    check_values=denoise.check_rof,
    gives="same",
)
def total_variation_ROF(
    data: Any,
    regularisation_parameter: float = 1e-5,
    iterations: int = 3000,
    time_marching_parameter: float = 0.001,
    gpu_id: int = 0,
    half_precision: bool = False,
) -> Any:
    """Denoise a volume by gradient descent of its total variation, as `total_variation_rof`.

    Parameters
    ----------
    data, regularisation_parameter, iterations, time_marching_parameter
        As in `total_variation_rof`; for the halo see `total_variation_PD`.
    gpu_id : int
        Ignored.
    half_precision : bool
        Ignored.

    Returns
    -------
    array
        The volume, float32.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """
    log_unused("total_variation_ROF", gpu_id=(gpu_id, 0), half_precision=(half_precision, False))
    return denoise.total_variation_rof(
        data, regularisation_parameter, iterations, time_marching_parameter
    )
