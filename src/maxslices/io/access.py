"""Interfaces of sources, and base classes of sources, stores and sinks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Literal, Protocol, Self, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import ArraySpec
from .results.result_info import PixelSize

SideName = Literal["flats", "darks"]
"""Flats (beam without sample) or darks (without beam)."""
SIDE_NAMES: tuple[SideName, ...] = get_args(SideName)
"""Both names."""
FlatWeights = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Weights of flats, as two matrices whose product is taken: (projections, groups) and (groups,
flats)."""


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
    """Slices in host memory, which are used in place or copied directly by a device."""

    def window(self, slice_dim: int, start: int, stop: int) -> NDArray[Any] | None:
        """View of slices, possibly not contiguous.

        Parameters
        ----------
        slice_dim : int
            0 for projections, 1 for sinograms.
        start, stop : int
            Slices of the view, `stop` excluded.

        Returns
        -------
        ndarray or None
            View of the slices in memory. Along dim 1 the rows of different projections are not
            adjacent. None if the slices are not in memory.
        """


class Source(Closing):
    """A scan that is read block by block.

    Axes are (angles, detector_y, detector_x). Darks, flats and frames marked invalid are
    not part of the data. A file is checked when the source is opened. Damaged chunks and missing
    codecs are found when they are read.

    A subclass defines `name`, `spec`, `read`, `read_side` and `close`, and overrides other members
    whose defaults do not apply.
    """

    name: str
    """Name of the scan in messages: the file and the data set."""
    spec: ArraySpec
    """Shape and native dtype of the projections."""
    angles: NDArray[np.float32] | None = None
    """Angle of each projection in radians; None without angles."""
    pixel_size: PixelSize | None = None
    """Pixel size at the sample; None if unknown."""
    detector_start: tuple[int, int] = (0, 0)
    """First detector row and first detector column that are read."""
    dummies: tuple[SideName, ...] = ()
    """Flats or darks that are replaced by one frame of ones or zeros."""

    @property
    def reads_rows(self) -> bool:
        """True if rows of all projections are read without the other rows."""
        return False

    @property
    def flats(self) -> ArraySpec | None:
        """Shape (frames, detector_y, detector_x) and dtype of the flats; None without flats."""
        return None

    @property
    def darks(self) -> ArraySpec | None:
        """Shape (frames, detector_y, detector_x) and dtype of the darks; None without darks."""
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
            C-contiguous array with the shape of the block and the dtype of the source.

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
            0 reads the whole stack and ignores `start` and `stop`. 1 reads the rows `start` to
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
            If they are missing, or the file cannot be read.
        """

    def window(self, slice_dim: int, start: int, stop: int) -> NDArray[Any] | None:
        """View of slices; see `SupportsWindow.window`."""
        return None

    def side_window(
        self, name: SideName, slice_dim: int, start: int, stop: int
    ) -> NDArray[Any] | None:
        """View of the slices that `read_side` reads; None if they are not in memory.

        Without it, flats and darks are copied first, and minus_log between pinned arrays takes 16 %
        longer (H200, 2026-11-22).
        """
        return None

    def flat_weights(self) -> FlatWeights | None:
        """Weights of the flats for each projection; None if all projections use their mean."""
        return None

    def frame_warnings(self, sides: Iterable[str]) -> list[str]:
        """Warnings about flats or darks, if they are in `sides`."""
        return []

    def check_unchanged(self) -> None:
        """Check that no file changed since it was opened: other programs may write to it.

        Raises
        ------
        SourceError
            Naming a file that was removed, replaced, cut or changed.
        """
