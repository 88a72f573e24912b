"""The interface of a stack of frames."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import ArraySpec

IndexRange = tuple[int, int]
"""First index, and the index after the last."""


@dataclass(slots=True)
class FramesWritten:
    """Which frames of a stack were written, and by which files."""

    missing: NDArray[np.bool_] | None = None
    """True for each frame that was not written whole; None if all were."""
    gaps: float = 0.0
    """Share of the pixels of every frame that no file holds."""
    files: set[Path] = field(default_factory=set)
    """Files that the frames are in, beside the one that was opened."""
    absent: set[str] = field(default_factory=set)
    """Files, or data sets in files, that are not there."""
    short: set[str] = field(default_factory=set)
    """Data sets that hold fewer frames than are mapped, and how many."""


class Frames(Protocol):
    """A stack of frames that is read in boxes."""

    @property
    def name(self) -> str:
        """Name of the stack in messages."""

    @property
    def spec(self) -> ArraySpec:
        """Shape (frames, rows, columns) and native dtype."""

    @property
    def files(self) -> Iterable[Path]:
        """Files that the frames are read from; none for an array."""

    @property
    def reads_rows(self) -> bool:
        """True if some rows of a frame are read without the rest of it."""

    def written(self, *, allow_missing: bool) -> FramesWritten:
        """Find which frames were written; see `unwritten_frames.frames_written`."""

    def read_box(
        self, frames: IndexRange, rows: IndexRange, columns: IndexRange, out: NDArray[Any]
    ) -> None:
        """Read a box into `out`, C-contiguous, of the box's shape and the native dtype.

        Raises
        ------
        SourceError
            If it cannot be read.
        """

    def close(self) -> None:
        """Close the file; a second call does nothing."""
