"""How far httomo's methods on projections reach across rows, which its database does not have."""

from __future__ import annotations

from collections.abc import Callable

from .method_database import DatabaseEntry
from .paganin_reach import ALL_ROWS, paganin_reach

_ACROSS_ROWS = ("phase", "alignment")
"""Modules whose methods on projections filter whole frames, or move rows."""
_FREQUENCY_FACTOR = 2.0
"""In httomolibgpu k is twice the wave number."""
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
    return _reach_of_theirs if set(_PAGANIN) <= set(names) else ALL_ROWS


def _reach_of_theirs(
    pixel_size: float, distance: float, energy: float, ratio_delta_beta: float
) -> int:
    return paganin_reach(pixel_size, distance, energy, ratio_delta_beta, _FREQUENCY_FACTOR)
