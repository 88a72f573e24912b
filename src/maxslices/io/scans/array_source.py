"""A scan in arrays: projections with their angles, flats, darks and pixel size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError
from ..access import SideName
from ..check_arrays import check_angles
from ..frames.frames import ArrayFrames, Selection
from .facts import parse_pixel_size
from .frame_source import FrameSource
from .loader import LoaderOptions
from .open_source import plain_source


class ArrayScan(FrameSource):
    """A scan in arrays: projections with their angles, flats, darks and pixel size.

    Parameters
    ----------
    data : ndarray
        Projections (angles, detector_y, detector_x) of any real dtype; not copied.
    flats, darks : ndarray, optional
        Frames (n, detector_y, detector_x), or a single one (detector_y, detector_x).
    flats_after : ndarray, optional
        Flats that were taken after the projections, where `flats` were taken before them. They are
        interpolated in time if they differ (see `dark_flat_field_correction`).
    angles : array-like, optional
        Angle of each projection in radians.
    pixel_size : str or float, optional
        Size of a pixel, such as ``"3.25um"``; a number is in micrometres.
    name : str, optional
        Name of the scan in messages.

    Raises
    ------
    SourceError
        If `data` is not an array, or shapes, dtypes or the number of angles do not fit.
    UsageError
        If the pixel size is not a length.

    Examples
    --------
    >>> import numpy as np
    >>> scan = ArrayScan(np.ones((91, 4, 64), np.uint16), angles=np.linspace(0, np.pi, 91))
    >>> print(scan.spec)
    91x4x64 uint16
    """

    def __init__(
        self,
        data: NDArray[Any],
        *,
        flats: NDArray[Any] | None = None,
        darks: NDArray[Any] | None = None,
        flats_after: NDArray[Any] | None = None,
        angles: NDArray[Any] | Sequence[float] | None = None,
        pixel_size: str | float | None = None,
        name: str = "array",
    ) -> None:
        size = None if pixel_size is None else parse_pixel_size(pixel_size)
        self.data = data
        """The projections."""
        self._given = {"flats": flats, "darks": darks, "flats_after": flats_after}
        self._angles = None if angles is None else check_angles(name, angles)
        super().__init__(
            name,
            Selection.of(ArrayFrames(name, _array(name, data))),
            sides={"flats": _side(name, "flats", flats), "darks": _side(name, "darks", darks)},
            flats_after=_side(name, "flats_after", flats_after),
            angles=self._angles,
        )
        self.pixel_size = size

    def with_options(self, options: LoaderOptions) -> FrameSource:
        """The same scan, read as a pipeline's loader says.

        What the loader gives of angles, flats and darks takes the place of the scan's own.

        Raises
        ------
        SourceError
            If a part of it is not within the scan, or the loader names paths in an HDF5 file.
        """
        frames = Selection.of(ArrayFrames(self.name, self.data))
        sides: dict[SideName, Selection | None] = {
            "flats": _side(self.name, "flats", self._given["flats"]),
            "darks": _side(self.name, "darks", self._given["darks"]),
        }
        after = _side(self.name, "flats_after", self._given["flats_after"])
        return plain_source(
            self.name, frames, options, sides=sides, flats_after=after, angles=self._angles
        )


def _side(name: str, side: str, given: NDArray[Any] | None) -> Selection | None:
    if given is None:
        return None
    array = _array(f"{name} {side}", given)
    return Selection.of(ArrayFrames(f"{name} {side}", array[None] if array.ndim == 2 else array))


def _array(name: str, given: object) -> NDArray[Any]:
    if not isinstance(given, np.ndarray):
        raise SourceError(
            f"{name}: {type(given).__name__} is not a NumPy array: give numpy.asarray of it"
        )
    return given
