"""Projections by angle, for methods that compare a projection with others."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maxslices.core.angles import HALF_TURN, TOLERANCE, AngleTable, angle_table

from .namespaces import to_host

logger = logging.getLogger(__name__)


def table_of(name: str, angles: Any, n_angles: int) -> AngleTable:
    """Table of the angles of a method's data.

    Raises
    ------
    ValueError
        If there is not one angle for each projection.
    """
    angles = np.asarray(to_host(angles))
    if angles.shape != (n_angles,):
        raise ValueError(
            f"{name} needs one angle for each of the {n_angles} projections; angles has shape "
            f"{angles.shape}"
        )
    return angle_table(angles)


def order_by_angle(name: str, angles: Any, n_angles: int) -> NDArray[np.intp]:
    """Projections in the order of their angles; as they are stored if there are no angles."""
    return np.arange(n_angles) if angles is None else table_of(name, angles, n_angles).order


def is_stored_order(order: NDArray[np.intp]) -> bool:
    """True if an order is that in which projections are stored."""
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
    """Projections of the front and of the back, half a turn apart.

    Where projections are stored in order over a full turn, these are the first `n_rows` and those
    from `first_behind` on, as in Algotom and httomolibgpu. Otherwise they are paired by angle.
    Without partners a warning is logged, and projections are paired as they are stored.

    Parameters
    ----------
    name : str
        The method, for the warning.
    angles : array or None
        Angles in radians; None pairs projections as they are stored.
    n_angles : int
        Number of projections.
    n_rows : int
        Number of pairs.
    first_behind : int
        Projection that is the partner of the first.
    warns : bool
        Whether the warning is logged.
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
