"""Snapshots: the middle slice after each step of a run, as a TIFF each."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...pipeline import Pipeline
from ...planner import Plan
from ...system.disk_space import give_name, hidden_path, store_errors

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


@dataclass(slots=True)
class Snapshots:
    """Writes snapshots under hidden names, and gives them their names at the end."""

    folder: Path
    """Where they are written."""
    names: dict[int, str]
    """Index of a step -> name."""
    _named: list[Path] = field(default_factory=list)

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
            hidden_path(path).unlink(missing_ok=True)  # of a block that is tried again
            with hidden_path(path).open("xb") as file:
                tifffile.imwrite(file, np.ascontiguousarray(picture), photometric="minisblack")

    def finish(self) -> tuple[Path, ...]:
        """Give those that were written their names; their paths."""
        for name in self.names.values():
            path = self.folder / name
            if os.path.lexists(hidden_path(path)):
                with store_errors(path, 0):
                    give_name(path)
            if os.path.lexists(path):
                self._named.append(path)
        return tuple(self._named)

    def remove(self) -> None:
        """Remove all of them."""
        for name in self.names.values():
            hidden_path(self.folder / name).unlink(missing_ok=True)
        for path in self._named:
            path.unlink(missing_ok=True)
