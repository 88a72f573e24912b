"""Denoising that preserves edges: total variation in three dimensions.

An iteration propagates information by one voxel along every axis. With a halo of one slice per
iteration, a result does not depend on its block. The defaults are therefore tens of iterations
rather than thousands.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from maxslices import method
from maxslices.core.ledger import Ledger, from_ledger

from . import _tv_cpu, _tv_cuda
from .namespaces import on_gpu

LEAST_GRADIENT = 1e-4
"""Least length of a gradient as a divisor: the square root of 1e-8."""


def _halo(iterations: int) -> int:
    return iterations


@from_ledger
def rof_bytes(
    m: Ledger, shape: tuple[int, int, int], dtype: np.dtype[Any], iterations: int
) -> None:
    """Enter the allocations of `total_variation_rof`."""
    m.alloc(shape, dtype)
    if dtype != np.float32:
        m.alloc(shape, np.float32)
    (_tv_cuda if m.device == "cuda" else _tv_cpu).account_rof(m, shape, iterations)


@from_ledger
def pd_bytes(m: Ledger, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> None:
    """Enter the allocations of `total_variation_pd`."""
    m.alloc(shape, dtype)
    if dtype != np.float32:
        m.alloc(shape, np.float32)
    (_tv_cuda if m.device == "cuda" else _tv_cpu).account_pd(m, shape)


def check_rof(
    regularisation_parameter: float, iterations: int, time_marching_parameter: float | None
) -> None:
    """Raise ValueError if a parameter of `total_variation_rof` is out of range."""
    _require_positive(regularisation_parameter=regularisation_parameter, iterations=iterations)
    if time_marching_parameter is not None:
        _require_positive(time_marching_parameter=time_marching_parameter)


def stable_step(regularisation_parameter: float) -> float:
    """Largest step of `total_variation_rof` without oscillation.

    The reciprocal of the Lipschitz constant of the gradient: 1 for the squared change, plus 12
    times the strength over the least length of a gradient in three dimensions.
    """
    return 1 / (1 + 12 * regularisation_parameter / LEAST_GRADIENT)


def check_pd(regularisation_parameter: float, iterations: int, lipschitz_const: float) -> None:
    """Raise ValueError if a parameter of `total_variation_pd` is out of range."""
    _require_positive(
        regularisation_parameter=regularisation_parameter,
        iterations=iterations,
        lipschitz_const=lipschitz_const,
    )


def _require_positive(**values: float) -> None:
    for parameter, value in values.items():
        if not 0 < value < np.inf:
            raise ValueError(f"{parameter} must be over 0 and finite, not {value}")


@method(
    "all",
    calc_max_slices=rof_bytes,
    halo=_halo,
    gives="same",
    output_dtype=np.float32,
    check_values=check_rof,
)
def total_variation_rof(
    data: Any,
    regularisation_parameter: float = 1e-5,
    iterations: int = 30,
    time_marching_parameter: float | None = None,
) -> Any:
    """Denoise a volume by gradient descent on its total variation (Rudin, Osher and Fatemi).

    Parameters
    ----------
    data : array
        Volume, shape (angles, detector_y, detector_x), of any real dtype.
    regularisation_parameter : float
        Weight of the total variation relative to half of the squared change, above 0.
    iterations : int
        Number of iterations, and of halo slices on either side of a block.
    time_marching_parameter : float
        Step size, above 0. Larger steps converge in fewer iterations, but too large a step
        oscillates. The default is the largest step that cannot oscillate. With it, 30 iterations
        come within 1 % of the minimum for weights up to 2e-5. Larger weights need more iterations,
        for which `total_variation_pd` converges faster.

    Returns
    -------
    array
        The volume, float32.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Notes
    -----
    The explicit scheme of Rudin, Osher and Fatemi (Physica D 60, 259, 1992) in 3D, as in
    CCPi-Regularisation. The forward difference along each axis is divided by the length of a
    gradient whose other components are minmod limited, with 1e-8 added to the squared length. The
    flow across the borders is zero.
    """
    check_rof(regularisation_parameter, iterations, time_marching_parameter)
    if time_marching_parameter is None:
        time_marching_parameter = stable_step(regularisation_parameter)
    back = _tv_cuda if on_gpu(data) else _tv_cpu
    source = data.astype(np.float32, copy=False)
    return back.rof(source, regularisation_parameter, iterations, time_marching_parameter)


@method(
    "all",
    calc_max_slices=pd_bytes,
    halo=_halo,
    gives="same",
    output_dtype=np.float32,
    check_values=check_pd,
)
def total_variation_pd(
    data: Any,
    regularisation_parameter: float = 1e-5,
    iterations: int = 50,
    isotropic: bool = True,
    nonnegativity: bool = False,
    lipschitz_const: float = 12.0,
) -> Any:
    """Denoise a volume by the primal-dual method for total variation (Chambolle and Pock).

    Parameters
    ----------
    data : array
        Volume, shape (angles, detector_y, detector_x), of any real dtype.
    regularisation_parameter : float
        Weight of the total variation relative to half of the squared change, above 0.
    iterations : int
        Number of iterations, and of halo slices on either side of a block. With the default, the
        change is within about 1 % of that of the minimiser.
    isotropic : bool
        True: the length of the gradient. False: the sum of the magnitudes of its components.
    nonnegativity : bool
        Whether negative values are set to 0 in each iteration.
    lipschitz_const : float
        Upper bound of the squared norm of the gradient operator, above 0: 12 in three dimensions.
        Smaller values take longer steps, but convergence is not guaranteed.

    Returns
    -------
    array
        The volume, float32.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Notes
    -----
    Algorithm 1 of Chambolle and Pock (J. Math. Imaging Vis. 40, 120, 2011) for the model of
    Rudin, Osher and Fatemi, with the primal step at a tenth of the strength, as in
    CCPi-Regularisation.
    """
    check_pd(regularisation_parameter, iterations, lipschitz_const)
    back = _tv_cuda if on_gpu(data) else _tv_cpu
    source = data.astype(np.float32, copy=False)
    tau = 0.1 * regularisation_parameter
    return back.primal_dual(
        source,
        iterations=iterations,
        tau=tau,
        sigma=1 / (lipschitz_const * tau),
        pull=tau / regularisation_parameter,
        isotropic=isotropic,
        nonnegativity=nonnegativity,
    )
