"""Order projections by angle, for methods that compare projections with each other."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maxslices.core.angles import HALF_TURN, TOLERANCE, AngleTable, angle_table

from .namespaces import to_host

logger = logging.getLogger(__name__)


def table_of(name: str, angles: Any, n_angles: int) -> AngleTable:
    """Angle table of the projections that a method received.

    Raises
    ------
    ValueError
        If there is not one angle for each projection.
    """
    angles = np.asarray(to_host(angles))
    if angles.shape != (n_angles,):
        raise ValueError(
            f"{name} needs one angle for each of the {n_angles} projections, but angles has shape "
            f"{angles.shape}"
        )
    return angle_table(angles)


def order_by_angle(name: str, angles: Any, n_angles: int) -> NDArray[np.intp]:
    """Indices of the projections sorted by angle, or in storage order without angles."""
    return np.arange(n_angles) if angles is None else table_of(name, angles, n_angles).order


def is_stored_order(order: NDArray[np.intp]) -> bool:
    """True if `order` is the storage order of the projections."""
    return bool((order[1:] > order[:-1]).all())


def warn_of_short_turn(name: str, table: AngleTable) -> None:
    """Log a warning if a scan covers less than the half turn that a method needs."""
    if table.turned < (1 - TOLERANCE) * HALF_TURN:
        logger.warning(
            "%s needs half a turn, and the scan has %s, %.4g degrees: its result is likely wrong",
            name,
            table,
            table.turned,
        )


Rows = slice | NDArray[np.intp]


def halves(
    name: str,
    angles: Any,
    n_angles: int,
    n_rows: int,
    first_behind: int,
    *,
    warns: bool = True,
) -> tuple[Rows, Rows]:
    """Select pairs of projections that are half a turn apart.

    If the projections are stored in order over a full turn, the first `n_rows` are paired with
    `n_rows` projections starting at `first_behind`, as in Algotom and httomolibgpu. Otherwise they
    are paired by angle. If that fails, a warning is logged and they are paired in storage order.

    Parameters
    ----------
    name : str
        Name of the method, for the warning.
    angles : array, shape (n_angles,), or None
        Angles in radians. None pairs the projections in storage order.
    n_angles : int
        Number of projections.
    n_rows : int
        Number of pairs.
    first_behind : int
        Index of the projection that is opposite to the first one.
    warns : bool
        Whether to log the warning.

    Returns
    -------
    front, back : slice or ndarray of int
        Indices of the `n_rows` projections of each half turn.
    """
    stored = slice(n_rows), slice(first_behind, first_behind + n_rows)
    if angles is None:
        return stored
    table = table_of(name, angles, n_angles)
    if table.are_opposite(*stored):
        return stored
    try:
        return table.opposite(n_rows)
    except ValueError as error:
        if warns:
            logger.warning("%s needs a full turn; %s: its result is likely wrong", name, error)
        return stored
