"""Data sets of HDF5 files as frames."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401  (registers the filters of compressed files)
import numpy as np
from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...errors import SourceError
from ..access import Closing
from ..check_arrays import check_dtype, without_ones
from ..files import (
    cause_of,
    found_no_memory,
    library_errors,
    raise_if_of_system,
    raised_by_library,
)
from ..frames.frames import (
    ArrayFrames,
    FrameIndices,
    Frames,
    FramesWritten,
    IndexRange,
    PlainFrames,
    as_slice,
    with_axes,
)
from . import objects
from .chunks import ChunkError, Chunks, OversizeError, filters, locate_data
from .objects import (
    LISTED,
    BrokenPath,
    FileObjects,
    is_nxtomo,
    look_up,
    names_in,
    open_file,
    read_attribute,
)
from .unwritten_frames import frames_written

_MOST_ENTRIES = 100
"""Largest number of groups that are searched for further scans, in 3 ms."""


class Hdf5Frames(Frames):
    """Frames in a data set of an open file.

    Parameters
    ----------
    file : Hdf5File
        The open file, which is closed with these frames.
    data_path : str
        Path of the data set in the file.
    """

    def __init__(self, file: Hdf5File, data_path: str) -> None:
        self.name = f"{file.name}:/{data_path.strip('/')}"
        self._file = file
        self._data = file.array(data_path, "data_path")
        with library_errors(self.name):
            shape, dtype = self._data.shape, self._data.dtype
        if shape is None or len(shape) != 3 or 0 in shape:
            contents = "no values" if shape is None or 0 in shape else f"{len(shape)} dims, {shape}"
            raise SourceError(
                f"{self.name}: holds {contents}: a scan has three dims, (angles, detector_y, "
                f"detector_x){without_ones(shape)}{file.stacks()}"
            )
        self.spec = ArraySpec(shape, check_dtype(self.name, dtype))
        # Absolute: a method may change the current folder.
        self._place = os.path.abspath(self._data.file.filename)
        self._written: FramesWritten | None = None
        self._is_closed = False

    @property
    def files(self) -> Iterable[Path]:
        """Files of the frames; those of a virtual data set are known after `written`."""
        return {self._file.path, Path(self._data.file.filename)} | (
            set() if self._written is None else self._written.files
        )

    @property
    def reads_rows(self) -> bool:
        """True if frames are contiguous and read by offset."""
        return isinstance(self._locations, PlainFrames)

    def written(self) -> FramesWritten:
        """Find which frames were written; see `frames_written`."""
        if self._written is None:
            with library_errors(self.name):
                self._written = frames_written(self._data, self.name)
        return self._written

    def read(
        self, frames: FrameIndices, rows: IndexRange, columns: IndexRange, out: NDArray[Any]
    ) -> None:
        """Read a part into `out`, by offset if possible, else with the HDF5 library."""
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
            with suppress(RuntimeError, ValueError):  # the filters may be damaged too
                missing = [
                    f"{name.decode(errors='replace') or 'a filter'} (number {number})"
                    for number, name in filters(self._data)
                    if not h5py.h5z.filter_avail(number)
                ]
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
            False if the library must read the part.
        """
        if self._is_closed:
            raise SourceError(f"{self.name}: is closed")
        if self._locations is None:
            return False
        fd = os.open(self._place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._locations.read(fd, frames, rows, columns, out)
        except (ChunkError, zlib.error):
            return False  # the library supports more encodings, or reports the damage
        finally:
            os.close(fd)
        return True

    @cached_property
    def _locations(self) -> PlainFrames | Chunks | None:
        """Places of the pixels in the file; None if the library must read them."""
        return locate_data(self._data)

    def close(self) -> None:
        """Close the file."""
        self._is_closed = True
        self._file.close()


class Hdf5File(Closing):
    """An HDF5 file that is open for reading, as a file of a scan.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    SourceError
        If it is not an HDF5 file, is truncated or is being written.
    """

    default: str | None = None
    """Path of the default array; None in HDF5."""
    is_guessed = False
    """True if frames in files of unknown layout are always searched for by shapes and names."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        with library_errors(self.name):
            self._file = open_file(path)
        self._walked: dict[bool, tuple[list[tuple[str, Any]], bool]] = {}

    def find(self, where: str) -> Any:
        """Data set, group or `BrokenPath` at a path; None if it does not exist."""
        return look_up(self._file, where)

    def array(self, where: str, parameter: str) -> h5py.Dataset:
        """Open the data set in a parameter of the loader.

        Raises
        ------
        SourceError
            If it does not exist, is a group or damaged, or a link in its path is broken.
        """
        item = self.find(where)
        if isinstance(item, h5py.Dataset):
            return item
        if isinstance(item, BrokenPath):
            raise SourceError(f"{self.name}: {where} {item.reason}")
        is_group = isinstance(item, h5py.Group)
        what = "is a group, not a data set" if is_group else "is not in the file"
        raise SourceError(f"{self.name}: {where} {what}: give another {parameter}{self.stacks()}")

    def frames(self, where: str, parameter: str = "data_path") -> Frames:
        """Frames of a data set, which may be stored as sinograms.

        A two-dimensional data set is one frame of flats or darks, such as their mean.
        """
        data = self.array(where, "data_path")
        name = f"{self.name}:/{where.strip('/')}"
        with library_errors(name):
            if data.ndim == 2 and parameter != "data_path":
                return ArrayFrames(name, data[()][np.newaxis])
            return with_axes(Hdf5Frames(self, where), _stored_axes(data))

    def column(self, where: str, parameter: str) -> NDArray[Any]:
        """Read a data set with a value for each frame.

        Raises
        ------
        SourceError
            If values were never written, or the data set is damaged.
        """
        data, name = self.array(where, parameter), f"{self.name}: {where}"
        with library_errors(name):
            missing = frames_written(data, name).missing
            if missing.any():
                raise SourceError(
                    f"{name}: {np.count_nonzero(missing)} of {missing.size} values were never "
                    f"written: give another {parameter}"
                )
            values: NDArray[Any] = data[()]
            return values

    def entries(self, *, at_top: bool = False) -> Iterator[str]:
        """Iterate over NXtomo groups in the whole file, or among the first groups at its top."""
        if at_top:
            names = list(islice(names_in(self._file), _MOST_ENTRIES))
            groups: Iterable[tuple[str, Any]] = ((name, self.find(name)) for name in names)
        else:
            groups, _ = self._objects(follows_links=True)
        return (
            name.strip("/")
            for name, item in groups
            if isinstance(item, h5py.Group) and is_nxtomo(item)
        )

    def arrays(self, *, follows_links: bool = False) -> Iterator[tuple[str, h5py.Dataset]]:
        """Iterate over data sets, in other files too if links are followed."""
        objects, _ = self._objects(follows_links)
        return ((name, item) for name, item in objects if isinstance(item, h5py.Dataset))

    def _objects(self, follows_links: bool) -> tuple[list[tuple[str, Any]], bool]:
        """Objects of the file, read once, and whether the list is complete."""
        if follows_links not in self._walked:
            objects = FileObjects(self._file, follows_links=follows_links)
            self._walked[follows_links] = list(objects), objects.is_complete
        return self._walked[follows_links]

    def stacks(self) -> str:
        """List of 3D data sets, as the end of a message."""
        try:
            stacks = [
                f"{name} ({'x'.join(map(str, item.shape))} {item.dtype})"
                for name, item in self.arrays(follows_links=True)
                if item.ndim == 3
            ]
        except Exception as error:
            if not raised_by_library(error):
                raise
            return "; the file is damaged: copy it again"
        rest = ""
        if not self._objects(follows_links=True)[1]:
            rest = f"; only the first {objects.MAX_OBJECTS:,} of its links were looked at"
        if not stacks:
            return f"; there is no 3D data set in the file{rest}"
        more = f" and {len(stacks) - LISTED} more" if len(stacks) > LISTED else ""
        return f"; 3D data sets in the file: {', '.join(stacks[:LISTED])}{more}{rest}"

    def storage(self, where: str, key: str | None) -> dict[str, Any]:
        """Axes, chunks, filters and size of stored frames, and the number of each kind of frame."""
        frames: h5py.Dataset = self.find(where)
        kinds = None if key is None else self.find(key)
        facts: dict[str, Any] = {"is_complete": self._objects(follows_links=False)[1]}
        facts["axes"], facts["chunks"] = _stored_axes(frames), frames.chunks
        facts["compression"] = ", ".join(
            name.decode(errors="replace").split(";")[0].strip() or f"filter {number}"
            for number, name in filters(frames)
        )
        facts["stored_bytes"] = int(frames.id.get_storage_size())
        if isinstance(kinds, h5py.Dataset) and kinds.ndim == 1 and kinds.dtype.kind in "biuf":
            values, counts = np.unique(kinds[()], return_counts=True)
            pairs = zip(values.tolist(), counts.tolist(), strict=True)
            facts["frame_kinds"] = {int(v): n for v, n in pairs if np.isfinite(v)}
        return facts

    def close(self) -> None:
        """Close the file; a second call has no effect."""
        self._file.close()


def _stored_axes(data: h5py.Dataset) -> tuple[str, ...]:
    """Names of axes in attributes of a data set, as in Data Exchange, or of its NXdata group."""
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
