"""Frames that are uncompressed and contiguous in a file.

These are the frames of ``.npy`` files, of most TIFFs, of contiguous HDF5 data sets and of HDF5
chunks that are whole frames. They are read by offset, straight into the array that is to hold them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...system.files import bytes_of, pread_all
from ...system.threads import fit_in_buffer, parallel_for_box
from ...tuning.file_transfer import pread_pieces
from .frames import FrameIndices, IndexRange

UNWRITTEN = -1
"""Offset of a frame or chunk that was never written."""


@dataclass(frozen=True, slots=True)
class PlainFrames:
    """Offsets of uncompressed, contiguous frames in a file."""

    offsets: NDArray[np.int64]
    """Byte at which each frame begins, or `UNWRITTEN`."""
    shape: tuple[int, int]
    """Rows and columns of a frame."""
    dtype: np.dtype[Any]
    """As stored, byte order included."""
    fill: float = 0
    """Value of the pixels of frames that were never written."""

    def read(
        self,
        fd: int,
        frames: FrameIndices,
        rows: IndexRange,
        columns: IndexRange,
        out: NDArray[Any],
    ) -> None:
        """Read a part into `out`, C-contiguous and native, in several threads.

        Raises
        ------
        EOFError
            If the file ends within the part.
        OSError
            If the system cannot read it.
        """

        def part(some: IndexRange, of_rows: IndexRange, target: NDArray[Any]) -> None:
            self.read_part(fd, frames[slice(*some)], of_rows, columns, target)

        parallel_for_box((0, len(frames)), rows, out, part)

    def read_part(
        self,
        fd: int,
        frames: FrameIndices,
        rows: IndexRange,
        columns: IndexRange,
        out: NDArray[Any],
    ) -> None:
        """Read a part into `out`, in the calling thread."""
        starts = self.offsets[frames]
        if columns != (0, self.shape[1]) or not self.dtype.isnative:
            for start, target in zip(starts.tolist(), out, strict=True):
                self._read_window(fd, start, rows, columns, target)
            return
        written = starts != UNWRITTEN
        if not written.all():
            out[~written] = self.fill
            for i in np.flatnonzero(written):
                self.read_part(fd, frames[i : i + 1], rows, columns, out[i : i + 1])
            return
        starts = starts + rows[0] * self.shape[1] * self.dtype.itemsize
        if (np.diff(starts) == out[0].nbytes).all():  # without gaps between them
            pread_all(fd, [bytes_of(out)], int(starts[0]))
        else:
            pread_pieces(fd, out, starts)

    def _read_window(
        self, fd: int, start: int, rows: IndexRange, columns: IndexRange, out: NDArray[Any]
    ) -> None:
        """Read some columns of one frame through a buffer of whole rows; convert the byte order."""
        if start == UNWRITTEN:
            out[...] = self.fill
            return
        n_columns = self.shape[1]
        row_bytes = n_columns * self.dtype.itemsize
        step = fit_in_buffer(row_bytes)
        for row in range(rows[0], rows[1], step):
            last = min(row + step, rows[1])
            held = np.empty((last - row) * row_bytes, np.uint8)
            pread_all(fd, [held.data], start + row * row_bytes)
            stored = held.view(self.dtype).reshape(-1, n_columns)
            out[row - rows[0] : last - rows[0]] = stored[:, slice(*columns)]
