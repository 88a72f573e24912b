"""A scan without its data, as planning needs it."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.arrays import ArraySpec


@dataclass(frozen=True, slots=True)
class ScanSpec:
    """Shapes and dtypes of a scan, and what is known beside."""

    projections: ArraySpec
    """Axes (angles, detector_y, detector_x)."""
    flats: ArraySpec | None = None
    """Shape (frames, detector_y, detector_x) and dtype of the flats, if there are any."""
    darks: ArraySpec | None = None
    """Shape and dtype of the darks, if there are any."""
    has_angles: bool = True
    """Whether the angle of each projection is known."""
    in_memory: bool = False
    """Whether blocks can be used, or copied to the device, from where they lie."""
    name: str = "array"
    """For messages and the plan's title."""

    def frames(self, names: set[str]) -> list[ArraySpec]:
        """Flats and darks that are in `names` and that the scan has."""
        sides = {"flats": self.flats, "darks": self.darks}
        return [spec for name, spec in sides.items() if spec is not None and name in names]
