"""Options of a loader: the parts of a scan and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError

AXES = ("angles", "detector_y", "detector_x")
"""Names of the axes of a scan in a preview."""


@dataclass(frozen=True, slots=True)
class AngleRange:
    """Equally spaced angles."""

    start: float
    """First angle in degrees."""
    stop: float
    """Last angle in degrees, included."""
    count: int
    """Number of angles; compared with the scan before they are computed."""

    def degrees(self) -> NDArray[np.float64]:
        """The angles in degrees."""
        return np.linspace(self.start, self.stop, self.count)


@dataclass(frozen=True, slots=True)
class AngleFile:
    """Angles in another file than the scan's."""

    file: Path
    """An HDF5 file, or text with angles in degrees."""
    data_path: str | None = None
    """Data set in an HDF5 file."""


@dataclass(frozen=True, slots=True)
class SideData:
    """Flats or darks that are not searched for with the projections."""

    file: Path | None
    """A file, or a folder of TIFFs; None for the file of the scan."""
    data_path: str = "auto"
    """Data set in an HDF5 file; ``"auto"``: what its layout marks as flats or darks."""
    image_key_path: str | None = None
    """Image key that selects the frames; None selects all frames of a `data_path`."""


@dataclass(frozen=True, slots=True)
class AxisIndex:
    """An index relative to the beginning, middle or end of an axis, clipped to the axis."""

    keyword: str
    """Origin of the offset: "begin", "mid" or "end"."""
    offset: int = 0
    """Indices after the origin; may be negative."""

    def index(self, length: int) -> int:
        """Index along an axis of `length`."""
        mid = sum(middle_bounds(length)) // 2
        place = {"begin": 0, "mid": mid, "end": length}[self.keyword]
        return min(max(0, place + self.offset), length)


def middle_bounds(length: int) -> tuple[int, int]:
    """Compute (start, stop) of the middle of an axis, as httomo's ``mid`` means it.

    Three indices if the length is even, two if it is odd; all of 2 or 3.

    Examples
    --------
    >>> middle_bounds(10), middle_bounds(11), middle_bounds(3)
    ((3, 6), (4, 6), (0, 3))
    """
    half = length // 2
    if half <= 1:
        return 0, length
    return (half - 1 if length % 2 else half - 2), half + 1


Bound = int | AxisIndex | None
"""Start or stop of a part; None for that of the axis."""
Part = tuple[Bound, Bound] | Literal["mid"]
"""Part of an axis: (start, stop), or its middle (`middle_bounds`)."""


@dataclass(frozen=True, slots=True)
class Preview:
    """A part of a scan: (start, stop) along each axis, stop excluded."""

    angles: tuple[Bound, Bound] = (None, None)
    """Frames as they are stored, darks and flats among the projections included; the projections
    among them are read."""
    detector_y: Part = (None, None)
    """Detector rows."""
    detector_x: Part = (None, None)
    """Detector columns."""
    angle_step: int = 1
    """Every how many of the projections among `angles` are read."""

    def bounds(self, axis: int, length: int, name: str) -> tuple[int, int]:
        """Compute (start, stop) along an axis of `length`.

        Raises
        ------
        SourceError
            If it is empty or reaches beyond the scan `name`.
        """
        ends: Part = (self.angles, self.detector_y, self.detector_x)[axis]
        if ends == "mid":
            return middle_bounds(length)
        start, stop = (end.index(length) if isinstance(end, AxisIndex) else end for end in ends)
        start, stop = 0 if start is None else start, length if stop is None else stop
        if not 0 <= start < stop <= length:
            raise SourceError(
                f"{name}: preview {AXES[axis]} {start}:{stop} is not within the scan's "
                f"{length}; give 0 <= start < stop <= {length}"
            )
        return start, stop


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """Parts of a scan that are not in its file, or not at a usual place.

    The fields are the parameters of httomo's ``standard_tomo`` loader.
    """

    data_path: str = "auto"
    """Data set of the frames in an HDF5 file; ``"auto"``: search for it."""
    image_key_path: str | None = "auto"
    """Data set with the kind of each frame; ``"auto"``: search for it; None: projections only."""
    rotation_angles: str | AngleRange | AngleFile | Sequence[float] | NDArray[Any] = "auto"
    """``"auto"``, the path of a data set, a file, a range, or a list in degrees. They have an angle
    for each projection, for each of the preview, or for each frame."""
    flats: SideData | Literal["auto", "ignore"] = "auto"
    """Flats; ``"auto"``: those found with the projections; ``"ignore"``: a frame of ones."""
    darks: SideData | Literal["auto", "ignore"] = "auto"
    """Darks; ``"auto"``: those found with the projections; ``"ignore"``: a frame of zeros."""
    dummies: bool = False
    """Whether flats and darks that are not found are replaced as those to ignore are."""
    preview: Preview = Preview()
    """Part of the scan to read."""
    allow_missing_frames: bool = False
    """Whether frames that were never written are read as the fill value. Whoever runs a pipeline
    says so, not the pipeline's file."""
