"""Interfaces of sources, and what sources, stores and sinks have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Literal, Protocol, Self, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import ArraySpec
from .results.result_info import PixelSize

SideName = Literal["flats", "darks"]
"""Flats (beam without sample) or darks (no beam)."""
SIDE_NAMES: tuple[SideName, ...] = get_args(SideName)
"""Both."""
FlatWeights = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Weights of flats as the product of two matrices: (projections, groups) and (groups, flats)."""


class Closing(ABC):
    """A context manager that closes itself."""

    @abstractmethod
    def close(self) -> None:
        """Close it; a second call has no effect."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


@runtime_checkable
class SupportsWindow(Protocol):
    """Slices that are in host memory: used there, or copied from or to by a device itself."""

    def window(self, slice_dim: int, start: int, stop: int) -> NDArray[Any] | None:
        """View of slices, which need not be contiguous.

        Parameters
        ----------
        slice_dim : int
            0 for projections, 1 for sinograms.
        start, stop : int
            Slices of the view, `stop` excluded.

        Returns
        -------
        ndarray or None
            Memory of the slices itself, with gaps between the rows of several projections
            along dim 1; None where the slices are not in memory.
        """


class Source(Closing):
    """A scan that is read block by block.

    Axes are (angles, detector_y, detector_x). Darks, flats and frames marked invalid are
    not part of the data. A file is checked when the source is opened, except for what only
    reading can show (a damaged chunk, a missing codec).

    A class of your own has `name`, `spec`, `read`, `read_side` and `close`, and of the rest what
    differs from the defaults here.
    """

    name: str
    """Name of the scan in messages: the file, and the data set in it."""
    spec: ArraySpec
    """Shape and native dtype of the projections."""
    angles: NDArray[np.float32] | None = None
    """Angle of each projection in radians; None if the scan has none."""
    pixel_size: PixelSize | None = None
    """Size of a pixel at the sample; None if it is not known."""
    detector_start: tuple[int, int] = (0, 0)
    """First row and first column of the detector that are read."""
    dummies: tuple[SideName, ...] = ()
    """Which of flats and darks are made up: one frame of ones, or of zeros."""

    @property
    def reads_rows(self) -> bool:
        """True if some rows of all projections are read without the rest of these."""
        return False

    @property
    def flats(self) -> ArraySpec | None:
        """Shape (frames, detector_y, detector_x) and dtype of the flats; None without any."""
        return None

    @property
    def darks(self) -> ArraySpec | None:
        """Shape (frames, detector_y, detector_x) and dtype of the darks; None without any."""
        return None

    @abstractmethod
    def read(self, slice_dim: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read slices `start` to `stop` (excluded) along `slice_dim` (0 or 1) into `out`.

        Parameters
        ----------
        slice_dim : int
            0 for projections, 1 for sinograms.
        start, stop : int
            Slices to read.
        out : ndarray
            C-contiguous, of the block's shape and of the source's dtype.

        Raises
        ------
        SourceError
            If the file cannot be read.
        """

    @abstractmethod
    def read_side(self, name: SideName, slice_dim: int, start: int, stop: int) -> NDArray[Any]:
        """Read the flats or darks for a block.

        Parameters
        ----------
        name : {"flats", "darks"}
            Which stack.
        slice_dim : int
            0 reads the whole stack, whatever `start` and `stop`; 1 the rows `start` to
            `stop` of each frame.
        start, stop : int
            Slices of the block.

        Returns
        -------
        ndarray
            Shape (frames, detector_y or ``stop - start``, detector_x).

        Raises
        ------
        SourceError
            If there are none, or the file cannot be read.
        """

    def window(self, slice_dim: int, start: int, stop: int) -> NDArray[Any] | None:
        """View of slices; see `SupportsWindow.window`."""
        return None

    def side_window(
        self, name: SideName, slice_dim: int, start: int, stop: int
    ) -> NDArray[Any] | None:
        """View of the slices that `read_side` reads; None where they are not in memory.

        Read into other memory first, they make minus_log between pinned arrays take 16 % longer
        (H200, 2026-11-22).
        """
        return None

    def flat_weights(self) -> FlatWeights | None:
        """Weights of the flats for each projection; None where their mean serves all."""
        return None

    def frame_warnings(self, sides: Iterable[str]) -> list[str]:
        """What is wrong with flats or darks, as far as they are in `sides`."""
        return []

    def check_unchanged(self) -> None:
        """Check that the files are those that were opened: other programs may write to them.

        Raises
        ------
        SourceError
            Naming a file that was removed, replaced, cut or changed.
        """
