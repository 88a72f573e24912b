"""Metadata of a result: its axes, pixel size and steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from ...core.arrays import ArraySpec

SCAN_AXES, VOLUME_AXES = ("rotation_angle", "detector_y", "detector_x"), ("z", "y", "x")
"""Axes of results in files, before and after a reconstruction."""

_FACT_PATHS = {
    "title": "title",
    "started": "start_time",
    "ended": "end_time",
    "sample": "sample/name",
    "description": "sample/description",
    "propagation distance": "sample/propagation_distance",
    "instrument": "instrument/name",
    "source": "instrument/source/name",
    "beamline": "instrument/source/beamline",
    "energy": "instrument/beam/incident_energy",
    "wavelength": "instrument/beam/incident_wavelength",
    "distance": "instrument/detector/distance",
    "exposure": "instrument/detector/count_time",
    "magnification": "instrument/detector/magnification",
}
"""Subject of a scan's fact -> its path in the entry, as in NXtomo and the package nxtomo."""
_TEXT_CHARACTERS = 2000
"""Longest text of facts in a TIFF."""


@dataclass(frozen=True, slots=True)
class PixelSize:
    """Size of a detector pixel, which is that of a voxel in a parallel beam."""

    row_um: float
    """Distance of rows, in micrometres."""
    column_um: float
    """Distance of columns, in micrometres."""
    where: str
    """Its origin: paths in the scan's file, or "given"."""


@dataclass(frozen=True, slots=True)
class ScanFact:
    """A value stored next to the frames in a scan's file."""

    subject: str
    """Its subject, such as "energy" or "sample"."""
    value: str | float | int | bool
    """The stored value."""
    unit: str
    """The stored unit; empty without one."""
    where: str
    """Path in the scan's file."""

    def __str__(self) -> str:
        is_float = isinstance(self.value, float)
        text = f"{self.value:.7g}" if is_float else str(self.value)
        return f"{text} {self.unit}".strip()


@dataclass(frozen=True, slots=True)
class ProcessNote:
    """A step that produced a result."""

    method: str
    """Full name of the method."""
    version: str
    """Package of the method, with its version."""
    parameters: Mapping[str, Any]
    """All parameters. Those computed during the run are the text of their reference."""


@dataclass(frozen=True, slots=True)
class ResultInfo:
    """Metadata of a result."""

    is_volume: bool = False
    """Whether it is a reconstruction (y, z, x), and not frames (angles, detector_y, detector_x)."""
    angles: NDArray[Any] | None = None
    """Angle of each projection in radians, if the first axis is of angles."""
    pixel_size: PixelSize | None = None
    """Size of a pixel; None if unknown."""
    first_pixel: tuple[int | None, int | None] = (0, 0)
    """First detector row and column that were read; None if rows or columns no longer correspond to
    those of the detector."""
    scan: str = ""
    """The scan."""
    facts: tuple[ScanFact, ...] = ()
    """Facts about sample, beam and detector in the scan's file."""
    date: str = ""
    """Start of the run, in ISO 8601."""
    program: str = "maxslices"
    """Program and version."""
    steps: tuple[ProcessNote, ...] = field(default=())
    """The steps up to the result, in order."""

    @property
    def carried_facts(self) -> dict[str, ScanFact]:
        """Path in the result -> fact of the scan, without facts that have several values."""
        subjects = [fact.subject for fact in self.facts]
        return {
            _FACT_PATHS[fact.subject]: fact
            for fact in self.facts
            if fact.subject in _FACT_PATHS and subjects.count(fact.subject) == 1
        }

    @property
    def facts_text(self) -> str:
        """Facts of the scan as ASCII text for images, one on each line."""
        lines = "\n".join(f"{fact.subject}: {fact}" for fact in self.carried_facts.values())
        return lines.encode("ascii", "backslashreplace").decode("ascii")[:_TEXT_CHARACTERS]

    def file_shape(self, spec: ArraySpec) -> tuple[int, int, int]:
        """Shape in a file, with slices along the first axis for viewers.

        Examples
        --------
        >>> spec = ArraySpec((240, 24, 241), "float32")  # y, z, x in methods
        >>> ResultInfo(is_volume=True).file_shape(spec), ResultInfo().file_shape(spec)
        ((24, 240, 241), (240, 24, 241))
        """
        first, second, third = spec.shape
        return (second, first, third) if self.is_volume else (first, second, third)

    def file_axis(self, dim: int) -> int:
        """Axis in a file of dim 0 or 1 of the array."""
        return 1 - dim if self.is_volume else dim

    @property
    def axes(self) -> tuple[str, str, str]:
        """Names of the axes in a file; "frame" replaces the first of a scan without angles."""
        if self.is_volume:
            return VOLUME_AXES
        return SCAN_AXES if self.angles is not None else ("frame", *SCAN_AXES[1:])

    def slice_name(self, axis: int, index: int) -> str:
        """Name of a slice along an axis of a file, such as the number of its detector row.

        Examples
        --------
        >>> ResultInfo(is_volume=True, first_pixel=(40, 0)).slice_name(0, 2)
        'row 42'
        """
        first_row = self.first_pixel[0]
        if self.axes[axis] in ("z", "detector_y") and first_row is not None:
            return f"row {first_row + index}"
        return f"{'projection' if self.axes[axis] == SCAN_AXES[0] else 'slice'} {index}"

    def pixel_um(self, axis: str) -> float | None:
        """Pixel distance along an axis of a file in micrometres; None if unknown."""
        if self.pixel_size is None or axis in ("frame", SCAN_AXES[0]):
            return None
        is_row = axis in ("z", "detector_y")
        return self.pixel_size.row_um if is_row else self.pixel_size.column_um
