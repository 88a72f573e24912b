"""What a source, a store or a sink may offer beyond reading and writing blocks.

Each protocol here is optional. A class declares one by inheriting from it, or by having its
methods; the runner asks with ``isinstance``, and reads and writes blocks where it is not there.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from .side_name import SideName


@runtime_checkable
class SupportsView(Protocol):
    """Slices that are in host memory and can be used there, without a copy."""

    def view(self, slice_dim: int, start: int, stop: int) -> NDArray[Any] | None:
        """Read-only view of slices.

        Parameters
        ----------
        slice_dim : int
            0 for projections, 1 for sinograms.
        start, stop : int
            Slices of the view, `stop` excluded.

        Returns
        -------
        ndarray or None
            C-contiguous; None where the slices are not in memory, or not contiguous there.
            The runner takes the answer for a section's first block to hold for its others.
        """
        ...


@runtime_checkable
class SupportsWindow(Protocol):
    """Slices that are in host memory, which a device may copy from or to by itself."""

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
        ...


@runtime_checkable
class SupportsSideWindow(Protocol):
    """Flats and darks that are in host memory, which a device may copy from by itself."""

    def side_window(
        self, name: SideName, slice_dim: int, start: int, stop: int
    ) -> NDArray[Any] | None:
        """View of the flats or darks for a block.

        Parameters
        ----------
        name : {"flats", "darks"}
            Which of them.
        slice_dim : int
            0 gives the whole stack, whatever `start` and `stop`; 1 the rows `start` to
            `stop` of each frame.
        start, stop : int
            Slices of the block, `stop` excluded.

        Returns
        -------
        ndarray or None
            None where there are none, or they are not in memory.
        """
        ...


@runtime_checkable
class SupportsForget(Protocol):
    """Slices that can be given up while the others are still read."""

    def forget(self, slice_dim: int, stop: int) -> None:
        """Give up the slices before `stop`: nothing reads them again.

        Returns at once; the space is freed in the background.

        Parameters
        ----------
        slice_dim : int
            Axis along which the slices are read.
        stop : int
            First slice that is still needed. May be less than in an earlier call, or negative.
        """
        ...


@runtime_checkable
class HasDetectorStart(Protocol):
    """A scan of which a part of the detector is read."""

    @property
    def detector_start(self) -> tuple[int, int]:
        """First row and first column of the detector that are read."""
        ...
