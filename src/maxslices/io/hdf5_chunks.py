"""Chunks of HDF5 data sets read by offset, and decompressed in several threads.

HDF5 itself does one thing at a time, behind a lock. What it wrote is documented (HDF5 File
Format Specification, "Filter Pipeline"), and of filters zlib's deflate and the shuffle
of bytes are done here; whatever has others is left to HDF5.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model.account import THREAD_BUFFER_BYTES
from ..system import threads
from ..system.positional_io import pread_all
from ..system.threads import buffer, fitting, spread
from .frame_source import Span
from .plain_frames import NOWHERE

DEFLATE, SHUFFLE = 1, 2
"""HDF5's numbers of the filters."""
_DECODED_BYTES = 2**29
"""Bytes that all threads hold together while they decompress."""


class ChunkError(Exception):
    """A chunk does not hold what it should."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Where the chunks of a data set are in its file."""

    shape: tuple[int, int, int]
    """Of the data set."""
    chunk: tuple[int, int, int]
    """Of a chunk; those at the edges are as large, and reach beyond."""
    dtype: np.dtype[Any]
    """As stored, byte order included."""
    fill: float
    """What is read where no chunk is."""
    filters: tuple[int, ...]
    """What was done to each, in order: some of `SHUFFLE` and `DEFLATE`."""
    offsets: NDArray[np.int64]
    """Byte at which each chunk begins, or `NOWHERE`; of the shape of the grid of chunks."""
    sizes: NDArray[np.int64]
    """Bytes of each in the file."""
    skipped: NDArray[np.uint32]
    """Bit i is set where filter i was left out."""

    def read(self, fd: int, frames: Span, rows: Span, columns: Span, out: NDArray[Any]) -> None:
        """Read a box into `out`, native, in several threads.

        Raises
        ------
        ChunkError, zlib.error
            If a chunk cannot be decompressed.
        EOFError
            If the file ends before.
        OSError
            If the system cannot read it.
        """
        box = (frames, rows, columns)
        first = [span[0] // n for span, n in zip(box, self.chunk, strict=True)]
        counts = [-(-span[1] // n) - f for span, n, f in zip(box, self.chunk, first, strict=True)]
        chunk_bytes = int(np.prod(self.chunk)) * self.dtype.itemsize
        # Chunks of many frames are taken by several threads, a part of the frames each.
        n_parts = (
            1 if self.filters else min(self.chunk[0], -(-chunk_bytes // (8 * THREAD_BUFFER_BYTES)))
        )
        frame_step = -(-self.chunk[0] // n_parts)

        def work(i: int) -> None:
            i, part = divmod(i, n_parts)
            rest, k = divmod(i, counts[2])
            at = (first[0] + rest // counts[1], first[1] + rest % counts[1], first[2] + k)
            begin = [a * n for a, n in zip(at, self.chunk, strict=True)]
            low = [max(span[0], b) for span, b in zip(box, begin, strict=True)]
            high = [min(span[1], b + n) for span, b, n in zip(box, begin, self.chunk, strict=True)]
            low[0] = max(low[0], begin[0] + part * frame_step)
            high[0] = min(high[0], begin[0] + (part + 1) * frame_step)
            if low[0] >= high[0]:
                return
            spans = zip(low, high, box, strict=True)
            target = out[tuple(slice(a - span[0], b - span[0]) for a, b, span in spans)]
            inner = [(a - z, b - z) for a, b, z in zip(low, high, begin, strict=True)]
            if self.offsets[at] == NOWHERE:
                target[...] = self.fill
            elif self.filters:
                target[...] = self._decoded(fd, at, inner)
            else:
                self._copy(fd, int(self.offsets[at]), inner, target)

        n_threads = min(threads.N_DECODERS, max(1, _DECODED_BYTES // (3 * chunk_bytes)))
        spread(int(np.prod(counts)) * n_parts, work, n_threads if self.filters else None)

    def _copy(self, fd: int, offset: int, inner: list[Span], out: NDArray[Any]) -> None:
        """Read a box within an uncompressed chunk, by way of a thread's buffer."""
        frames, rows, columns = inner
        _, n_rows, n_columns = self.chunk
        row_bytes = n_columns * self.dtype.itemsize
        height = rows[1] - rows[0]
        together = 1
        if height == n_rows:  # so frames follow each other without gaps
            together = fitting(height * row_bytes)
        step = min(height, fitting(row_bytes))
        for frame in range(frames[0], frames[1], together):
            last = min(frame + together, frames[1])
            for row in range(rows[0], rows[1], step):
                bottom = min(row + step, rows[1])
                held = buffer((last - frame) * (bottom - row) * row_bytes)
                pread_all(fd, [held.data], offset + (frame * n_rows + row) * row_bytes)
                stored = held.view(self.dtype).reshape(last - frame, bottom - row, n_columns)
                out[frame - frames[0] : last - frames[0], row - rows[0] : bottom - rows[0]] = (
                    stored[:, :, slice(*columns)]
                )

    def _decoded(self, fd: int, at: tuple[int, ...], inner: list[Span]) -> NDArray[Any]:
        """Return a box of a compressed chunk."""
        size, offset = int(self.sizes[at]), int(self.offsets[at])
        data: Any = os.pread(fd, size, offset)
        if len(data) < size:
            raise EOFError(f"the file ends within the chunk at byte {offset}")
        n_bytes = int(np.prod(self.chunk)) * self.dtype.itemsize
        skipped = int(self.skipped[at])
        done = [f for i, f in enumerate(self.filters) if not skipped >> i & 1]
        for number in reversed(done):
            if number == DEFLATE:
                data = zlib.decompress(data, bufsize=n_bytes)
            else:
                data = _unshuffled(data, self.dtype.itemsize)
        if len(data) != n_bytes:
            raise ChunkError(f"the chunk at byte {offset} has {len(data)} bytes, not {n_bytes}")
        whole: NDArray[Any] = np.frombuffer(data, self.dtype).reshape(self.chunk)
        return whole[tuple(slice(*span) for span in inner)]


def _unshuffled(data: Any, size: int) -> NDArray[np.uint8]:
    """Return elements of `size` bytes of which first all first bytes are stored, and so on."""
    stored = np.frombuffer(data, np.uint8)
    if size == 1:
        return stored
    count = stored.size // size
    out = np.empty(stored.size, np.uint8)
    elements = out[: count * size].reshape(count, size)
    for i in range(size):
        elements[:, i] = stored[i * count : (i + 1) * count]
    out[count * size :] = stored[count * size :]
    return out
