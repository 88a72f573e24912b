"""Results in HDF5, NeXus style, one chunk a slice.

HDF5 makes the file with its room laid out and closes it; the data then go to the chunks'
places in it by plain writes. That is because HDF5 keeps chunks back to write them later: on
a disk that has become full it then fails when the file is closed, and takes the process
with it (HDF5 2.0 ends in a segmentation fault).
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from ..arrays import ArraySpec
from ..errors import StoreError
from .checks import check_block
from .paths import HDF5_SUFFIXES
from .room import bytes_of, check_room, check_vacant, part_of, pwrite_all, store_errors

DATA_PATH = "entry/data/data"
"""Where in the file the data are."""
_CHUNK_LIMIT_BYTES = 2**32 - 1
"""HDF5's largest chunk."""
_OVERHEAD_BYTES = 2**16
"""Room for what HDF5 writes beside the data and the index of the chunks."""


class Hdf5Sink:
    """A `Sink` that writes an HDF5 file; see `create_sink` for the parameters."""

    def __init__(self, path: Path, spec: ArraySpec, slice_dim: int) -> None:
        named = path.suffix.lower() in HDF5_SUFFIXES
        self._path = path if named else path.with_name(f"{path.name}.h5")
        self._spec = spec
        self._slice_dim = slice_dim
        self._part = part_of(self._path)
        self._fd: int | None = None
        slice_bytes = spec.with_slices(slice_dim, 1).nbytes
        if slice_bytes > _CHUNK_LIMIT_BYTES:
            raise StoreError(
                f"{self._path}: a slice of {slice_bytes} bytes is larger than an HDF5 chunk can "
                "be (4 GiB): write TIFF"
            )
        self._needed_bytes = spec.nbytes + 16 * spec.shape[slice_dim] + _OVERHEAD_BYTES
        check_vacant(self._path)
        with store_errors(self._path, self._needed_bytes):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._part.unlink(missing_ok=True)  # what a killed run left behind
            check_room(self._path, self._needed_bytes)
            try:
                self._offsets = _lay_out(self._part, spec, slice_dim)
                self._fd = os.open(self._part, os.O_WRONLY | os.O_CLOEXEC)
            except BaseException:
                self.abandon()
                raise

    @property
    def path(self) -> Path:
        """Where the finished file will be."""
        return self._path

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the whole result."""
        return self._spec

    def write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block; along the sink's own slice dim it goes a slice at a time."""
        stop = start + block.shape[slice_dim]
        check_block(self._spec, slice_dim, start, stop, block)
        if self._fd is None:
            raise StoreError(f"{self._path}: is finished or abandoned, and takes no more blocks")
        slices = range(self._spec.shape[self._slice_dim])
        offset = 0
        if slice_dim == self._slice_dim:
            slices = range(start, stop)
        else:
            offset = start * self._spec.shape[2] * self._spec.dtype.itemsize
        with store_errors(self._path, self._needed_bytes):
            for i in slices:
                part = block.take(i - slices.start, axis=self._slice_dim)
                pwrite_all(
                    self._fd, bytes_of(np.ascontiguousarray(part)), self._offsets[i] + offset
                )

    def finish(self) -> Path:
        """Give the file its name."""
        with store_errors(self._path, self._needed_bytes):
            self._close()
            if os.path.lexists(self._path):
                raise StoreError(
                    f"{self._path}: something else took this name meanwhile: the result is whole, "
                    f"in {self._part}"
                )
            self._part.rename(self._path)
        return self._path

    def abandon(self) -> None:
        """Remove what was written."""
        self._close()
        self._part.unlink(missing_ok=True)

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._fd is not None:
            self.abandon()


def _lay_out(path: Path, spec: ArraySpec, slice_dim: int) -> list[int]:
    """Make a file whose data are there but unwritten; return the offset of each slice."""
    chunk = spec.with_slices(slice_dim, 1).shape
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_chunk(chunk)
    layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    offsets = [0] * spec.shape[slice_dim]
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        file.attrs["NX_class"] = "NXroot"
        file.attrs["default"] = "entry"
        entry = file.create_group("entry")
        entry.attrs["NX_class"] = "NXentry"
        entry.attrs["default"] = "data"
        group = entry.create_group("data")
        group.attrs["NX_class"] = "NXdata"
        group.attrs["signal"] = "data"
        data = h5py.h5d.create(
            group.id,
            b"data",
            h5py.h5t.py_create(spec.dtype, logical=True),
            h5py.h5s.create_simple(spec.shape),
            layout,
        )

        def note(chunk: Any) -> None:
            offsets[chunk.chunk_offset[slice_dim]] = chunk.byte_offset

        data.chunk_iter(note)
    return offsets
