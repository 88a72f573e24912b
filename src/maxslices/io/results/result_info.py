"""What a result is, beside its numbers: its axes, pixel size and how it was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from ...core.arrays import ArraySpec

SCAN_AXES, VOLUME_AXES = ("rotation_angle", "detector_y", "detector_x"), ("z", "y", "x")
"""Axes of results in files, of data before and after a reconstruction."""

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
"""Subject of a scan's fact -> its path in the entry, as NXtomo and nxtomo have it."""
_TEXT_CHARACTERS = 2000
"""Longest text of facts in a TIFF: its header has 4096 bytes of disk space."""


@dataclass(frozen=True, slots=True)
class PixelSize:
    """Size of a detector pixel, and so of a voxel of a parallel beam."""

    row_um: float
    """Distance of rows, in micrometres."""
    column_um: float
    """Distance of columns, in micrometres."""
    where: str
    """Where it is from: paths in the scan's file, or "given"."""


@dataclass(frozen=True, slots=True)
class ScanFact:
    """One value that a scan's file stores next to the frames."""

    subject: str
    """What it is: "energy", "sample", ..."""
    value: str | float | int | bool
    """The value as stored."""
    unit: str
    """Its unit as stored; empty without one."""
    where: str
    """Path in the scan's file."""

    def __str__(self) -> str:
        is_float = isinstance(self.value, float)
        text = f"{self.value:.7g}" if is_float else str(self.value)
        return f"{text} {self.unit}".strip()


@dataclass(frozen=True, slots=True)
class ProcessNote:
    """One step that a result went through."""

    method: str
    """Full name of the method."""
    version: str
    """Package of the method, with its version."""
    parameters: Mapping[str, Any]
    """All parameters; those that are found during the run as the text of their reference."""


@dataclass(frozen=True, slots=True)
class ResultInfo:
    """What a result is."""

    is_volume: bool = False
    """Whether it is a reconstruction (y, z, x), and not frames (angles, detector_y, detector_x)."""
    angles: NDArray[Any] | None = None
    """Angle of each projection in radians, if the first axis is of angles."""
    pixel_size: PixelSize | None = None
    """Size of a pixel; None if it is not known."""
    first_pixel: tuple[int | None, int | None] = (0, 0)
    """First row and column of the detector that were read; None where rows, or columns, are no
    longer the detector's."""
    scan: str = ""
    """Scan that it is made of."""
    facts: tuple[ScanFact, ...] = ()
    """What the scan's file says of sample, beam and detector."""
    date: str = ""
    """When the run began, in ISO 8601."""
    program: str = "maxslices"
    """Program, with its version."""
    steps: tuple[ProcessNote, ...] = field(default=())
    """The steps up to the result, in order."""

    @property
    def carried_facts(self) -> dict[str, ScanFact]:
        """Facts of the scan that go into results: path -> fact; without those that differ."""
        subjects = [fact.subject for fact in self.facts]
        return {
            _FACT_PATHS[fact.subject]: fact
            for fact in self.facts
            if fact.subject in _FACT_PATHS and subjects.count(fact.subject) == 1
        }

    @property
    def facts_text(self) -> str:
        """Facts of the scan as ASCII text for images, a line each; empty without any."""
        lines = "\n".join(f"{fact.subject}: {fact}" for fact in self.carried_facts.values())
        return lines.encode("ascii", "backslashreplace").decode("ascii")[:_TEXT_CHARACTERS]

    def file_shape(self, spec: ArraySpec) -> tuple[int, int, int]:
        """Shape in a file: slices come first, so that viewers show slices.

        Examples
        --------
        >>> spec = ArraySpec((240, 24, 241), "float32")  # y, z, x: as methods see it
        >>> ResultInfo(is_volume=True).file_shape(spec), ResultInfo().file_shape(spec)
        ((24, 240, 241), (240, 24, 241))
        """
        first, second, third = spec.shape
        return (second, first, third) if self.is_volume else (first, second, third)

    def file_axis(self, dim: int) -> int:
        """Axis in a file of a dim of the array, 0 or 1."""
        return 1 - dim if self.is_volume else dim

    @property
    def axes(self) -> tuple[str, str, str]:
        """Names of the axes in a file; without angles the first one of a scan is of frames."""
        if self.is_volume:
            return VOLUME_AXES
        return SCAN_AXES if self.angles is not None else ("frame", *SCAN_AXES[1:])

    def slice_name(self, axis: int, index: int) -> str:
        """Name of a slice along an axis of a file: where it is the detector's row, that row.

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
        """Distance along an axis of a file in micrometres; None if it has none or is not known."""
        if self.pixel_size is None or axis in ("frame", SCAN_AXES[0]):
            return None
        is_row = axis in ("z", "detector_y")
        return self.pixel_size.row_um if is_row else self.pixel_size.column_um
