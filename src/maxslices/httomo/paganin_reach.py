"""How far Paganin's phase filter reaches across rows."""

from __future__ import annotations

import math

HC_KEV_UM = 1.239841984e-3
"""Planck's constant times the speed of light, in keV times micrometre."""
TAIL = 1e-5
"""Part of the random difference between rows that may be missing where rows far away are left out:
a frame of 10,000 photons a pixel has a noise of a hundredth, of which this is 1e-7."""
ALL_ROWS = 2**31
"""More rows than any detector has."""


def alpha_um2(distance: float, energy: float, ratio_delta_beta: float) -> float:
    """Factor of the squared spatial frequency in Paganin's filter, in square micrometres.

    Parameters
    ----------
    distance : float
        From the object to the detector, in metres.
    energy : float
        Of the photons, in keV.
    ratio_delta_beta : float
        Of the refractive index's decrement to its absorption.
    """
    return HC_KEV_UM / energy * distance * 1e6 * ratio_delta_beta / (4 * math.pi)


def paganin_reach(
    pixel_size: float,
    distance: float,
    energy: float,
    ratio_delta_beta: float,
    frequency_factor: float = 1.0,
) -> int:
    """Rows above and below that a row of a filtered frame depends on.

    Across rows the filter 1 / (1 + L^2 k^2), where L squared is alpha, falls by exp(-d / L) over a
    distance d, and is followed until that is nothing in single precision. As k ends at pi, it also
    has a tail of 2 L^2 / (1 + L^2 pi^2)^2 / d^2 with alternating signs, which matters if L is about
    a pixel: rows that differ at random add up to `TAIL` of their difference (root mean square).

    Parameters
    ----------
    pixel_size : float
        In micrometres.
    distance, energy, ratio_delta_beta : float
        As in `alpha_um2`.
    frequency_factor : float
        What the code takes for k, in wave numbers: 2 in httomolibgpu.

    Returns
    -------
    int
        0 for values that the filter refuses.
    """
    try:
        optics = (pixel_size, distance, energy, ratio_delta_beta)
        if not all(0 < value < math.inf for value in optics):
            return 0
        alpha = alpha_um2(distance, energy, ratio_delta_beta)
        square = frequency_factor**2 * alpha / pixel_size**2
        tail = 2 * square / (1 + square * math.pi**2) ** 2 * math.sqrt(2 / 3)
        reach = max(math.log(2**24) * math.sqrt(square), math.pow(tail / TAIL, 2 / 3))
    except (OverflowError, TypeError, ZeroDivisionError):
        return 0
    return math.ceil(min(reach, ALL_ROWS))
