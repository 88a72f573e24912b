"""Data sets of HDF5 read by offset: where their data are, and chunks in several threads.

The HDF5 library runs one call at a time, behind a lock. Its file format is documented (HDF5 File
Format Specification, "Filter Pipeline"); chunks without a filter, and with the filters deflate
and shuffle, are read here, all others by the library.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ...core.block_memory import THREAD_BUFFER_BYTES
from ...errors import SourceError
from ...system import threads
from ...system.files import pread_all
from ...system.threads import fit_in_buffer, parallel_for
from ..frames.frames import FrameIndices, IndexRange, as_slice, consecutive_runs
from ..frames.plain_frames import UNWRITTEN, PlainFrames

DEFLATE, SHUFFLE = 1, 2
"""Numbers of the filters in HDF5 (H5Z_FILTER_DEFLATE, H5Z_FILTER_SHUFFLE)."""
_DECODED_BYTES = 2**29
"""Bytes that all threads together hold while they decompress.

A thread holds a chunk up to three times: as stored, decompressed, unshuffled. The limit lets
16 threads work on chunks of 10 MiB, a frame of 2160 x 2560 uint16; for larger chunks there are
fewer threads.
"""


class ChunkError(Exception):
    """A chunk whose size is not that of the data set's chunks."""


class OversizeError(Exception):
    """A chunk that would take more memory than the data set's chunks."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Offsets and filters of the chunks of a data set."""

    chunk: tuple[int, int, int]
    """Shape of a chunk; chunks at the edges are as large, and reach beyond the data."""
    dtype: np.dtype[Any]
    """As stored, byte order included."""
    fill: float
    """Value of the pixels of chunks that were never written."""
    filters: tuple[int, ...]
    """Filters in the order in which they were applied: `SHUFFLE`, `DEFLATE`, both or none."""
    offsets: NDArray[np.int64]
    """Byte at which each chunk begins, or `UNWRITTEN`; one per chunk, in the grid of chunks."""
    sizes: NDArray[np.int64]
    """Bytes of each chunk in the file."""
    skipped: NDArray[np.uint32]
    """Filter mask of each chunk: bit i is set if filter i was not applied."""

    def read(
        self,
        fd: int,
        frames: FrameIndices,
        rows: IndexRange,
        columns: IndexRange,
        out: NDArray[Any],
    ) -> None:
        """Read a part into `out`, in native byte order, in several threads.

        Each chunk is decompressed once, whichever of its frames are read.

        Raises
        ------
        ChunkError, zlib.error
            If a chunk cannot be decompressed.
        EOFError
            If the file ends within the part.
        OSError
            If the system cannot read it.
        """
        chunk_bytes = int(np.prod(self.chunk)) * self.dtype.itemsize
        # Several threads share a large uncompressed chunk, eight buffers of frames or more each.
        n_parts = (
            1 if self.filters else min(self.chunk[0], -(-chunk_bytes // (8 * THREAD_BUFFER_BYTES)))
        )
        parts = self._parts_of(frames, -(-self.chunk[0] // n_parts))
        spans = (rows, columns)
        first = [span[0] // n for span, n in zip(spans, self.chunk[1:], strict=True)]
        last = [-(-span[1] // n) for span, n in zip(spans, self.chunk[1:], strict=True)]
        boxes = list(product(parts, range(first[0], last[0]), range(first[1], last[1])))

        def work(i: int) -> None:
            some, *across = boxes[i]
            within = frames[some]
            at = (int(within[0]) // self.chunk[0], *across)
            begin = [a * n for a, n in zip(across, self.chunk[1:], strict=True)]
            low = [max(span[0], b) for span, b in zip(spans, begin, strict=True)]
            high = [
                min(span[1], b + n) for span, b, n in zip(spans, begin, self.chunk[1:], strict=True)
            ]
            edges = zip(low, high, spans, strict=True)
            target = out[(some, *(slice(a - span[0], b - span[0]) for a, b, span in edges))]
            inner = [(a - z, b - z) for a, b, z in zip(low, high, begin, strict=True)]
            if self.offsets[at] == UNWRITTEN:
                target[...] = self.fill
                return
            within = within - at[0] * self.chunk[0]
            if self.filters:
                whole = self._decoded(fd, at)[:, slice(*inner[0]), slice(*inner[1])]
                target[...] = whole[as_slice(within)]
            else:
                self._copy(fd, int(self.offsets[at]), within, inner, target)

        n_threads = min(threads.N_DECODERS, max(1, _DECODED_BYTES // (3 * chunk_bytes)))
        parallel_for(len(boxes), work, n_threads if self.filters else None)

    def _parts_of(self, frames: FrameIndices, n_frames: int) -> list[slice]:
        """Split frames into those of one chunk each, and these into at most `n_frames`."""
        of_chunk = frames // self.chunk[0]
        begins = np.flatnonzero(np.diff(of_chunk, prepend=-1)).tolist()
        return [
            slice(start, min(start + n_frames, stop))
            for begin, stop in pairwise([*begins, len(frames)])
            for start in range(begin, stop, n_frames)
        ]

    def _copy(
        self,
        fd: int,
        offset: int,
        frames: FrameIndices,
        inner: list[IndexRange],
        out: NDArray[Any],
    ) -> None:
        """Read a part of an uncompressed chunk through the thread's buffer."""
        rows, columns = inner
        _, n_rows, n_columns = self.chunk
        row_bytes = n_columns * self.dtype.itemsize
        height = rows[1] - rows[0]
        together = 1
        if height == n_rows:  # whole frames have no gaps between them
            together = fit_in_buffer(height * row_bytes)
        step = min(height, fit_in_buffer(row_bytes))
        position = 0
        for start, stop in consecutive_runs(frames):
            for frame in range(start, stop, together):
                count = min(together, stop - frame)
                for row in range(rows[0], rows[1], step):
                    bottom = min(row + step, rows[1])
                    held = np.empty(count * (bottom - row) * row_bytes, np.uint8)
                    pread_all(fd, [held.data], offset + (frame * n_rows + row) * row_bytes)
                    stored = held.view(self.dtype).reshape(count, bottom - row, n_columns)
                    out[position : position + count, row - rows[0] : bottom - rows[0]] = stored[
                        :, :, slice(*columns)
                    ]
                position += count

    def _decoded(self, fd: int, at: tuple[int, ...]) -> NDArray[Any]:
        """Decompress a chunk."""
        size, offset = int(self.sizes[at]), int(self.offsets[at])
        data: Any = os.pread(fd, size, offset)
        if len(data) < size:
            raise EOFError(f"the file ends within the chunk at byte {offset}")
        n_bytes = int(np.prod(self.chunk)) * self.dtype.itemsize
        skipped = int(self.skipped[at])
        done = [f for i, f in enumerate(self.filters) if not skipped >> i & 1]
        for number in reversed(done):
            if number == DEFLATE:
                data = _inflated(data, n_bytes, offset)
            else:
                data = _unshuffled(data, self.dtype.itemsize)
        if len(data) != n_bytes:
            raise ChunkError(f"the chunk at byte {offset} has {len(data)} bytes, not {n_bytes}")
        whole: NDArray[Any] = np.frombuffer(data, self.dtype).reshape(self.chunk)
        return whole


def _inflated(data: Any, n_bytes: int, offset: int) -> bytes:
    """Decompress a chunk of `n_bytes`.

    Raises
    ------
    OversizeError
        If it has more: a few kilobytes may stand for gigabytes.
    """
    inflater = zlib.decompressobj()
    held = inflater.decompress(data, n_bytes + 1)
    if len(held) > n_bytes:
        raise OversizeError(f"the chunk at byte {offset} has more than {n_bytes} bytes")
    if not inflater.eof:
        raise zlib.error(f"the chunk at byte {offset} is cut off")
    return held


def _unshuffled(data: Any, size: int) -> NDArray[np.uint8]:
    """Undo the shuffle filter, which stores the first bytes of all elements, then the second ..."""
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


SMALL_BYTES = 2**15
"""Smaller chunks are read by the HDF5 library.

One thread here takes 3.6 times as long as the library for chunks of 1 KiB, 1.7 for 4 KiB, and
about as long from 8 to 32 KiB on (16 MiB of uint16, uncompressed, two cores).
"""

_LAST_BYTE = np.iinfo(np.int64).max
"""Last byte that a file may have."""


def locate_data(data: h5py.Dataset) -> PlainFrames | Chunks | None:
    """Locate the frames or chunks of a data set; None if the HDF5 library must read them.

    The library must read data in external files, of a type that NumPy lacks, with filters other
    than deflate and shuffle, in very small chunks, or in a file with a user block or another
    driver than ``sec2``.

    Parameters
    ----------
    data : h5py.Dataset
        Three-dimensional, in a file that is open read-only.

    Raises
    ------
    SourceError
        If chunks have no place in the array or in the file.
    """
    if data.file.driver != "sec2" or data.file.userblock_size:
        return None
    creation = data.id.get_create_plist()
    if data.is_virtual or creation.get_external_count():
        return None
    if data.id.get_type() != h5py.h5t.py_create(data.dtype):
        return None
    if creation.get_layout() == h5py.h5d.CONTIGUOUS:
        return _contiguous(data)
    if creation.get_layout() == h5py.h5d.CHUNKED:
        filters = tuple(creation.get_filter(i)[0] for i in range(creation.get_nfilters()))
        if len(set(filters)) == len(filters) and set(filters) <= {DEFLATE, SHUFFLE}:
            return _chunked(data, filters)
    return None


def filters(data: h5py.Dataset) -> list[tuple[int, bytes]]:
    """Numbers and names of the filters of a data set, in the order in which they are applied."""
    creation = data.id.get_create_plist()
    found = (creation.get_filter(i) for i in range(creation.get_nfilters()))
    return [(number, name) for number, _, _, name in found]


def _contiguous(data: h5py.Dataset) -> PlainFrames:
    offset = data.id.get_offset()
    n_frames, n_rows, n_columns = data.shape
    frame_bytes = n_rows * n_columns * data.dtype.itemsize
    offsets = np.full(n_frames, UNWRITTEN, np.int64)
    if offset is not None:
        offsets = offset + frame_bytes * np.arange(n_frames, dtype=np.int64)
    return PlainFrames(offsets, (n_rows, n_columns), data.dtype, _fill(data))


def _chunked(data: h5py.Dataset, filters: tuple[int, ...]) -> PlainFrames | Chunks | None:
    plain = not filters and data.chunks[1:] == data.shape[1:]
    if not plain and np.prod(data.chunks) * data.dtype.itemsize < SMALL_BYTES:
        return None
    grid = tuple(-(-n // c) for n, c in zip(data.shape, data.chunks, strict=True))
    offsets = np.full(grid, UNWRITTEN, np.int64)
    sizes = np.zeros(grid, np.int64)
    skipped = np.zeros(grid, np.uint32)
    found: list[Any] = []
    data.id.chunk_iter(found.append)
    if found:
        corners = np.array([info.chunk_offset for info in found], np.uint64)
        starts = np.array([info.byte_offset for info in found], np.uint64)
        _check_places(data, corners, starts)
        at = tuple((corners.astype(np.int64) // np.array(data.chunks)).T)
        offsets[at] = starts
        sizes[at] = [info.size for info in found]
        skipped[at] = [info.filter_mask for info in found]
    if plain:
        return PlainFrames(
            _frames_in(offsets.ravel(), data), data.shape[1:], data.dtype, _fill(data)
        )
    return Chunks(data.chunks, data.dtype, _fill(data), filters, offsets, sizes, skipped)


def _check_places(
    data: h5py.Dataset, corners: NDArray[np.uint64], starts: NDArray[np.uint64]
) -> None:
    """Check that each chunk has a place of its own in the array, and one in a file.

    Where a damaged index puts a chunk elsewhere, HDF5 reads fill values and says nothing.

    Raises
    ------
    SourceError
        If one has not.
    """
    is_wrong = (corners >= np.array(data.shape, np.uint64)).any(axis=1) | (starts > _LAST_BYTE)
    if not is_wrong.any():
        numbers = np.ravel_multi_index(tuple(corners.astype(np.int64).T), data.shape)
        is_wrong = np.ones(len(numbers), bool)
        is_wrong[np.unique(numbers, return_index=True)[1]] = False
    if is_wrong.any():
        first = np.flatnonzero(is_wrong)[0]
        raise SourceError(
            f"{data.file.filename}:{data.name}: the index of its chunks is damaged (chunk "
            f"{tuple(corners[first].tolist())} at byte {starts[first]}): copy it again"
        )


def _frames_in(chunks: NDArray[np.int64], data: h5py.Dataset) -> NDArray[np.int64]:
    """Offsets of the frames, in chunks of whole frames."""
    frame_bytes = int(np.prod(data.shape[1:])) * data.dtype.itemsize
    within = frame_bytes * np.arange(data.chunks[0], dtype=np.int64)
    offsets = np.where(
        chunks[:, np.newaxis] == UNWRITTEN, UNWRITTEN, chunks[:, np.newaxis] + within
    )
    return offsets.ravel()[: data.shape[0]]


def _fill(data: h5py.Dataset) -> float:
    """Value of what was never written."""
    creation = data.id.get_create_plist()
    if creation.fill_value_defined() == h5py.h5d.FILL_VALUE_UNDEFINED:
        return 0
    value: float = data.fillvalue
    return value
