"""A subset of the frames of a stack, cropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from .array_frames import ArrayFrames
from .frames import FrameIndices, Frames, IndexRange, consecutive_runs


@dataclass(frozen=True, slots=True)
class Selection:
    """A subset of the frames of a stack, each cropped to the same rows and columns."""

    frames: Frames
    """The stack."""
    runs: tuple[IndexRange, ...]
    """Ranges of consecutive frames, in order; at least one frame."""
    rows: IndexRange
    """Rows of each frame."""
    columns: IndexRange
    """Columns of each frame."""

    @classmethod
    def of(cls, frames: Frames, indices: Sequence[int] | NDArray[Any] | None = None) -> Selection:
        """Select whole frames by index; None selects all."""
        n_frames, n_rows, n_columns = frames.spec.shape
        runs = ((0, n_frames),) if indices is None else consecutive_runs(indices)
        return cls(frames, runs, (0, n_rows), (0, n_columns))

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the selection."""
        n_frames = sum(stop - start for start, stop in self.runs)
        shape = (n_frames, self.rows[1] - self.rows[0], self.columns[1] - self.columns[0])
        return ArraySpec(shape, self.frames.spec.dtype)

    @property
    def array(self) -> NDArray[Any] | None:
        """View of the selection, which may have gaps; None unless the frames are one array."""
        whole = self.frames.array if isinstance(self.frames, ArrayFrames) else None
        if whole is None or len(self.runs) != 1 or whole.dtype != self.frames.spec.dtype:
            return None
        return whole[slice(*self.runs[0]), slice(*self.rows), slice(*self.columns)]

    @property
    def indices(self) -> FrameIndices:
        """Index in the stack of each selected frame."""
        return np.concatenate([np.arange(start, stop) for start, stop in self.runs])

    def n_before(self, frame: int) -> int:
        """Number of selected frames before a frame of the stack."""
        return sum(min(stop, max(start, frame)) - start for start, stop in self.runs)

    def part(self, frames: IndexRange) -> Selection:
        """Select a range of the selected frames."""
        runs, offset = [], 0
        for start, stop in self.runs:
            first = start + max(frames[0] - offset, 0)
            last = min(stop, start + frames[1] - offset)
            if first < last:
                runs.append((first, last))
            offset += stop - start
        return Selection(self.frames, tuple(runs), self.rows, self.columns)

    def every(self, step: int) -> Selection:
        """Select every `step`-th of the selected frames, the first among them."""
        if step == 1:
            return self
        return Selection(
            self.frames, consecutive_runs(self.indices[::step]), self.rows, self.columns
        )

    def crop(self, rows: IndexRange, columns: IndexRange) -> Selection:
        """Crop each frame further; rows and columns count from the present crop."""
        (top, _), (left, _) = self.rows, self.columns
        return Selection(
            self.frames,
            self.runs,
            (top + rows[0], top + rows[1]),
            (left + columns[0], left + columns[1]),
        )

    def read(self, frames: IndexRange, rows: IndexRange, out: NDArray[Any]) -> None:
        """Read some rows of a range of the selected frames into `out`."""
        box_rows = (self.rows[0] + rows[0], self.rows[0] + rows[1])
        self.frames.read(self.part(frames).indices, box_rows, self.columns, out)
