"""How far Paganin's phase filter reaches across rows."""

from __future__ import annotations

import math

HC_KEV_UM = 1.239841984e-3
"""Planck's constant times the speed of light, in keV times micrometre."""
TAIL = 1e-5
"""Largest relative error from omitting distant rows, as a part of the random difference between
rows. A frame of 10,000 photons a pixel has a noise of 1 %, so the error is 1e-7 of the signal."""
ALL_ROWS = 2**31
"""Number of rows larger than that of any detector."""


def alpha_um2(distance: float, energy: float, ratio_delta_beta: float) -> float:
    """Factor of the squared spatial frequency in Paganin's filter, in square micrometres.

    Parameters
    ----------
    distance : float
        Distance from the object to the detector, in metres.
    energy : float
        Photon energy in keV.
    ratio_delta_beta : float
        Ratio of the decrement of the refractive index to its absorption part.
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

    Across rows the filter 1 / (1 + L^2 k^2), where L squared is alpha, decays as exp(-d / L) with
    the distance d. The reach is where this is below single precision. Because k ends at pi, the
    filter also has a tail of 2 L^2 / (1 + L^2 pi^2)^2 / d^2 with alternating signs. It matters if
    L is about a pixel. Rows that differ at random then contribute at most `TAIL` of their
    difference (root mean square).

    Parameters
    ----------
    pixel_size : float
        Size of a pixel in micrometres.
    distance, energy, ratio_delta_beta : float
        As in `alpha_um2`.
    frequency_factor : float
        Ratio of the code's k to the wave number: 2 in httomolibgpu.

    Returns
    -------
    int
        0 for values that the filter rejects.
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
