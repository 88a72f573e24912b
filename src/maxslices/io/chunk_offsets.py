"""Where in a file the data of an HDF5 data set lie, so that they can be read without HDF5."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from .hdf5_chunks import DEFLATE, SHUFFLE, Chunks
from .plain_frames import UNWRITTEN, PlainFrames

SMALL_BYTES = 2**15
"""Chunks below this cost more to find than to read, and HDF5 finds them faster than Python."""


def locate_data(data: h5py.Dataset) -> PlainFrames | Chunks | None:
    """Return where the data are; None if HDF5 must read them.

    That is so where they are in other files, are of a type that NumPy lacks, were
    compressed otherwise than by deflate, are in very small chunks, or are spread over a file
    in ways that only HDF5 knows.

    Parameters
    ----------
    data : h5py.Dataset
        In three dims, in a file that is open for reading alone.
    """
    if data.file.driver != "sec2" or data.file.userblock_size:
        return None
    how = data.id.get_create_plist()
    if data.is_virtual or how.get_external_count():
        return None
    if data.id.get_type() != h5py.h5t.py_create(data.dtype):
        return None
    if how.get_layout() == h5py.h5d.CONTIGUOUS:
        return _contiguous(data)
    if how.get_layout() == h5py.h5d.CHUNKED:
        filters = tuple(how.get_filter(i)[0] for i in range(how.get_nfilters()))
        if len(set(filters)) == len(filters) and set(filters) <= {DEFLATE, SHUFFLE}:
            return _chunked(data, filters)
    return None


def missing_filters(data: h5py.Dataset) -> list[str]:
    """Return the filters that made a data set and are not there to read it."""
    how = data.id.get_create_plist()
    filters = [how.get_filter(i) for i in range(how.get_nfilters())]
    return [
        f"{name.decode(errors='replace') or 'a filter'} (number {number})"
        for number, _, _, name in filters
        if not h5py.h5z.filter_avail(number)
    ]


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
        corners = np.array([info.chunk_offset for info in found], np.int64)
        at = tuple((corners // np.array(data.chunks)).T)
        offsets[at] = [info.byte_offset for info in found]
        sizes[at] = [info.size for info in found]
        skipped[at] = [info.filter_mask for info in found]
    if plain:
        return PlainFrames(
            _frames_in(offsets.ravel(), data), data.shape[1:], data.dtype, _fill(data)
        )
    return Chunks(
        data.shape, data.chunks, data.dtype, _fill(data), filters, offsets, sizes, skipped
    )


def _frames_in(chunks: NDArray[np.int64], data: h5py.Dataset) -> NDArray[np.int64]:
    """Return where frames begin in chunks that are some whole frames each."""
    frame_bytes = int(np.prod(data.shape[1:])) * data.dtype.itemsize
    within = frame_bytes * np.arange(data.chunks[0], dtype=np.int64)
    offsets = np.where(
        chunks[:, np.newaxis] == UNWRITTEN, UNWRITTEN, chunks[:, np.newaxis] + within
    )
    return offsets.ravel()[: data.shape[0]]


def _fill(data: h5py.Dataset) -> float:
    """Return what is read where nothing was written."""
    how = data.id.get_create_plist()
    if how.fill_value_defined() == h5py.h5d.FILL_VALUE_UNDEFINED:
        return 0
    value: float = data.fillvalue
    return value
