"""The interface of a stack of frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import ArraySpec

IndexRange = tuple[int, int]
"""First index, and the index after the last."""
FrameIndices = NDArray[np.int64]
"""Increasing indices of frames."""


def consecutive_runs(indices: Sequence[int] | NDArray[Any]) -> tuple[IndexRange, ...]:
    """Group increasing indices into ranges of consecutive ones.

    Examples
    --------
    >>> consecutive_runs([0, 1, 2, 5, 7, 8])
    ((0, 3), (5, 6), (7, 9))
    """
    given = np.asarray(indices, np.int64)
    if not given.size:
        return ()
    gaps = np.flatnonzero(np.diff(given) != 1)
    firsts = given[np.concatenate(([0], gaps + 1))].tolist()
    lasts = given[np.concatenate((gaps, [given.size - 1]))].tolist()
    return tuple((first, last + 1) for first, last in zip(firsts, lasts, strict=True))


def as_slice(indices: FrameIndices) -> slice | FrameIndices:
    """Slice with the same items as increasing indices; the indices if they are not evenly spaced.

    Examples
    --------
    >>> as_slice(np.array([3, 5, 7]))
    slice(3, 8, 2)
    """
    step = int(indices[1] - indices[0]) if indices.size > 1 else 1
    if (np.diff(indices) == step).all():
        return slice(int(indices[0]), int(indices[-1]) + 1, step)
    return indices


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
    """A stack of frames that is read in parts."""

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

    def read(
        self, frames: FrameIndices, rows: IndexRange, columns: IndexRange, out: NDArray[Any]
    ) -> None:
        """Read some rows and columns of frames into `out`.

        Parameters
        ----------
        frames : ndarray of int64
            Increasing indices of the frames.
        rows, columns : (int, int)
            First index, and the index after the last.
        out : ndarray
            C-contiguous, of the native dtype.

        Raises
        ------
        SourceError
            If it cannot be read.
        """

    def close(self) -> None:
        """Close the file; a second call does nothing."""
