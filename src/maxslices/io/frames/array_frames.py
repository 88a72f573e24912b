"""Frames in an array."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...errors import SourceError
from ...system.threads import parallel_copy
from ..check_arrays import check_dtype, without_ones
from .frames import FrameIndices, FramesWritten, IndexRange, consecutive_runs


class ArrayFrames:
    """Frames in an array."""

    reads_rows = True

    def __init__(self, name: str, array: NDArray[Any]) -> None:
        if isinstance(array, np.ma.MaskedArray):
            raise SourceError(
                f"{name}: is a masked array, and methods know no masks: give array.filled(value), "
                "or array.data to count what is masked"
            )
        if array.ndim != 3 or 0 in array.shape:
            raise SourceError(
                f"{name}: has shape {array.shape}: a scan has three dims, (angles, detector_y, "
                f"detector_x), of at least 1{without_ones(array.shape)}"
            )
        self.name = name
        self._array: NDArray[Any] | None = array
        self.spec = ArraySpec(array.shape, check_dtype(name, array.dtype))

    @property
    def array(self) -> NDArray[Any] | None:
        """The array itself; None once it is closed."""
        return self._array

    @property
    def files(self) -> Iterable[Path]:
        """Files that the frames are read from."""
        return ()

    def written(self, *, allow_missing: bool) -> FramesWritten:
        """All frames: such files have no others."""
        return FramesWritten()

    def read(
        self, frames: FrameIndices, rows: IndexRange, columns: IndexRange, out: NDArray[Any]
    ) -> None:
        """Copy a part into `out`; see `Frames.read`."""
        if self._array is None:
            raise SourceError(f"{self.name}: is closed")
        within = self._array[:, slice(*rows), slice(*columns)]
        position = 0
        for start, stop in consecutive_runs(frames):
            end = position + stop - start
            parallel_copy(out[position:end], within[start:stop])
            position = end

    def close(self) -> None:
        """Drop the array."""
        self._array = None
