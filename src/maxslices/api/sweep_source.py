"""What the sections of a sweep read: a few rows of a scan, and data in memory before a step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import ArraySpec
from ..io import HasDetectorStart, SideName, Source
from ..io.scans.array_source import ArrayScan
from ..io.scans.frame_source import FrameSource
from ..pipeline import ScanSpec


class StepInput(ArrayScan):
    """Data in memory that a step is given, with their angles, and flats and darks of their scan."""

    def __init__(
        self,
        data: NDArray[Any],
        scan: Source,
        rows: tuple[int, int],
        angles: NDArray[np.float32] | None,
    ) -> None:
        specs: dict[SideName, ArraySpec | None] = {"flats": scan.flats, "darks": scan.darks}
        sides: dict[str, NDArray[Any]] = {
            name: scan.read_side(name, 1, *rows)
            for name, spec in specs.items()
            if spec is not None and _fits(spec, data.shape, rows)
        }
        if angles is not None:  # fewer than the data have: those are no longer projections
            angles = angles[: data.shape[0]] if data.shape[0] <= len(angles) else None
        super().__init__(
            data,
            flats=sides.get("flats"),
            darks=sides.get("darks"),
            angles=angles,
            name=scan.name,
        )
        self.rows = rows
        first = scan.detector_start if isinstance(scan, HasDetectorStart) else (0, 0)
        self._detector_start = first[0] + rows[0], first[1]


def _fits(spec: ArraySpec, shape: tuple[int, ...], rows: tuple[int, int]) -> bool:
    """True if frames have the columns of the data, and their rows are those of the scan."""
    return spec.shape[2] == shape[2] and rows[1] - rows[0] == shape[1]


def some_rows(source: Source, rows: tuple[int, int]) -> Source:
    """Scan with some of its rows."""
    if isinstance(source, FrameSource):
        return source.with_rows(*rows)
    return StepInput(read_rows(source, rows), source, rows, source.angles)


def read_rows(source: Source, rows: tuple[int, int]) -> NDArray[Any]:
    """Read rows of all projections into memory."""
    spec = source.spec.with_slices(1, rows[1] - rows[0])
    out = np.empty(spec.shape, spec.dtype)
    source.read(1, *rows, out)
    return out


def spec_with_rows(scan: ScanSpec, n_rows: int, data: ArraySpec | None = None) -> ScanSpec:
    """Scan with fewer rows, or data of as many rows in memory with its flats and darks."""

    def cut(spec: ArraySpec | None) -> ArraySpec | None:
        if spec is None:
            return None
        if data is not None and (data.shape[2] != spec.shape[2] or data.shape[1] != n_rows):
            return None
        return ArraySpec((spec.shape[0], n_rows, spec.shape[2]), spec.dtype)

    return ScanSpec(
        scan.projections.with_slices(1, n_rows) if data is None else data,
        cut(scan.flats),
        cut(scan.darks),
        scan.has_angles and (data is None or data.shape[0] <= scan.projections.shape[0]),
        in_memory=scan.in_memory if data is None else True,
        name=scan.name,
    )
