"""Optional protocols of sources, stores and sinks, beyond reading and writing blocks.

A class declares a protocol by inheriting from it, or by having its methods. The runner asks with
``isinstance``, and reads and writes blocks if the protocol is missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Literal, Protocol, Self, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

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


@runtime_checkable
class SupportsSideWindow(Protocol):
    """Flats and darks that are in host memory, which a device may copy from by itself.

    Read into other memory first, they make minus_log between pinned arrays take 16 % longer (H200,
    2026-11-22).
    """

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


@runtime_checkable
class ReadsRows(Protocol):
    """A scan that knows whether its rows can be read by themselves."""

    @property
    def reads_rows(self) -> bool:
        """True if some rows of all projections are read without the rest of these."""


@runtime_checkable
class HasDetectorStart(Protocol):
    """A scan of which a part of the detector is read."""

    @property
    def detector_start(self) -> tuple[int, int]:
        """First row and first column of the detector that are read."""


@runtime_checkable
class HasPixelSize(Protocol):
    """A scan that knows the size of its pixels."""

    @property
    def pixel_size(self) -> PixelSize | None:
        """Size of a pixel; None if it is not known."""


@runtime_checkable
class HasDummies(Protocol):
    """A scan whose flats or darks may be made up: one frame of ones, or of zeros."""

    @property
    def dummies(self) -> tuple[SideName, ...]:
        """Which of them are."""


@runtime_checkable
class LooksAtFrames(Protocol):
    """A scan that looks at the means of its flats and darks."""

    def flat_weights(self) -> FlatWeights | None:
        """Weights of the flats for each projection; None where their mean serves all."""

    def frame_warnings(self, sides: Iterable[str]) -> list[str]:
        """What is wrong with flats or darks, as far as they are in `sides`."""


@runtime_checkable
class SupportsChangeCheck(Protocol):
    """A scan in files, which other programs may write to while it is read."""

    def check_unchanged(self) -> None:
        """Check that the files are those that were opened.

        Raises
        ------
        SourceError
            Naming a file that was removed, replaced, cut or changed.
        """
