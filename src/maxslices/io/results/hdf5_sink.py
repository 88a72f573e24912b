"""Results in HDF5, NeXus style, contiguous, with the slices that viewers show first.

A reconstruction, which methods make as (y, z, x), is (z, y, x) in the file: viewers of HDF5 and
programs that read it as images step through the first axis. A slice has the same bytes either way.

The HDF5 library creates the file with a contiguous data set and closes it. The disk space is then
allocated, so that a full disk is found first, and the data are written at their offset by system
calls. The library itself would keep data back to write them later: where the disk has become full
it then fails on closing the file, and ends the process (HDF5 2.0 with a segmentation fault). So the
space for what it writes itself is reserved before it is called.

Files are of HDF5 1.8's format, which has no mark of files that are open for writing: a run that was
killed leaves a file that opens.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...errors import LostResultError
from ...system import threads
from ...system.disk_space import preallocate, reserve
from ...system.files import check_one_name, write_rows
from ...system.threads import parallel_for_box
from ...tuning.file_transfer import file_map, is_safe_to_map
from ..frames.frames import IndexRange
from ..hdf5.objects import open_hdf5
from .nexus_notes import describe_data, notes_bytes, write_notes
from .result_info import ResultInfo
from .sink import Sink

DATA_PATH = "entry/data/data"
"""Path of the data in the file."""
_OVERHEAD_BYTES = 2**16
"""Disk space for what HDF5 writes beside the data: HDF5 2.0 takes 6 KiB, the rest is left for other
versions."""

_LARGE_BYTES = 2**25
"""Smallest block whose writing time tells the two ways apart: 32 MiB take about 7 ms at 5 GB/s."""


class Hdf5Sink(Sink):
    """A `Sink` that writes an HDF5 file; see `Sink` for the parameters."""

    _fd: int | None = None
    _took_s: dict[str, float]
    _ways: list[Callable[[IndexRange, IndexRange, NDArray[Any]], None]]

    def _disk_bytes(self) -> int:
        return self.spec.nbytes + notes_bytes(self.info, self.spec.shape) + _OVERHEAD_BYTES

    def _create(self) -> None:
        reserve(
            self.path,
            _OVERHEAD_BYTES + notes_bytes(self.info, self.spec.shape),
            os.O_CREAT | os.O_EXCL,
        )
        self.path.unlink()
        self._offset = _create_file(self.path, self._file_spec, self.info)
        self._open_fd()

    def _reopen(self) -> None:
        self._find_data()
        self._open_fd()

    def _join(self) -> None:
        self._find_data()
        self._open_fd()
        # Several processes that write by calls wait for one another: 3.6 GB/s together, 10.7 by
        # maps (four with four threads each, ext4, four H100s, 2026-11-27).
        self._ways = self._ways[-1:]

    def _find_data(self) -> None:
        """Find the place of the data in the file."""
        self._require(Path.is_file)
        check_one_name(self.path, self.path.lstat())
        try:
            self._offset = _data_offset(self.path, self._file_spec)
        except (KeyError, ValueError, OSError) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise LostResultError(
                f"{self.path}: is no unfinished result ({error}): start anew with --overwrite"
            ) from None

    @property
    def _file_spec(self) -> ArraySpec:
        """Shape and dtype of the data set."""
        return ArraySpec(self.info.file_shape(self.spec), self.spec.dtype)

    def _open_fd(self) -> None:
        """Open the file for writing, and find the ways in which it can be written."""
        may_map = threads.N_THREADS > 1 and is_safe_to_map(self.path)
        # On a network, where nothing is mapped, for writing alone: see `_FLAGS` of `ScratchStore`.
        flags = os.O_RDWR if may_map else os.O_WRONLY
        self._fd = os.open(self.path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._ways, self._took_s = [self._write_calls], {}
        if preallocate(self._fd, self.path.stat().st_size) and may_map:
            self._ways = [self._write_calls, self._write_map]

    def _write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block along either dim.

        Slices of the file's first axis are without gaps there. Large blocks of them are written in
        the faster of two ways, by the times of the first ones.
        """
        box = [(0, n) for n in block.shape[:2]]
        box[slice_dim] = (start, start + block.shape[slice_dim])
        if self.info.file_axis(0) == 1:  # in the order of the file
            box.reverse()
            block = block.swapaxes(0, 1)
        slices, rows = box
        if self.info.file_axis(slice_dim) == 1 or block.nbytes < _LARGE_BYTES:
            self._write_calls(slices, rows, block)
            return
        write = min(self._ways, key=lambda way: self._took_s.get(way.__name__, 0.0))
        began = time.perf_counter()
        write(slices, rows, block)
        took_s = (time.perf_counter() - began) / block.nbytes
        self._took_s[write.__name__] = min(took_s, self._took_s.get(write.__name__, took_s))

    def _write_map(self, slices: IndexRange, rows: IndexRange, block: NDArray[Any]) -> None:
        """Write whole slices into a memory map, which several threads do at the same time."""
        assert self._fd is not None
        memory = file_map(self._fd, self._place(slices[0], 0), block.nbytes)
        place = memory.view(block.dtype).reshape(block.shape)

        def part(some: IndexRange, of_rows: IndexRange, values: NDArray[Any]) -> None:
            np.copyto(place[slice(*some), slice(*of_rows)], values)

        # Each thread has its own part of the file: two threads in one page wait for each other.
        parallel_for_box((0, len(block)), rows, block, part)

    def _write_calls(self, slices: IndexRange, rows: IndexRange, block: NDArray[Any]) -> None:
        """Write a block by system calls, of which a file takes one at a time."""
        fd = self._fd
        assert fd is not None

        def part(some: IndexRange, of_rows: IndexRange, values: NDArray[Any]) -> None:
            for i, piece in zip(range(*some), values, strict=True):
                write_rows(fd, piece, self._place(i, of_rows[0]))

        parallel_for_box(slices, rows, block, part)

    def _place(self, i: int, row: int) -> int:
        """Byte of the file at which a row of the first axis' item `i` begins."""
        _, n_rows, n_columns = self._file_spec.shape
        return self._offset + (i * n_rows + row) * n_columns * self.spec.dtype.itemsize

    def _sync(self) -> None:
        if self._fd is not None:
            os.fdatasync(self._fd)

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _remove(self) -> None:
        self.path.unlink(missing_ok=True)


@contextmanager
def _os_errors() -> Iterator[None]:
    """Turn the RuntimeError of h5py on closing a file that cannot grow into an OSError."""
    try:
        yield
    except RuntimeError as error:
        number = re.search(r"errno = (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def _create_file(path: Path, spec: ArraySpec, info: ResultInfo) -> int:
    """Create a file with an unwritten data set; the offset of its data."""
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_layout(h5py.h5d.CONTIGUOUS)
    layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with _os_errors(), open_hdf5(path, "x", libver=("v108", "v108")) as file:
        group = write_notes(file, info, (spec.shape[0], spec.shape[1], spec.shape[2]))
        data = h5py.h5d.create(
            group.id,
            b"data",
            h5py.h5t.py_create(spec.dtype, logical=True),
            h5py.h5s.create_simple(spec.shape),
            layout,
        )
        describe_data(group["data"], info)
        return _offset_of(data, spec)


def _data_offset(path: Path, spec: ArraySpec) -> int:
    """Offset of the data in a file that `_create_file` made.

    Raises
    ------
    ValueError, KeyError
        If it is another file.
    """
    # Processes that join read it at the same time: none changes what HDF5 itself keeps in it.
    with open_hdf5(path, "r", locking=False) as file:
        data = file[DATA_PATH]
        if data.shape != spec.shape or data.dtype != spec.dtype:
            raise ValueError(f"it is {data.shape} {data.dtype} and not {spec}")
        return _offset_of(data.id, spec)


def _offset_of(data: h5py.h5d.DatasetID, spec: ArraySpec) -> int:
    """Offset of the data of a contiguous data set.

    Raises
    ------
    ValueError
        If it is not contiguous, or has no place in the file.
    """
    offset = data.get_offset()
    if offset is None:
        raise ValueError(f"its data, {spec}, have no place in the file")
    return int(offset)
