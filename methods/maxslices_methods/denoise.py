"""Noise removal that keeps edges: total variation in three dimensions.

An iteration carries information by one voxel along every axis, so a block needs a halo of as many
slices as there are iterations; its result then does not depend on the block. The defaults are
therefore tens of iterations and not thousands.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from maxslices import method
from maxslices.core.ledger import Ledger, from_ledger

from . import _tv_cpu, _tv_cuda
from .namespaces import on_gpu

LEAST_GRADIENT = 1e-4
"""Least length of a gradient that a difference is divided by: the root of 1e-8."""


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
    """Check values of `total_variation_rof`; ValueError if one is out of range."""
    _require_positive(regularisation_parameter=regularisation_parameter, iterations=iterations)
    if time_marching_parameter is not None:
        _require_positive(time_marching_parameter=time_marching_parameter)


def stable_step(regularisation_parameter: float) -> float:
    """Largest step of `total_variation_rof` that cannot oscillate.

    One over the Lipschitz constant of the descent: 1 for the squared change, and in three
    dimensions 12 times the strength over the least length of a gradient.
    """
    return 1 / (1 + 12 * regularisation_parameter / LEAST_GRADIENT)


def check_pd(regularisation_parameter: float, iterations: int, lipschitz_const: float) -> None:
    """Check values of `total_variation_pd`; ValueError if one is out of range."""
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
    """Smooth a volume by descent on its total variation (Rudin, Osher and Fatemi).

    Parameters
    ----------
    data : array
        A volume (angles, detector_y, detector_x) of any real dtype.
    regularisation_parameter : float
        Strength, over 0: the weight of the total variation beside half of the squared change.
    iterations : int
        Steps, and also the slices that a block needs on either side.
    time_marching_parameter : float
        Size of a step, over 0. Larger steps come further in as many iterations; one too large
        for the strength oscillates. By default the largest that cannot: 30 iterations then come to
        1 % of the minimum for strengths up to 2e-5. Stronger smoothing needs more of them:
        `total_variation_pd` comes further.

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
    The explicit scheme of Rudin, Osher and Fatemi (Physica D 60, 259, 1992) in 3D, as
    CCPi-Regularisation has it: a forward difference along each axis is divided by the length of
    a gradient whose other components are minmod limited, with 1e-8 below the root; nothing flows
    over the borders.
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
    """Minimise total variation and squared change (Chambolle and Pock's primal-dual method).

    Parameters
    ----------
    data : array
        A volume (angles, detector_y, detector_x) of any real dtype.
    regularisation_parameter : float
        Strength, over 0: the weight of the total variation beside half of the squared change.
    iterations : int
        Steps, and also the slices that a block needs on either side. The default comes within
        about 1 % of the minimiser's change.
    isotropic : bool
        Whether the variation is the gradient's length, or else the sum of its components'.
    nonnegativity : bool
        Keep values at or above 0.
    lipschitz_const : float
        Bound of the squared norm of the gradient, over 0: 12 in three dimensions. Smaller ones
        take longer steps, without a proof that they arrive.

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
