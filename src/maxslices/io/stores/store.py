"""Stores of the data between two sections, in memory and in files for both slice dims."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...core.units import format_bytes
from ...errors import StoreError
from ...system import threads
from ...system.disk_space import check_free_space, close_in_background, store_errors
from ...system.files import bytes_of, check_one_name, pread_all, pwrite_all
from ...system.threads import parallel_copy, parallel_for
from ...tuning.file_transfer import pread_pieces
from ..access import Closing, SupportsWindow
from ..check_arrays import check_block, check_output_block


class MemoryStore(Closing, SupportsWindow):
    """A store in memory.

    Parameters
    ----------
    spec : ArraySpec
        Shape and dtype of the whole.
    array : ndarray, optional
        Memory of the store, such as pinned memory; by default a new array.

    Raises
    ------
    StoreError
        If memory cannot be allocated.
    """

    def __init__(self, spec: ArraySpec, array: NDArray[Any] | None = None) -> None:
        self.spec = spec
        try:
            whole = np.empty(spec.shape, spec.dtype) if array is None else array
            self._array: NDArray[Any] | None = whole
        except MemoryError:
            raise StoreError(
                f"{format_bytes(spec.nbytes)} for a result between two sections ({spec}) cannot be "
                "allocated: reduce the memory limit, so that it goes to a scratch file"
            ) from None

    @property
    def array(self) -> NDArray[Any]:
        """The whole array, without a copy; it may be used after the store is closed."""
        if self._array is None:
            raise StoreError("this store is closed")
        return self._array

    def write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block whose first slice along `slice_dim` is `start`."""
        stop = start + block.shape[slice_dim]
        check_block(self.spec, slice_dim, start, stop, block)
        parallel_copy(self._slices(slice_dim, start, stop), block)

    def read(self, slice_dim: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read slices `start` to `stop` along `slice_dim` into `out`."""
        check_output_block(self.spec, slice_dim, start, stop, out)
        parallel_copy(out, self._slices(slice_dim, start, stop))

    def window(self, slice_dim: int, start: int, stop: int) -> NDArray[Any]:
        """View of slices; see `SupportsWindow.window`."""
        return self._slices(slice_dim, start, stop)

    def _slices(self, slice_dim: int, start: int, stop: int) -> NDArray[Any]:
        return self.array[start:stop] if slice_dim == 0 else self.array[:, start:stop]

    def close(self) -> None:
        """Free the memory."""
        self._array = None


UNIT_BYTES = 2**22
"""Bytes of a unit, which is contiguous in one of the files.

Writing a file to the page cache takes 5.0 GB/s with any number of threads, so a unit takes 0.8 ms.
A block of 100 MiB is spread over all files.
"""

OPEN_FLAGS = {"reading": os.O_RDONLY, "writing": os.O_WRONLY}
"""Flags for opening files. Several hosts may write to one page of a file. If the file is open for
writing alone, NFS writes back only the changed bytes. Otherwise it reads the page first and writes
all of it, and overwrites the data of other hosts (`nfs_want_read_modify_write`)."""
_MODES = {os.O_RDWR: "r+b", os.O_RDONLY: "rb", os.O_WRONLY: "wb"}
_OF_PROCESSES = Path("/proc")
"""Folder with open files of other processes of the same user."""


@dataclass(frozen=True, slots=True)
class ScratchLayout:
    """Description with which another process opens a `ScratchStore`."""

    spec: ArraySpec
    """Shape and dtype of the whole."""
    folder: Path
    """Folder of the files on disk."""
    band_rows: int
    """Rows in a band."""
    memory_bytes: int
    """Host memory that its first bands take."""
    in_memory: tuple[Path, ...]
    """Paths of the files in memory, for processes of the same user on the same machine."""
    on_disk: tuple[Path, ...]
    """Paths of the files on disk. Files without names have paths as those in memory."""


@dataclass(slots=True)
class _Files:
    """Files with a range of bands, whose units are spread over them."""

    first_band: int
    """Index of the first one."""
    offsets: NDArray[np.int64]
    """Offset of each band in each file in bytes, followed by the sizes of the files."""
    opened: list[IO[bytes]] = field(default_factory=list)
    """The files; empty without bands."""

    @property
    def sizes(self) -> list[int]:
        """Size of each file in bytes; empty without bands."""
        return self.offsets[-1].tolist() if len(self.offsets) > 1 else []


class ScratchStore(Closing):
    """A store in files, which are deleted when it is closed.

    Files without names are also deleted when the process ends. The first bands may be in files in
    memory, which need no disk space. Other processes can open them like those on disk.

    The rows are split into bands. The order of the data is (band, angle, row, column). A group of
    angles of a band is a unit, which is contiguous in a file. One system call transfers the part
    of a block in a unit, and nothing is transposed in memory.

    Linux allows one thread at a time to write to a file, so there are as many files as threads.
    With one file, a run with 8 GB between two sections takes 2.3 times as long (H200, 2026-11-22).
    The units of a band, and those of a block of projections, are spread over the files in turn.
    Within a file the units of a band are adjacent, so that freed space consists of few large
    pieces. A file system mounted with ``discard`` reports each piece to the disk.

    Parameters
    ----------
    spec : ArraySpec
        Shape and dtype of the whole.
    folder : Path or None
        Folder of the files, created if needed; None uses the folder for temporary files.
    band_rows : int, optional
        Rows in a band; by default all. For blocks along dim 1, the number of sinograms in a block
        is best.
    memory_bytes : int
        Host memory for files in memory, which contain as many of the first bands as fit. If the
        page cache is small, a run with 8 GB takes 20 % longer without (H200, 2026-11-22).
    names : sequence of str, optional
        Names of the files on disk, which determine their number. Named files remain until the
        store is closed, so that another process can resume. By default files have no names.
    is_there : bool
        Whether the files exist, written by a store of the same `spec` and `band_rows`.

    Raises
    ------
    StoreError
        If the folder cannot be written, its disk has too little free space, or existing files are
        missing.
    """

    folder: Path
    """Folder of the files on disk."""
    _paths: list[Path]
    """Paths of the named files on disk."""
    _in_memory: _Files
    _on_disk: _Files

    def __init__(
        self,
        spec: ArraySpec,
        folder: Path | None,
        *,
        band_rows: int | None = None,
        memory_bytes: int = 0,
        names: Sequence[str] = (),
        is_there: bool = False,
    ) -> None:
        folder = _temporary_folder() if folder is None else folder
        self._arrange(spec, folder, band_rows, memory_bytes, len(names) or threads.N_THREADS)
        if self._on_disk.sizes:
            self._paths = [folder / name for name in names]
        if is_there:
            self._reopen(self._on_disk, self._paths, os.O_RDWR)
            return
        check_free_space(folder, spec.nbytes - self.memory_bytes)
        with store_errors(folder, spec.nbytes):
            folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as opened:
                for files, create in (
                    (self._in_memory, _create_in_memory),
                    (self._on_disk, self._create_on_disk),
                ):
                    for number, n_bytes in enumerate(files.sizes):
                        file = opened.enter_context(create(number))
                        os.truncate(file.fileno(), n_bytes)
                        files.opened.append(file)
                opened.pop_all()

    def _arrange(
        self, spec: ArraySpec, folder: Path, band_rows: int | None, memory_bytes: int, n_files: int
    ) -> None:
        """Compute the layout of the files."""
        self._paths = []
        self.spec = spec
        self.folder = folder
        self._row_bytes = spec.shape[2] * spec.dtype.itemsize
        self._band_rows = min(band_rows or spec.shape[1], spec.shape[1])
        unit_angles = max(1, UNIT_BYTES // (self._band_rows * self._row_bytes))
        n_units = -(-spec.shape[0] // unit_angles)
        self._unit_angles = -(-spec.shape[0] // n_units)
        n_bands = -(-spec.shape[1] // self._band_rows)
        band_bytes = self._band_rows * self._row_bytes * spec.shape[0]
        in_memory = n_bands if memory_bytes >= spec.nbytes else max(0, memory_bytes // band_bytes)
        unit_bytes = self._unit_angles * self._band_rows * self._row_bytes
        self._in_memory, self._on_disk = (
            _Files(bands.start, unit_bytes * _offsets_of_bands(bands, n_units, n_files))
            for bands in (range(in_memory), range(in_memory, n_bands))
        )

    def _create_on_disk(self, number: int) -> IO[bytes]:
        """Create a file, and replace one with the same name."""
        if not self._paths:
            return tempfile.TemporaryFile(buffering=0, dir=self.folder)
        self._paths[number].unlink(missing_ok=True)
        return open(self._paths[number], "x+b", buffering=0)

    @classmethod
    def join(cls, layout: ScratchLayout, how: Literal["reading", "writing"]) -> ScratchStore:
        """Open the files of a store of another process; closing does not delete them.

        Raises
        ------
        StoreError
            If they do not exist.
        """
        store = cls.__new__(cls)
        n_files = len(layout.in_memory) or len(layout.on_disk)
        store._arrange(layout.spec, layout.folder, layout.band_rows, layout.memory_bytes, n_files)
        with ExitStack() as failed:
            failed.callback(store.close)
            store._reopen(store._in_memory, layout.in_memory, OPEN_FLAGS[how])
            store._reopen(store._on_disk, layout.on_disk, OPEN_FLAGS[how])
            failed.pop_all()
        return store

    @property
    def layout(self) -> ScratchLayout:
        """Description with which another process joins the store."""
        named = tuple(path.absolute() for path in self._paths)
        return ScratchLayout(
            self.spec,
            self.folder.absolute(),
            self._band_rows,
            self.memory_bytes,
            _paths_of(self._in_memory),
            named or _paths_of(self._on_disk),
        )

    def sync(self) -> None:
        """Put all written data on disk, or on the server of a network folder."""
        with store_errors(self.folder, self.spec.nbytes):
            for file in self._on_disk.opened:
                os.fdatasync(file.fileno())

    def _reopen(self, files: _Files, paths: Sequence[Path], flags: int) -> None:
        """Open files that another process created."""
        folder = paths[0].parent if paths else self.folder
        with store_errors(folder, self.spec.nbytes), ExitStack() as opened:
            for path, n_bytes in zip(paths, files.sizes, strict=True):
                is_nameless = path.is_relative_to(_OF_PROCESSES)  # there it is a link
                fd = os.open(path, flags | os.O_CLOEXEC | (0 if is_nameless else os.O_NOFOLLOW))
                file = opened.enter_context(os.fdopen(fd, _MODES[flags], buffering=0))
                check_one_name(path, os.fstat(fd))
                if os.fstat(fd).st_size != n_bytes:
                    raise StoreError(f"{path}: is not a scratch file of this run: start anew")
                files.opened.append(file)
            opened.pop_all()

    @property
    def memory_bytes(self) -> int:
        """Host memory of the store when it is full."""
        rows = min(self._on_disk.first_band * self._band_rows, self.spec.shape[1])
        return rows * self._row_bytes * self.spec.shape[0]

    def write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block whose first slice along `slice_dim` is `start`.

        Raises
        ------
        StoreError
            If the disk is full.
        """
        check_block(self.spec, slice_dim, start, start + block.shape[slice_dim], block)
        self._transfer(slice_dim, start, block, writes=True)

    def read(self, slice_dim: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read slices `start` to `stop` along `slice_dim` into `out`."""
        check_output_block(self.spec, slice_dim, start, stop, out)
        self._transfer(slice_dim, start, out, writes=False)

    def _transfer(self, slice_dim: int, start: int, block: NDArray[Any], *, writes: bool) -> None:
        """Write or read a block by units, with several threads."""
        if not (self._in_memory.opened or self._on_disk.opened):
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
            fd, offsets = self._locate(at_unit, at_band, begin, end, top)
            (_write if writes else _read)(fd, offsets, part)

        with store_errors(self.folder, self.spec.nbytes):
            parallel_for(n_units * n_bands, one)

    def _locate(
        self, unit: int, band: int, begin: int, end: int, row: int
    ) -> tuple[int, NDArray[np.int64]]:
        """File of a unit, and the offset in it of row `row` for each angle.

        The unit contains the angles from `begin` to `end` (excluded).
        """
        files = self._in_memory if band < self._on_disk.first_band else self._on_disk
        n_files = len(files.opened)
        file = (unit + band) % n_files
        first_row = band * self._band_rows
        height = min(self._band_rows, self.spec.shape[1] - first_row)
        # All earlier units of the band in the file have the same number of angles.
        before = unit // n_files * self._unit_angles - unit * self._unit_angles
        angles = np.arange(before + begin, before + end, dtype=np.int64)
        within = (angles * height + row - first_row) * self._row_bytes
        return files.opened[file].fileno(), files.offsets[band - files.first_band, file] + within

    def close(self) -> None:
        """Free the memory and the disk space in the background."""
        paths, self._paths = self._paths, []
        for path in paths:
            path.unlink(missing_ok=True)
        for files in (self._in_memory, self._on_disk):
            opened, files.opened = files.opened, []
            close_in_background(opened)

    def suspend(self) -> None:
        """Free the memory, and keep named files for another process."""
        self._paths = []
        self.close()


def _temporary_folder() -> Path:
    """Folder for temporary files of the system.

    Raises
    ------
    StoreError
        If no such folder is writable.
    """
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise StoreError(
            f"a result between two sections needs a scratch file: {error.strerror}: name a folder "
            "for it (--scratch)"
        ) from None


def _paths_of(files: _Files) -> tuple[Path, ...]:
    """Paths of open files of this process for other processes."""
    here = _OF_PROCESSES / str(os.getpid()) / "fd"
    return tuple(here / str(file.fileno()) for file in files.opened)


def _create_in_memory(number: int) -> IO[bytes]:
    return os.fdopen(os.memfd_create(f"maxslices-{number}"), "r+b", buffering=0)


def _offsets_of_bands(bands: range, n_units: int, n_files: int) -> NDArray[np.int64]:
    """Offset of each band in each file in units, followed by the sizes of the files."""
    units = np.arange(n_units)
    counts = [np.bincount((units + band) % n_files, minlength=n_files) for band in bands]
    return np.cumsum([np.zeros(n_files, np.int64), *counts], axis=0)


def _write(fd: int, offsets: NDArray[np.int64], part: NDArray[Any]) -> None:
    if not part[0].flags.c_contiguous:
        part = np.ascontiguousarray(part)
    if (np.diff(offsets) == part[0].nbytes).all():  # contiguous
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
    """Memory of an array, in as few contiguous pieces as possible."""
    return [bytes_of(part)] if part.flags.c_contiguous else [bytes_of(rows) for rows in part]
