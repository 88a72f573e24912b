"""Results in HDF5, NeXus style, slices first, one chunk a slice.

A reconstruction, which methods make as (y, z, x), is (z, y, x) in the file: viewers of HDF5 and
programs that read it as images step through the first axis. A slice has the same bytes either way.

The HDF5 library creates the file with all chunks allocated, and closes it; the data are then
written to the offsets of the chunks by system calls. The library itself would keep chunks back to
write them later: where the disk has become full it then fails on closing the file, and ends the
process (HDF5 2.0 with a segmentation fault). So the space for what it writes itself is reserved
before it is called.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...errors import LostResultError, StoreError
from ...system import threads
from ...system.disk_space import preallocate, reserve
from ...system.fresh_files import check_one_name
from ...system.positional_io import write_rows
from ...system.threads import parallel_for_box
from ...tuning.mapped_output import file_map, is_safe_to_map
from ..hdf5.open_hdf5 import open_hdf5
from .atomic_sink import AtomicSink, SinkStart
from .nexus_notes import describe_data, notes_bytes, write_notes
from .result_info import ResultInfo

DATA_PATH = "entry/data/data"
"""Path of the data in the file."""
_CHUNK_LIMIT_BYTES = 2**32 - 1
"""Largest chunk of HDF5: its size is stored in 32 bits."""
_OVERHEAD_BYTES = 2**16
"""Disk space for what HDF5 writes beside the chunks.

HDF5 2.0 takes 6 KiB, for 1 slice as for 100,000, because chunks that are allocated early need no
index; the rest is left for other versions.
"""

_LARGE_BYTES = 2**25
"""Smallest block whose writing time tells the two ways apart: 32 MiB take about 7 ms at 5 GB/s."""


class Hdf5Sink(AtomicSink):
    """A `Sink` that writes an HDF5 file; see `create_sink` for the parameters."""

    def __init__(
        self,
        path: Path,
        spec: ArraySpec,
        slice_dim: int,
        start: SinkStart = "new",
        info: ResultInfo | None = None,
    ) -> None:
        info = ResultInfo() if info is None else info
        self._axis = info.file_axis(slice_dim)
        self._fd: int | None = None
        self._ways = [self._write_calls]
        self._took_s: dict[str, float] = {}
        slice_bytes = spec.with_slices(slice_dim, 1).nbytes
        if slice_bytes > _CHUNK_LIMIT_BYTES:
            raise StoreError(
                f"{path}: a slice of {slice_bytes} bytes is larger than an HDF5 chunk can "
                "be (4 GiB): write TIFF"
            )
        beside_bytes = 16 * spec.shape[slice_dim] + notes_bytes(info, spec.shape)
        needed_bytes = spec.nbytes + beside_bytes + _OVERHEAD_BYTES
        super().__init__(path, spec, slice_dim, needed_bytes, start, info)

    def _create(self) -> None:
        beside_bytes = _OVERHEAD_BYTES + notes_bytes(self.info, self.spec.shape)
        reserve(self._part, beside_bytes, os.O_CREAT | os.O_EXCL)
        self._part.unlink()
        self._offsets = _create_file(self._part, self._file_spec, self._axis, self.info)
        self._open_fd()

    def _reopen(self) -> None:
        self._find_offsets("r+")
        self._open_fd()

    def _join(self) -> None:
        self._find_offsets("r")
        self._open_fd()
        # Several processes that write by calls wait for one another: 3.6 GB/s together, 10.7 by
        # maps (four with four threads each, ext4, four H100s, 2026-11-27).
        self._ways = self._ways[-1:]

    def _find_offsets(self, mode: Literal["r", "r+"]) -> None:
        """Find the place of each slice in the file."""
        self._require_part(Path.is_file)
        check_one_name(self._part, self._part.lstat())
        if mode == "r+":
            reserve(self._part, _OVERHEAD_BYTES)
        try:
            self._offsets = _reopen_file(self._part, self._file_spec, self._axis, self.info, mode)
        except (KeyError, ValueError, OSError) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise LostResultError(
                f"{self._part}: is no unfinished result ({error}): start anew with --overwrite"
            ) from None

    @property
    def _file_spec(self) -> ArraySpec:
        """Shape and dtype of the data set."""
        return ArraySpec(self.info.file_shape(self.spec), self.spec.dtype)

    def _open_fd(self) -> None:
        """Open the file for writing, and find the ways in which it can be written."""
        slice_bytes = self.spec.with_slices(self._slice_dim, 1).nbytes
        has_no_gaps = bool((np.diff(self._offsets) == slice_bytes).all())
        may_map = has_no_gaps and threads.N_THREADS > 1 and is_safe_to_map(self._part)
        # On a network, where nothing is mapped, for writing alone: see `_FLAGS` of `ScratchStore`.
        flags = os.O_RDWR if may_map else os.O_WRONLY
        self._fd = os.open(self._part, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
        if preallocate(self._fd, self._part.stat().st_size) and may_map:
            self._ways = [self._write_calls, self._write_map]

    def _write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block along either dim: whole chunks, or a part of every chunk.

        Whole chunks are written in the faster of two ways, by the times of the first large blocks.
        """
        if slice_dim != self._slice_dim or block.nbytes < _LARGE_BYTES:
            self._write_calls(slice_dim, start, block)
            return
        write = min(self._ways, key=lambda way: self._took_s.get(way.__name__, 0.0))
        began = time.perf_counter()
        write(slice_dim, start, block)
        took_s = (time.perf_counter() - began) / block.nbytes
        self._took_s[write.__name__] = min(took_s, self._took_s.get(write.__name__, took_s))

    def _write_map(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write whole slices into a memory map, which several threads do at the same time."""
        assert self._fd is not None
        slices = block.swapaxes(0, slice_dim)
        memory = file_map(self._fd, self._offsets[start], block.nbytes)
        place = memory.view(block.dtype).reshape(slices.shape)

        def part(some: tuple[int, int], of_rows: tuple[int, int], values: NDArray[Any]) -> None:
            np.copyto(place[slice(*some), slice(*of_rows)], values)

        # Each thread has its own part of the file: two threads in one page wait for each other.
        parallel_for_box((0, slices.shape[0]), (0, slices.shape[1]), slices, part)

    def _write_calls(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block by system calls, of which a file takes one at a time."""
        fd = self._fd
        assert fd is not None
        box = [(0, n) for n in block.shape[:2]]
        box[slice_dim] = (start, start + block.shape[slice_dim])
        slices, rows = box[self._slice_dim], box[1 - self._slice_dim]
        row_bytes = self.spec.shape[2] * self.spec.dtype.itemsize

        def part(some: tuple[int, int], of_rows: tuple[int, int], values: NDArray[Any]) -> None:
            for i, piece in zip(range(*some), values, strict=True):
                write_rows(fd, piece, self._offsets[i] + of_rows[0] * row_bytes)

        parallel_for_box(slices, rows, block.swapaxes(0, self._slice_dim), part)

    def _sync(self) -> None:
        if self._fd is not None:
            os.fdatasync(self._fd)

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _shorten(self, n_slices: int) -> None:
        reserve(self._part, _OVERHEAD_BYTES)
        with _os_errors(), open_hdf5(self._part, "r+") as file:
            data = file[DATA_PATH]
            data.resize(n_slices, axis=self._axis)
            axes = list(self.info.axes)
            axes[self._axis] = "."  # its positions are more than the slices that are left
            data.parent.attrs["axes"] = axes
            data.attrs["incomplete"] = f"{n_slices} of {self.spec.shape[self._slice_dim]} slices"

    def _remove(self) -> None:
        self._part.unlink(missing_ok=True)


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


def _create_file(path: Path, spec: ArraySpec, axis: int, info: ResultInfo) -> list[int]:
    """Create a file with allocated, unwritten data; the offset of each slice along `axis`."""
    chunk = spec.with_slices(axis, 1).shape
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_chunk(chunk)
    layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with _os_errors(), open_hdf5(path, "x", libver=("v110", "v110")) as file:
        group = write_notes(file, info, (spec.shape[0], spec.shape[1], spec.shape[2]))
        data = h5py.h5d.create(
            group.id,
            b"data",
            h5py.h5t.py_create(spec.dtype, logical=True),
            h5py.h5s.create_simple(spec.shape),
            layout,
        )
        describe_data(group["data"], info)
        return _chunk_offsets(data, spec, axis)


def _reopen_file(
    path: Path, spec: ArraySpec, axis: int, info: ResultInfo, mode: Literal["r", "r+"]
) -> list[int]:
    """Open a file that `_create_file` made, at its full shape again; the offset of each chunk.

    The chunks of slices that were cut off are where they were: HDF5 computes their places from the
    largest shape.

    Raises
    ------
    ValueError, KeyError
        If it is another file.
    """
    # Processes that join read it at the same time: none changes what HDF5 itself keeps in it.
    options = {"locking": False} if mode == "r" else {}
    with _os_errors(), open_hdf5(path, mode, **options) as file:
        data = file[DATA_PATH]
        shape = spec.with_slices(axis, 1).shape
        if data.maxshape != spec.shape or data.dtype != spec.dtype or data.chunks != shape:
            raise ValueError(f"it is {data.maxshape} {data.dtype} and not {spec}")
        if data.shape != spec.shape:
            data.resize(spec.shape)
            data.attrs.pop("incomplete", None)
            data.parent.attrs["axes"] = list(info.axes)
        return _chunk_offsets(data.id, spec, axis)


def _chunk_offsets(data: Any, spec: ArraySpec, axis: int) -> list[int]:
    offsets = [0] * spec.shape[axis]

    def note(chunk: Any) -> None:
        offsets[chunk.chunk_offset[axis]] = chunk.byte_offset

    data.chunk_iter(note)
    return offsets
