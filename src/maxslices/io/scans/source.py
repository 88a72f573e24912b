"""The interface of a scan."""

from __future__ import annotations

from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ..access import SideName


@runtime_checkable
class Source(Protocol):
    """A scan that is read block by block.

    Axes are (angles, detector_y, detector_x). Darks, flats and frames marked invalid are
    not part of the data. A file is checked when the source is opened, except for what only
    reading can show (a damaged chunk, a missing codec). `maxslices.io.access` has the optional
    protocols of a source.
    """

    @property
    def name(self) -> str:
        """Name of the scan in messages: the file, and the data set in it."""

    @property
    def spec(self) -> ArraySpec:
        """Shape and native dtype of the projections."""

    @property
    def flats(self) -> ArraySpec | None:
        """Shape (frames, detector_y, detector_x) and dtype of the flats; None without any."""

    @property
    def darks(self) -> ArraySpec | None:
        """Shape (frames, detector_y, detector_x) and dtype of the darks; None without any."""

    @property
    def angles(self) -> NDArray[np.float32] | None:
        """Angle of each projection in radians; None if the scan has none."""

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

    def close(self) -> None:
        """Close the files; a second call does nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...
