"""Results in HDF5, NeXus style, written block by block during a run.

Methods make a reconstruction as (y, z, x), and the file has it as (z, y, x): viewers of HDF5 and
programs that read it as images step through the first axis. A slice has the same bytes in both.

The HDF5 library creates the file with a contiguous data set and closes it. Then the disk space is
allocated, so that a full disk is reported first, and the data are written at their offset by system
calls. The library itself keeps data back to write them later. If the disk has become full by then,
closing the file fails and ends the process (HDF5 2.0 with a segmentation fault). Space for what the
library writes is therefore reserved before it is called.

Files have the format of HDF5 1.8, which does not mark files that are open for writing. A run that
is killed leaves a file that opens.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...errors import LostResultError, StoreError
from ...system import threads
from ...system.disk_space import check_absent, check_free_space, preallocate, reserve, store_errors
from ...system.files import check_one_name, write_rows
from ...system.threads import parallel_for_box
from ...tuning.file_transfer import file_map, is_safe_to_map
from ..access import Closing
from ..check_arrays import check_block
from ..frames.frames import IndexRange
from ..hdf5.objects import open_hdf5
from .nexus_notes import describe_data, notes_bytes, write_notes
from .result_info import ResultInfo

SinkStart = Literal["new", "resume", "join"]
"""How writing a result begins; see `Sink`."""
DATA_PATH = "entry/data/data"
"""Path of the data in the file."""
_OVERHEAD_BYTES = 2**16
"""Disk space of what HDF5 writes in addition to the data: HDF5 2.0 takes 6 KiB, other versions may
take more."""
LARGE_BYTES = 2**25
"""Smallest block whose writing time is compared: 32 MiB take about 7 ms at 5 GB/s."""


class Sink(Closing):
    """A result that is written block by block to an HDF5 file; closed on leaving ``with``.

    Parameters
    ----------
    path : Path
        The file, in NeXus style with the data at ``/entry/data/data``. Missing parent folders are
        created.
    spec : ArraySpec
        Shape and dtype of the whole result.
    start : {"new", "resume", "join"}
        "new": create the file, which must not exist. "resume": continue a file that another process
        left. "join": write at the same time as other processes to a file that one of them created.
    info : ResultInfo, optional
        What the result is. It is stored in the file and decides the order of the axes.

    Raises
    ------
    StoreError
        If `path` already exists or cannot be created, or the disk has less free space than the
        result needs.
    """

    def __init__(
        self,
        path: Path,
        spec: ArraySpec,
        start: SinkStart = "new",
        info: ResultInfo | None = None,
    ) -> None:
        self.info = info or ResultInfo()
        self.path = path
        self.spec = spec
        self._fd: int | None = None
        self._writers: list[Callable[[IndexRange, IndexRange, NDArray[Any]], None]]
        notes = _OVERHEAD_BYTES + notes_bytes(self.info, spec.shape)
        self._needed_bytes = spec.nbytes + notes
        if start == "new":
            check_absent(path)
        with store_errors(path, self._needed_bytes):
            if start == "new":
                path.parent.mkdir(parents=True, exist_ok=True)
                check_free_space(path, self._needed_bytes)
                try:
                    reserve(path, notes, os.O_CREAT | os.O_EXCL)
                    path.unlink()
                    self._offset = _create_file(path, self._file_spec, self.info)
                    self._open()
                except BaseException:
                    self.close()
                    path.unlink(missing_ok=True)
                    raise
            else:
                self._offset = self._find_data()
                self._open()
        if start == "join":
            # Several processes that write by calls wait for one another: 3.6 GB/s together, 10.7 by
            # maps (four with four threads each, ext4, four H100s, 2026-11-27).
            del self._writers[:-1]

    def write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block along either dim.

        Slices of the file's first axis are contiguous. Large blocks of them are written by system
        calls or into a memory map, whichever took less time for the first ones.

        Parameters
        ----------
        slice_dim : int
            Dim along which the block is cut, 0 or 1.
        start : int
            Index of its first slice along that dim.
        block : ndarray
            Slices of the sink's dtype.

        Raises
        ------
        StoreError
            If it cannot be written: the disk is full or cannot be reached.
        """
        check_block(self.spec, slice_dim, start, start + block.shape[slice_dim], block)
        if self._fd is None:
            raise StoreError(f"{self.path}: is closed, and takes no more blocks")
        box = [(0, n) for n in block.shape[:2]]
        box[slice_dim] = (start, start + block.shape[slice_dim])
        if self.info.file_axis(0) == 1:  # in the order of the file
            box.reverse()
            block = block.swapaxes(0, 1)
        slices, rows = box
        with store_errors(self.path, self._needed_bytes):
            if self.info.file_axis(slice_dim) == 1 or block.nbytes < LARGE_BYTES:
                self._write_by_calls(slices, rows, block)
                return
            write = min(self._writers, key=lambda each: self._took_s.get(each.__name__, 0.0))
            began = time.perf_counter()
            write(slices, rows, block)
            took_s = (time.perf_counter() - began) / block.nbytes
            self._took_s[write.__name__] = min(took_s, self._took_s.get(write.__name__, took_s))

    def sync(self) -> None:
        """Put all written data on disk, or on the server of a network folder."""
        with store_errors(self.path, self._needed_bytes):
            if self._fd is not None:
                os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file; a second call has no effect."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _find_data(self) -> int:
        """Offset of the data in an unfinished result.

        Raises
        ------
        LostResultError
            If the file is missing, or is not such a result.
        """
        if self.path.is_symlink() or not self.path.is_file():
            raise LostResultError(
                f"{self.path}: the unfinished result is missing: start anew with --overwrite"
            )
        check_one_name(self.path, self.path.lstat())
        try:
            return _data_offset(self.path, self._file_spec)
        except (KeyError, ValueError, OSError) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise LostResultError(
                f"{self.path}: is not an unfinished result ({error}): start anew with --overwrite"
            ) from None

    @property
    def _file_spec(self) -> ArraySpec:
        """Shape and dtype of the data set."""
        return ArraySpec(self.info.file_shape(self.spec), self.spec.dtype)

    def _open(self) -> None:
        """Open the file for writing, and list the functions that can write it."""
        may_map = threads.N_THREADS > 1 and is_safe_to_map(self.path)
        # Files on a network are not mapped, and are opened for writing alone: see `OPEN_FLAGS` of
        # `ScratchStore`.
        flags = os.O_RDWR if may_map else os.O_WRONLY
        self._fd = os.open(self.path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._took_s: dict[str, float] = {}
        self._writers = [self._write_by_calls]
        if preallocate(self._fd, self.path.stat().st_size) and may_map:
            self._writers.append(self._write_by_map)

    def _write_by_map(self, slices: IndexRange, rows: IndexRange, block: NDArray[Any]) -> None:
        """Write whole slices into a memory map, by several threads at once."""
        assert self._fd is not None
        memory = file_map(self._fd, self._place(slices[0], 0), block.nbytes)
        target = memory.view(block.dtype).reshape(block.shape)

        def part(some: IndexRange, of_rows: IndexRange, values: NDArray[Any]) -> None:
            np.copyto(target[slice(*some), slice(*of_rows)], values)

        # Each thread has its own part of the file: two threads in one page wait for each other.
        parallel_for_box((0, len(block)), rows, block, part)

    def _write_by_calls(self, slices: IndexRange, rows: IndexRange, block: NDArray[Any]) -> None:
        """Write a block by system calls, which the system runs one at a time for each file."""
        fd = self._fd
        assert fd is not None

        def part(some: IndexRange, of_rows: IndexRange, values: NDArray[Any]) -> None:
            for i, piece in zip(range(*some), values, strict=True):
                write_rows(fd, piece, self._place(i, of_rows[0]))

        parallel_for_box(slices, rows, block, part)

    def _place(self, i: int, row: int) -> int:
        """Byte of the file at which a row of item `i` of the first axis begins."""
        _, n_rows, n_columns = self._file_spec.shape
        return self._offset + (i * n_rows + row) * n_columns * self.spec.dtype.itemsize


@contextmanager
def _os_errors() -> Iterator[None]:
    """Turn h5py's RuntimeError on closing a file that cannot grow into an OSError."""
    try:
        yield
    except RuntimeError as error:
        number = re.search(r"errno = (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def _create_file(path: Path, spec: ArraySpec, info: ResultInfo) -> int:
    """Create a file with an unwritten data set; return the offset of its data."""
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
    # Processes that join read the file at the same time; the data are not written by HDF5.
    with open_hdf5(path, "r", locking=False) as file:
        data = file[DATA_PATH]
        if data.shape != spec.shape or data.dtype != spec.dtype:
            raise ValueError(f"it is {data.shape} {data.dtype} and not {spec}")
        return _offset_of(data.id, spec)


def _offset_of(data: h5py.h5d.DatasetID, spec: ArraySpec) -> int:
    """Offset of a contiguous data set in its file.

    Raises
    ------
    ValueError
        If it is not contiguous, or is not allocated.
    """
    offset = data.get_offset()
    if offset is None:
        raise ValueError(f"its data, {spec}, are not allocated in the file")
    return int(offset)
