"""Offsets of HDF5 data sets, and reading of their chunks by several threads.

The HDF5 library has a lock and runs one call at a time. Its file format is documented (HDF5 File
Format Specification, "Filter Pipeline"). Chunks without a filter, or with the filters deflate and
shuffle, are read here. The library reads all others.
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

from ...errors import SourceError
from ...system import threads
from ...system.threads import parallel_for
from ..frames.frames import UNWRITTEN, FrameIndices, IndexRange, PlainFrames, as_slice

DEFLATE, SHUFFLE = 1, 2
"""Numbers of the filters in HDF5 (H5Z_FILTER_DEFLATE, H5Z_FILTER_SHUFFLE)."""
_DECODED_BYTES = 2**29
"""Memory limit of all decompressing threads together, in bytes.

A thread has up to three copies of a chunk: as stored, decompressed and unshuffled. With this limit
16 threads work on chunks of 10 MiB, a frame of 2160 x 2560 uint16. Larger chunks get fewer threads.
"""
SMALL_BYTES = 2**15
"""Smaller chunks are read by the HDF5 library.

Compared with the library, one thread takes 3.6 times as long for chunks of 1 KiB, 1.7 times for
4 KiB, and about as long from 8 to 32 KiB (16 MiB of uint16, uncompressed, two cores).
"""

_LAST_BYTE = np.iinfo(np.int64).max
"""Largest possible file size."""


class ChunkError(Exception):
    """A chunk with another size than the chunks of its data set."""


class OversizeError(Exception):
    """A chunk that decompresses to more than the chunks of its data set."""


@dataclass(frozen=True, slots=True)
class ChunkIndex:
    """Places of the chunks of a data set in its file; arrays have the shape of the chunk grid."""

    offsets: NDArray[np.int64]
    """First byte of each chunk, or `UNWRITTEN`."""
    sizes: NDArray[np.int64]
    """Bytes of each chunk in the file."""
    skipped: NDArray[np.uint32]
    """Filter mask of each chunk: bit i is set if filter i was not applied."""

    @classmethod
    def of(cls, data: h5py.Dataset, name: str) -> ChunkIndex:
        """Read the index of a data set.

        Each chunk must have its own place in the array, and be within the file. If a damaged index
        puts a chunk elsewhere, HDF5 reads fill values without an error, and allocates the size in
        the index.

        Raises
        ------
        SourceError
            If the index is damaged.
        """
        shape, chunk_shape = data.shape, data.chunks  # read once: h5py reads them from the file
        grid = tuple(-(-n // c) for n, c in zip(shape, chunk_shape, strict=True))
        index = cls(
            np.full(grid, UNWRITTEN, np.int64), np.zeros(grid, np.int64), np.zeros(grid, np.uint32)
        )
        file_bytes = data.file.id.get_filesize()
        damaged: list[h5py.h5d.StoreInfo] = []

        def note(chunk: h5py.h5d.StoreInfo) -> None:
            corner = chunk.chunk_offset
            at = tuple(n // c for n, c in zip(corner, chunk_shape, strict=True))
            is_in_file = chunk.byte_offset <= _LAST_BYTE and chunk.size <= file_bytes
            is_in_data = all(n < end for n, end in zip(corner, shape, strict=True))
            if not (is_in_file and is_in_data) or index.offsets[at] != UNWRITTEN:
                damaged.append(chunk)
                return
            index.offsets[at] = chunk.byte_offset
            index.sizes[at] = chunk.size
            index.skipped[at] = chunk.filter_mask

        data.id.chunk_iter(note)
        if damaged:
            first = damaged[0]
            raise SourceError(
                f"{name}: the index of its chunks is damaged (chunk {first.chunk_offset} of "
                f"{first.size} bytes at byte {first.byte_offset}, in a file of {file_bytes}): copy "
                "it again"
            )
        return index


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks of a data set, which are read as a whole."""

    chunk: tuple[int, int, int]
    """Shape of a chunk, also at the edges, where chunks extend beyond the data."""
    dtype: np.dtype[Any]
    """Stored dtype, including byte order."""
    fill: float
    """Value of the pixels of unwritten chunks."""
    filters: tuple[int, ...]
    """Filters in the order of their application: `SHUFFLE`, `DEFLATE`, both or neither."""
    index: ChunkIndex
    """Places of the chunks."""

    def read(
        self,
        fd: int,
        frames: FrameIndices,
        rows: IndexRange,
        columns: IndexRange,
        out: NDArray[Any],
    ) -> None:
        """Read a part into `out`, in native byte order, by several threads.

        Each chunk is decompressed once for all of its frames.

        Raises
        ------
        ChunkError, zlib.error
            If a chunk cannot be decompressed.
        EOFError
            If the file is too short.
        OSError
            If the system cannot read it.
        """
        depth, *sizes = self.chunk
        begins = np.flatnonzero(np.diff(frames // depth, prepend=-1)).tolist()
        spans = (rows, columns)
        down, along = (
            range(a // size, -(-b // size)) for (a, b), size in zip(spans, sizes, strict=True)
        )
        boxes = list(product(pairwise([*begins, len(frames)]), down, along))

        def work(i: int) -> None:
            run, *places = boxes[i]
            within = frames[slice(*run)]
            first = int(within[0]) // depth
            target, inner = [slice(*run)], []
            for place, size, (a, b) in zip(places, sizes, spans, strict=True):
                low, high = max(a, place * size), min(b, (place + 1) * size)
                target.append(slice(low - a, high - a))
                inner.append(slice(low - place * size, high - place * size))
            at = (first, *places)
            if self.index.offsets[at] == UNWRITTEN:
                out[tuple(target)] = self.fill
            else:
                whole = self._decoded(fd, at)[:, inner[0], inner[1]]
                out[tuple(target)] = whole[as_slice(within - first * depth)]

        chunk_bytes = int(np.prod(self.chunk)) * self.dtype.itemsize
        most = max(1, _DECODED_BYTES // (3 * chunk_bytes))
        parallel_for(len(boxes), work, min(threads.N_DECODERS, most))

    def _decoded(self, fd: int, at: tuple[int, ...]) -> NDArray[Any]:
        """Decompress a chunk."""
        size, offset = int(self.index.sizes[at]), int(self.index.offsets[at])
        data: Any = os.pread(fd, size, offset)
        if len(data) < size:
            raise EOFError(f"the file ends within the chunk at byte {offset}")
        n_bytes = int(np.prod(self.chunk)) * self.dtype.itemsize
        skipped = int(self.index.skipped[at])
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
        If it has more: a few kilobytes may decompress to gigabytes.
    """
    inflater = zlib.decompressobj()
    content = inflater.decompress(data, n_bytes + 1)
    if len(content) > n_bytes:
        raise OversizeError(f"the chunk at byte {offset} has more than {n_bytes} bytes")
    if not inflater.eof:
        raise zlib.error(f"the chunk at byte {offset} is cut off")
    return content


def _unshuffled(data: Any, size: int) -> NDArray[np.uint8]:
    """Undo the shuffle filter, which stores the first bytes of all elements, then the second."""
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


def locate_data(data: h5py.Dataset) -> PlainFrames | Chunks | None:
    """Locate the frames or chunks of a data set; None if the HDF5 library must read them.

    The library must read data in external files, of a type without a NumPy dtype, with filters
    other than deflate and shuffle, in very small chunks, or in a file with a user block or another
    driver than ``sec2``.

    Parameters
    ----------
    data : h5py.Dataset
        Three-dimensional data set in a file that is open for reading.

    Raises
    ------
    SourceError
        If the index of its chunks is damaged.
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
        return _chunked(data, tuple(number for number, _ in filters(data)))
    return None


def filters(data: h5py.Dataset) -> list[tuple[int, bytes]]:
    """Numbers and names of the filters of a data set, in the order in which they are applied."""
    creation = data.id.get_create_plist()
    entries = (creation.get_filter(i) for i in range(creation.get_nfilters()))
    return [(number, name) for number, _, _, name in entries]


def _contiguous(data: h5py.Dataset) -> PlainFrames:
    offset = data.id.get_offset()
    n_frames, n_rows, n_columns = data.shape
    frame_bytes = n_rows * n_columns * data.dtype.itemsize
    offsets = np.full(n_frames, UNWRITTEN, np.int64)
    if offset is not None:
        offsets = offset + frame_bytes * np.arange(n_frames, dtype=np.int64)
    return PlainFrames(offsets, (n_rows, n_columns), data.dtype, _fill(data))


def _chunked(data: h5py.Dataset, numbers: tuple[int, ...]) -> PlainFrames | Chunks | None:
    name = f"{data.file.filename}:{data.name}"
    chunk_bytes = int(np.prod(data.chunks)) * data.dtype.itemsize
    if not numbers and data.chunks[1:] == data.shape[1:]:  # frames are contiguous
        chunks = ChunkIndex.of(data, name).offsets.reshape(-1, 1)
        frame_bytes = chunk_bytes // data.chunks[0]
        within = frame_bytes * np.arange(data.chunks[0], dtype=np.int64)
        offsets = np.where(chunks == UNWRITTEN, UNWRITTEN, chunks + within).ravel()
        return PlainFrames(offsets[: data.shape[0]], data.shape[1:], data.dtype, _fill(data))
    is_known = len(set(numbers)) == len(numbers) and set(numbers) <= {DEFLATE, SHUFFLE}
    if not is_known or chunk_bytes < SMALL_BYTES:
        return None
    return Chunks(data.chunks, data.dtype, _fill(data), numbers, ChunkIndex.of(data, name))


def _fill(data: h5py.Dataset) -> float:
    """Fill value of unwritten pixels."""
    creation = data.id.get_create_plist()
    if creation.fill_value_defined() == h5py.h5d.FILL_VALUE_UNDEFINED:
        return 0
    value: float = data.fillvalue
    return value
