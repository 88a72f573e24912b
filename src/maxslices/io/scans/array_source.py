"""A scan given as arrays from Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..check_arrays import check_angles
from ..frames.array_frames import ArrayFrames
from ..frames.selection import Selection
from .frame_source import FrameSource


class ArraySource(FrameSource):
    """A scan given as arrays from Python.

    Parameters
    ----------
    data : ndarray
        Projections (angles, detector_y, detector_x); not copied.
    flats, darks : ndarray, optional
        Frames (n, detector_y, detector_x), or a single one (detector_y, detector_x).
    angles : array-like, optional
        Angle of each projection in radians.
    name : str, optional
        Name of the scan in messages.

    Raises
    ------
    SourceError
        If shapes, dtypes or the number of angles do not fit each other.
    """

    def __init__(
        self,
        data: NDArray[Any],
        *,
        flats: NDArray[Any] | None = None,
        darks: NDArray[Any] | None = None,
        angles: NDArray[Any] | Sequence[float] | None = None,
        name: str = "array",
    ) -> None:
        super().__init__(
            name,
            Selection.of(ArrayFrames(name, data)),
            flats=_side(name, "flats", flats),
            darks=_side(name, "darks", darks),
            angles=None if angles is None else check_angles(name, angles),
        )


def _side(name: str, side: str, array: NDArray[Any] | None) -> Selection | None:
    if array is None:
        return None
    stack = array[np.newaxis] if array.ndim == 2 else array
    return Selection.of(ArrayFrames(f"{name} {side}", stack))
