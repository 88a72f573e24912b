"""The interface of a stack of frames."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from ..model.arrays import ArraySpec

IndexRange = tuple[int, int]
"""First index, and the index after the last."""


class Frames(Protocol):
    """A stack of frames that is read in boxes."""

    @property
    def name(self) -> str:
        """Name of the stack in messages."""
        ...

    @property
    def spec(self) -> ArraySpec:
        """Shape (frames, rows, columns) and native dtype."""
        ...

    def read_box(
        self, frames: IndexRange, rows: IndexRange, columns: IndexRange, out: NDArray[Any]
    ) -> None:
        """Read a box into `out`, C-contiguous, of the box's shape and the native dtype.

        Raises
        ------
        SourceError
            If it cannot be read.
        """
        ...

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        ...
