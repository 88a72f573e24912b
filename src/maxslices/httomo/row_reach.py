"""How far httomo's methods on projections reach across rows, which its database does not have."""

from __future__ import annotations

import math
from collections.abc import Callable

from .method_database import DatabaseEntry

ALL_ROWS = 2**31
"""More rows than any detector has."""
_ACROSS_ROWS = ("phase", "alignment")
"""Modules whose methods on projections filter whole frames, or move rows."""
_HC_KEV_UM = 1.239841984e-3
"""Planck's constant times the speed of light, in keV times micrometre."""
_TAIL = 1e-5
"""Part of the random difference between rows that may be missing: of noise of a hundredth 1e-7."""
_PAGANIN = ("pixel_size", "distance", "energy", "ratio_delta_beta")


def row_reach(entry: DatabaseEntry, names: tuple[str, ...]) -> Callable[..., int] | int | None:
    """Rows above and below that a row of a method's result depends on.

    Parameters
    ----------
    entry : DatabaseEntry
        The method.
    names : tuple of str
        Its parameters.

    Returns
    -------
    callable, int or None
        None where the halo says it, if there is one.
    """
    if entry.pattern != "projection" or entry.module.rpartition(".")[2] not in _ACROSS_ROWS:
        return None
    return _paganin_reach if set(_PAGANIN) <= set(names) else ALL_ROWS


def _paganin_reach(
    pixel_size: float, distance: float, energy: float, ratio_delta_beta: float
) -> int:
    """Reach of Paganin's filter 1 / (1 + L^2 k^2), as far as it matters.

    It falls by exp(-d / L) over a distance d, and is followed until that is nothing in single
    precision. As k ends at pi, it also has a tail of 2 L^2 / (1 + L^2 pi^2)^2 / d^2 with
    alternating signs: rows that differ at random add up to `_TAIL` of their difference, in the root
    mean square. In httomolibgpu k is twice the wave number, so L is twice the root of alpha.
    """
    try:
        alpha_um2 = _HC_KEV_UM / energy * distance * 1e6 * ratio_delta_beta / (4 * math.pi)
        square = 4 * alpha_um2 / pixel_size**2
        tail = 2 * square / (1 + square * math.pi**2) ** 2 * math.sqrt(2 / 3)
        reach = max(math.log(2**24) * math.sqrt(square), math.pow(tail / _TAIL, 2 / 3))
    except (TypeError, ValueError, ZeroDivisionError):
        return 0  # refused when it runs
    return min(math.ceil(reach), ALL_ROWS)
