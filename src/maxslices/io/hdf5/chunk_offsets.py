"""Offsets of the data of an HDF5 data set, so that they can be read without the HDF5 library."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError
from ..frames.plain_frames import UNWRITTEN, PlainFrames
from .chunks import DEFLATE, SHUFFLE, Chunks

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


def missing_filters(data: h5py.Dataset) -> list[str]:
    """Filters of a data set that are not installed."""
    creation = data.id.get_create_plist()
    filters = [creation.get_filter(i) for i in range(creation.get_nfilters())]
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
