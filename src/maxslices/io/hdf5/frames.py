"""Data sets of HDF5 files as frames."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401  (registers the filters of compressed files)
import numpy as np
from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...errors import SourceError
from ..check_arrays import check_dtype, without_ones
from ..frames.frames import (
    FrameIndices,
    Frames,
    FramesWritten,
    IndexRange,
    as_slice,
    with_axes,
)
from ..frames.plain_frames import PlainFrames
from ..library_errors import (
    cause_of,
    found_no_memory,
    library_errors,
    raise_if_of_system,
    raised_by_library,
)
from .chunks import ChunkError, Chunks, OversizeError, locate_data, missing_filters
from .links import BrokenPath, FileContents, look_up, read_attribute
from .unwritten_frames import frames_written


class Hdf5Frames:
    """Frames in a data set of an open file.

    Parameters
    ----------
    path : Path
        Path of the file, for messages.
    file : h5py.File
        Is closed with these frames.
    data_path : str
        Path of the data set in the file.
    """

    def __init__(self, path: Path, file: h5py.File, data_path: str) -> None:
        self.name = f"{path}:/{data_path.strip('/')}"
        self._file = file
        self._data = dataset(path, file, data_path, "data_path")
        with library_errors(self.name):
            shape, dtype = self._data.shape, self._data.dtype
        if shape is None or len(shape) != 3 or 0 in shape:
            found = "nothing" if shape is None or 0 in shape else f"{len(shape)} dims, {shape}"
            raise SourceError(
                f"{self.name}: holds {found}: a scan has three dims, (angles, detector_y, "
                f"detector_x){without_ones(shape)}{FileContents(file).stacks()}"
            )
        self.spec = ArraySpec(shape, check_dtype(self.name, dtype))
        self._written: FramesWritten | None = None
        self._locations: PlainFrames | Chunks | None = None
        self._fd: int | None = None
        self._located = self._closed = False
        self._lock = threading.Lock()

    @property
    def files(self) -> Iterable[Path]:
        """Files that the frames are read from; those of a virtual data set after `written`."""
        return {Path(self._file.filename), Path(self._data.file.filename)} | (
            set() if self._written is None else self._written.files
        )

    @property
    def reads_rows(self) -> bool:
        """True if pixels are read by offset, and are not compressed."""
        locations = self._locate()
        return locations is not None and not (isinstance(locations, Chunks) and locations.filters)

    def written(self, *, allow_missing: bool) -> FramesWritten:
        """Find which frames were written; see `frames_written`."""
        if self._written is None:
            self._written = frames_written(self._data, self.name, allow_missing=allow_missing)
        return self._written

    def read(
        self, frames: FrameIndices, rows: IndexRange, columns: IndexRange, out: NDArray[Any]
    ) -> None:
        """Read a part into `out`: by offset where possible, else by the HDF5 library."""
        of = f"{self.name}: frames {frames[0]}:{frames[-1] + 1}"
        try:
            if not self._read_by_offset(frames, rows, columns, out):
                part = (as_slice(frames), slice(*rows), slice(*columns))
                self._data.read_direct(out, source_sel=part)
        except EOFError as error:
            raise SourceError(
                f"{of} cannot be read ({error}): the file "
                "became shorter after it was opened; copy it again"
            ) from None
        except OversizeError as error:
            raise SourceError(
                f"{of} cannot be read ({error}): the file is damaged; copy it again"
            ) from None
        except Exception as error:
            raise_if_of_system(of, error)
            if not isinstance(error, OSError) and not raised_by_library(error):
                raise
            if isinstance(error, MemoryError) or found_no_memory(error):
                raise MemoryError(f"{self.name}: {cause_of(error)}") from None
            missing: list[str] = []
            with suppress(RuntimeError, ValueError):  # what else it cannot read
                missing = missing_filters(self._data)
            hint = "the file is damaged, or its compression is unknown here"
            if missing:
                hint = (
                    f"it is compressed by {' and '.join(missing)}, which is not installed: "
                    "install that HDF5 plugin and name its folder in HDF5_PLUGIN_PATH"
                )
            raise SourceError(f"{of} cannot be read ({cause_of(error)}): {hint}") from None

    def _read_by_offset(
        self, frames: FrameIndices, rows: IndexRange, columns: IndexRange, out: NDArray[Any]
    ) -> bool:
        """Read a part without the HDF5 library, whose lock another thread may hold.

        Returns
        -------
        bool
            False if the library must read it.
        """
        locations = self._locate()
        with self._lock:
            if self._closed:
                raise SourceError(f"{self.name}: is closed")
            if self._fd is None or locations is None:
                return False
            fd = os.dup(self._fd)
        try:
            locations.read(fd, frames, rows, columns, out)
        except (ChunkError, zlib.error):
            return False  # the library knows more ways to store a chunk, or names the damage
        finally:
            os.close(fd)
        return True

    def _locate(self) -> PlainFrames | Chunks | None:
        """Locate the pixels in the file, once; None if the library must read them."""
        with self._lock:
            if not self._located and not self._closed:
                self._locations = locate_data(self._data)
                if self._locations is not None:
                    self._fd = os.dup(self._data.file.id.get_vfd_handle())
                self._located = True
            return self._locations

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._closed = True
            fd, self._fd = self._fd, None
            if fd is not None:
                os.close(fd)
        self._file.close()


def stored_axes(data: h5py.Dataset) -> tuple[str, ...]:
    """Names of the axes of a data set, by itself as in Data Exchange, or by its NXdata group."""
    own = _texts(read_attribute(data, "axes", ()))
    if len(own) == 1:
        own = tuple(own[0].replace(",", ":").split(":"))
    if len(own) == data.ndim:
        return own
    group, name = data.parent, data.name.rpartition("/")[2]
    signal = _texts(read_attribute(group, "signal", name))
    return _texts(read_attribute(group, "axes", ())) if signal == (name,) else ()


def _texts(attribute: Any) -> tuple[str, ...]:
    values = np.ravel(np.asarray(attribute))
    return tuple(v.decode(errors="replace") if isinstance(v, bytes) else str(v) for v in values)


def hdf5_frames(path: Path, file: h5py.File, data_path: str) -> Frames:
    """Frames in a data set of an open file, which may be stored as sinograms.

    Raises
    ------
    SourceError
        If the data set is missing or not a stack, or its last axis is that of the angles.
    """
    frames = Hdf5Frames(path, file, data_path)
    with library_errors(frames.name):
        axes = stored_axes(dataset(path, file, data_path, "data_path"))
    return with_axes(frames, axes)


def dataset(path: Path, file: h5py.File, name: str, parameter: str) -> h5py.Dataset:
    """Open a data set of a file.

    Raises
    ------
    SourceError
        If it does not exist, is a group or damaged, or a link on the way leads nowhere.
    """
    found = look_up(file, name)
    if isinstance(found, h5py.Dataset):
        return found
    if isinstance(found, BrokenPath):
        raise SourceError(f"{path}: {name} {found.reason}")
    what = "is a group, not a data set" if isinstance(found, h5py.Group) else "is not in the file"
    raise SourceError(
        f"{path}: {name} {what}: give another {parameter}{FileContents(file).stacks()}"
    )


def read_column(name: str, data: h5py.Dataset, allow_missing: bool) -> NDArray[Any]:
    """Read a data set with a value for each frame.

    Raises
    ------
    SourceError
        If values were never written, unless they may be missing, or the data set is damaged.
    """
    with library_errors(name):
        missing = frames_written(data, name, allow_missing=allow_missing).missing
        if missing is not None and not allow_missing:
            raise SourceError(
                f"{name}: {np.count_nonzero(missing)} of {missing.size} values were never written: "
                "the acquisition was aborted, or still runs; allow it with --allow-missing-frames"
            )
        values: NDArray[Any] = data[()]
        return values
