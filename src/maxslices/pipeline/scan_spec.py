"""A scan without its data, as planning needs it."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.arrays import ArraySpec


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
    dummies: tuple[str, ...] = ()
    """Which of flats and darks are made up."""
    in_memory: bool = False
    """Whether blocks can be used, or copied to the device, from where they lie."""
    reads_rows: bool = True
    """Whether some rows of all projections are read without the rest of these."""
    name: str = "array"
    """For messages and the plan's title."""

    def says_of_frames(self, taken: set[str]) -> tuple[str, ...]:
        """Notes on flats and darks that are absent or made up, as far as they are in `taken`."""
        made = {"flats": "ones", "darks": "zeros"}
        has = {"flats": self.flats, "darks": self.darks}
        absent = (side for side in made if side in taken and has[side] is None)
        return (
            *(f"{self.name} has no {side}: methods that can do so work without" for side in absent),
            *self._says_of_dummies(taken),
        )

    def _says_of_dummies(self, taken: set[str]) -> tuple[str, ...]:
        made = {"flats": "ones", "darks": "zeros"}
        return tuple(
            f"{self.name} has no {side}, or they are to be ignored: a frame of {made[side]} stands "
            "in their place, as in httomo"
            for side in self.dummies
            if side in taken
        )

    def frames(self, names: set[str]) -> list[ArraySpec]:
        """Flats and darks that are in `names` and that the scan has."""
        sides = {"flats": self.flats, "darks": self.darks}
        return [spec for name, spec in sides.items() if spec is not None and name in names]
