"""Snapshots: the middle slice after each step of a run, as a TIFF each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...pipeline import Pipeline
from ...planner import Plan
from ...system.disk_space import store_errors

PREFIX = "snapshot_"
"""How the names of snapshots begin."""


def snapshot_names(pipeline: Pipeline) -> dict[int, str]:
    """Name of the snapshot after each step that makes data, by the step's index."""
    return {
        index: f"{PREFIX}{index + 1:02d}_{step.meta.name}.tif"
        for index, step in enumerate(pipeline.steps)
        if not step.meta.side_results
    }


def snapshot_bytes(plan: Plan) -> int:
    """Most memory that a snapshot takes beside the data: the slice, and a contiguous copy."""
    return 2 * max(
        step.output.with_slices(section.slice_dim, 1).nbytes
        for section in plan.sections
        for step in section.steps
    )


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Writes snapshots."""

    folder: Path
    """Where they are written."""
    names: dict[int, str]
    """Index of a step -> name."""

    def write(self, index: int, picture: NDArray[Any]) -> None:
        """Write the snapshot after a step.

        Raises
        ------
        StoreError
            If the disk is full or out of reach.
        """
        import tifffile

        path = self.folder / self.names[index]
        with store_errors(path, picture.nbytes):
            path.unlink(missing_ok=True)  # of a block that is tried again
            with path.open("xb") as file:
                tifffile.imwrite(file, np.ascontiguousarray(picture), photometric="minisblack")
