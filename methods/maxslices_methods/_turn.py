"""The part of a turn that the projections of a scan cover."""

from __future__ import annotations

import logging
import math

logger = logging.getLogger(__name__)
TOLERANCE = 0.05
"""Part by which a turn may be longer or shorter: with 170 degrees in place of 180 the axis that
`find_center_vo` found was 0.35 columns off, of 48."""


def warn_of_turn(name: str, first: float, last: float, wanted: int) -> None:
    """Log a warning if a scan covers another part of a turn than a method is for.

    Parameters
    ----------
    name : str
        The method.
    first, last : float
        Angles of the first and last projection, in radians.
    wanted : int
        Degrees that the scan should cover.
    """
    found = abs(math.degrees(last - first))
    if abs(found - wanted) > TOLERANCE * wanted:
        logger.warning(
            "%s is for projections from 0 to %d degrees, and the last is %.4g degrees from the "
            "first: its result is likely wrong; choose that part with --angles, or give the angles",
            name,
            wanted,
            found,
        )
