"""Frames that lie in a file as they are: uncompressed, each in one piece.

So do the frames of ``.npy`` files, of most TIFFs, of contiguous data sets in HDF5 and of chunks
that are whole frames. They are read by offset, straight to where they are wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .frames import Span
from .pieces import bytes_of, pread_all
from .threads import buffer, fitting, spread_box

NOWHERE = -1
"""Offset of a frame that was never written."""


@dataclass(frozen=True, slots=True)
class PlainFrames:
    """Where frames are in a file."""

    offsets: NDArray[np.int64]
    """Byte at which each frame begins, or `NOWHERE`."""
    shape: tuple[int, int]
    """Rows and columns of a frame."""
    dtype: np.dtype[Any]
    """As stored, byte order included."""
    fill: float = 0
    """What the pixels of frames that are nowhere are."""

    def read(self, fd: int, frames: Span, rows: Span, columns: Span, out: NDArray[Any]) -> None:
        """Read a box into `out`, C-contiguous and native, in several threads.

        Raises
        ------
        EOFError
            If the file ends before.
        OSError
            If the system cannot read it.
        """

        def part(some: Span, of_rows: Span, target: NDArray[Any]) -> None:
            self.read_part(fd, some, of_rows, columns, target)

        spread_box(frames, rows, out, part)

    def read_part(
        self, fd: int, frames: Span, rows: Span, columns: Span, out: NDArray[Any]
    ) -> None:
        """Read a box into `out`, in the calling thread."""
        row_bytes = self.shape[1] * self.dtype.itemsize
        starts = self.offsets[slice(*frames)].tolist()
        if columns != (0, self.shape[1]):
            for start, target in zip(starts, out, strict=True):
                self._read_window(fd, start, rows, columns, target)
            return
        first = rows[0] * row_bytes
        span_bytes = (rows[1] - rows[0]) * row_bytes
        i = 0
        while i < len(starts):  # frames that follow each other are read by one call
            stop = i + 1
            while stop < len(starts) and starts[stop] == starts[stop - 1] + span_bytes:
                stop += 1
            if starts[i] == NOWHERE:
                stop = i + 1
                out[i] = self.fill
            else:
                pread_all(fd, [bytes_of(out[i:stop])], starts[i] + first)
                if not self.dtype.isnative:
                    out[i:stop].byteswap(inplace=True)
            i = stop

    def _read_window(
        self, fd: int, start: int, rows: Span, columns: Span, out: NDArray[Any]
    ) -> None:
        """Read some columns of one frame, by way of whole rows."""
        if start == NOWHERE:
            out[...] = self.fill
            return
        n_columns = self.shape[1]
        row_bytes = n_columns * self.dtype.itemsize
        step = fitting(row_bytes)
        for row in range(rows[0], rows[1], step):
            last = min(row + step, rows[1])
            held = buffer((last - row) * row_bytes)
            pread_all(fd, [held.data], start + row * row_bytes)
            stored = held.view(self.dtype).reshape(-1, n_columns)
            out[row - rows[0] : last - rows[0]] = stored[:, slice(*columns)]
