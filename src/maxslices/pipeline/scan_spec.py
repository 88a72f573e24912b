"""What a plan needs to know of a scan."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.arrays import ArraySpec


@dataclass(frozen=True, slots=True)
class ScanSpec:
    """A scan without its data."""

    projections: ArraySpec
    """Axes (angles, detector_y, detector_x)."""
    flats: ArraySpec | None = None
    """Shape (frames, detector_y, detector_x) and dtype of the flats, if there are any."""
    darks: ArraySpec | None = None
    """The same of the darks."""
    has_angles: bool = True
    """Whether the angle of each projection is known."""
    in_memory: bool = False
    """Whether blocks can be used, or copied to the device, from where they are."""
    name: str = "array"
    """For messages and the plan's title."""

    def frames(self, names: set[str]) -> list[ArraySpec]:
        """Return those of flats and darks that there are and that `names` has."""
        sides = {"flats": self.flats, "darks": self.darks}
        return [spec for name, spec in sides.items() if spec is not None and name in names]
