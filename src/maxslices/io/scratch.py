"""An intermediate result on disk, laid out so that both directions are fast."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import StoreError
from ..model.arrays import ArraySpec
from ..system import threads
from ..system.disk_space import check_room, store_errors
from ..system.positional_io import bytes_of, pread_all, pwrite_all
from ..system.threads import spread
from ..tuning.batched_reads import pread_pieces
from ..tuning.deferred_free import Freeing
from .access import SupportsForget
from .check_arrays import check_block, check_target
from .closing import Closing

_BAND_BYTES = 2**18
"""Bytes of a band of one projection, where nobody says how it will be read."""
_UNIT_BYTES = 2**22
"""Bytes that lie together in one of the files."""


class ScratchStore(Closing, SupportsForget):
    """A store in files without names, which are gone when it is closed or the process ends.

    The rows are cut into bands, and a band holds its rows of all angles: (band, angle, row,
    column). Some angles of a band are a unit, which lies together in a file. What a block has
    of a unit is written from, or read to, its places in the block by one system call; nothing
    is transposed in memory.

    A system lets one thread at a time write to a file, so there are as many files as
    threads. The units of a band are dealt out to them in turn, and those of a block of
    projections too. Within a file the units of a band follow one another without gaps: a
    disk is told of each piece that becomes free again, and of few large ones sooner.

    Parameters
    ----------
    spec : ArraySpec
        Shape and dtype of the whole.
    folder : Path
        Where the files are; made if it is not there.
    band_rows : int, optional
        Rows in a band. Best is the number of sinograms in a block, where it is read or
        written along them; all rows, where it is not.
    memory_bytes : int
        Host memory that may hold a part of it: as many bands, the first ones, are kept there.

    Raises
    ------
    StoreError
        If the folder cannot be written to, or its disk has less room than the rest needs.
    """

    def __init__(
        self,
        spec: ArraySpec,
        folder: Path,
        *,
        band_rows: int | None = None,
        memory_bytes: int = 0,
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._row_bytes = spec.shape[2] * spec.dtype.itemsize
        if band_rows is None:
            band_rows = _BAND_BYTES // self._row_bytes
        self._band_rows = min(max(1, band_rows), spec.shape[1])
        unit_angles = max(1, _UNIT_BYTES // (self._band_rows * self._row_bytes))
        n_units = -(-spec.shape[0] // unit_angles)
        self._unit_angles = -(-spec.shape[0] // n_units)
        n_bands = -(-spec.shape[1] // self._band_rows)
        band_bytes = self._band_rows * self._row_bytes * spec.shape[0]
        self._n_kept = max(0, min(memory_bytes // band_bytes, n_bands - 1))
        self._kept = self._in_memory(self._n_kept * self._band_rows)
        self._begins = _begins(self._n_kept, n_bands, n_units, threads.N_THREADS)
        self._begins *= self._unit_angles * self._band_rows * self._row_bytes
        check_room(folder, spec.nbytes - self.memory_bytes)
        self._files: list[IO[bytes]] = []
        with store_errors(folder, spec.nbytes):
            folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as opened:
                for n_bytes in self._begins[-1].tolist():
                    file = opened.enter_context(TemporaryFile(buffering=0, dir=folder))
                    os.truncate(file.fileno(), n_bytes)
                    self._files.append(file)
                opened.pop_all()
        self._freeing = Freeing(self._files)
        self._n_forgotten = self._n_kept

    def _in_memory(self, n_rows: int) -> NDArray[Any]:
        n_angles, _, n_columns = self._spec.shape
        try:
            return np.empty((n_angles, n_rows, n_columns), self._spec.dtype)
        except MemoryError:
            self._n_kept = 0
            return np.empty((n_angles, 0, n_columns), self._spec.dtype)

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the whole."""
        return self._spec

    @property
    def memory_bytes(self) -> int:
        """Host memory that it holds."""
        return int(self._kept.nbytes)

    def write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block whose first slice along `slice_dim` is `start`.

        Raises
        ------
        StoreError
            If the disk is full.
        """
        check_block(self._spec, slice_dim, start, start + block.shape[slice_dim], block)
        self._transfer(slice_dim, start, block, writes=True)

    def read(self, slice_dim: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read slices `start` to `stop` along `slice_dim` into `out`."""
        check_target(self._spec, slice_dim, start, stop, out)
        self._transfer(slice_dim, start, out, writes=False)

    def forget(self, slice_dim: int, stop: int) -> None:
        """Start freeing the bands of slices before `stop`; see `SupportsForget.forget`."""
        if slice_dim == 1:
            while (self._n_forgotten + 1) * self._band_rows <= stop:
                spans = self._begins[self._n_forgotten : self._n_forgotten + 2].T.tolist()
                for number, span in enumerate(spans):
                    self._freeing.free(number, *span)
                self._n_forgotten += 1

    def _transfer(self, slice_dim: int, start: int, block: NDArray[Any], *, writes: bool) -> None:
        """Write or read a block: the part of it in each unit by itself, in several threads."""
        if not self._files:
            raise StoreError("this store is closed")
        first_angle, first_row = (start, 0) if slice_dim == 0 else (0, start)
        last_angle, last_row = first_angle + block.shape[0], first_row + block.shape[1]
        angles, rows = self._unit_angles, self._band_rows
        unit = first_angle // angles
        n_units = -(-last_angle // angles) - unit
        band = first_row // rows
        n_bands = -(-last_row // rows) - band

        def one(i: int) -> None:
            at_unit, at_band = unit + i % n_units, band + i // n_units
            begin = max(first_angle, at_unit * angles)
            end = min(last_angle, (at_unit + 1) * angles)
            top = max(first_row, at_band * rows)
            bottom = min(last_row, (at_band + 1) * rows)
            part = block[
                begin - first_angle : end - first_angle, top - first_row : bottom - first_row
            ]
            if at_band < self._n_kept:
                kept = self._kept[begin:end, top:bottom]
                np.copyto(*((kept, part) if writes else (part, kept)))
                return
            file, offsets = self._places(at_unit, at_band, begin, end, top)
            (_write if writes else _read)(self._files[file].fileno(), offsets, part)

        with store_errors(self._folder, self._spec.nbytes):
            spread(n_units * n_bands, one)

    def _places(
        self, unit: int, band: int, begin: int, end: int, row: int
    ) -> tuple[int, NDArray[np.int64]]:
        """Return the file of a unit, and where in it the rows from `row` on are.

        Of the angles from `begin` to before `end`, which are in the unit.
        """
        n_files = len(self._files)
        file = (unit + band) % n_files
        first_row = band * self._band_rows
        height = min(self._band_rows, self._spec.shape[1] - first_row)
        # Those of its band that come before it in the file are all of as many angles.
        before = unit // n_files * self._unit_angles - unit * self._unit_angles
        angles = np.arange(before + begin, before + end, dtype=np.int64)
        within = (angles * height + row - first_row) * self._row_bytes
        return file, self._begins[band, file] + within

    def close(self) -> None:
        """Give the memory back, and begin to give back the disk space: that may take a while."""
        self._kept = self._in_memory(0)
        self._files = []
        self._freeing.close()


def _begins(n_kept: int, n_bands: int, n_units: int, n_files: int) -> NDArray[np.int64]:
    """Return, in units, where each band begins in each file, and last where the files end.

    The first `n_kept` bands are in none.
    """
    units = np.arange(n_units)
    counts = [np.bincount((units + b) % n_files, minlength=n_files) for b in range(n_bands)]
    counts[:n_kept] = [np.zeros(n_files, np.int64)] * n_kept
    return np.cumsum([np.zeros(n_files, np.int64), *counts], axis=0)


def _write(fd: int, offsets: NDArray[np.int64], part: NDArray[Any]) -> None:
    if not part[0].flags.c_contiguous:
        part = np.ascontiguousarray(part)
    if (np.diff(offsets) == part[0].nbytes).all():  # one follows the other
        pwrite_all(fd, _pieces(part), int(offsets[0]))
        return
    for offset, rows in zip(offsets.tolist(), part, strict=True):
        pwrite_all(fd, [bytes_of(rows)], offset)


def _read(fd: int, offsets: NDArray[np.int64], part: NDArray[Any]) -> None:
    if (np.diff(offsets) == part[0].nbytes).all():
        pread_all(fd, _pieces(part), int(offsets[0]))
    else:
        pread_pieces(fd, part, offsets)


def _pieces(part: NDArray[Any]) -> list[memoryview]:
    """Return the memory of an array's items, in as few pieces as it lies in."""
    return [bytes_of(part)] if part.flags.c_contiguous else [bytes_of(rows) for rows in part]
