"""Stacks of frames: the interface, stacks in arrays and at offsets of a file, and subsets."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...errors import SourceError
from ...system.files import bytes_of, pread_all
from ...system.threads import fit_in_buffer, parallel_copy, parallel_for_box
from ...tuning.file_transfer import pread_pieces
from ..check_arrays import check_dtype, without_ones
from ..files import cause_of, raise_if_of_system, raised_by_library

IndexRange = tuple[int, int]
"""First index, and the index after the last."""
FrameIndices = NDArray[np.int64]
"""Increasing indices of frames."""


def as_slice(indices: FrameIndices) -> slice | FrameIndices:
    """Slice with the same items as increasing indices; the indices if they are not evenly spaced.

    Examples
    --------
    >>> as_slice(np.array([3, 5, 7]))
    slice(3, 8, 2)
    """
    step = int(indices[1] - indices[0]) if indices.size > 1 else 1
    if (np.diff(indices) == step).all():
        return slice(int(indices[0]), int(indices[-1]) + 1, step)
    return indices


ABORTED = "the acquisition was aborted, or still runs; read the complete frames with --angles"
"""Reason for missing frames if no other is known, and the next step."""


@dataclass(slots=True)
class FramesWritten:
    """Which frames of a stack were written, and by which files."""

    missing: NDArray[np.bool_]
    """True for each frame that was not written whole."""
    files: set[Path] = field(default_factory=set)
    """Files of the frames, in addition to the one that was opened."""
    why: str = ""
    """Why frames are missing, if a file is the reason."""


class Frames(ABC):
    """A stack of frames that is read in parts."""

    name: str
    """Name of the stack in messages."""
    spec: ArraySpec
    """Shape (frames, rows, columns) and native dtype."""

    @property
    def files(self) -> Iterable[Path]:
        """Files of the frames; empty for an array."""
        return ()

    @property
    def reads_rows(self) -> bool:
        """True if rows of a frame are read without its other rows."""
        return True

    def written(self) -> FramesWritten:
        """Find which frames were written. Only HDF5 may lack some; see `unwritten_frames`."""
        return FramesWritten(np.zeros(self.spec.shape[0], np.bool_))

    @abstractmethod
    def read(
        self, frames: FrameIndices, rows: IndexRange, columns: IndexRange, out: NDArray[Any]
    ) -> None:
        """Read some rows and columns of frames into `out`.

        Parameters
        ----------
        frames : ndarray of int64
            Increasing indices of the frames.
        rows, columns : (int, int)
            First index, and the index after the last.
        out : ndarray
            C-contiguous array of the native dtype.

        Raises
        ------
        SourceError
            If it cannot be read.
        """

    def close(self) -> None:  # noqa: B027
        """Close the file, if any; a second call has no effect."""


class ArrayFrames(Frames):
    """Frames in an array."""

    def __init__(self, name: str, array: NDArray[Any]) -> None:
        if isinstance(array, np.ma.MaskedArray):
            raise SourceError(
                f"{name}: is a masked array, and methods do not support masks: give "
                "array.filled(value), or array.data to include masked values"
            )
        if array.ndim != 3 or 0 in array.shape:
            raise SourceError(
                f"{name}: has shape {array.shape}: a scan has three dims, (angles, detector_y, "
                f"detector_x), of at least 1{without_ones(array.shape)}"
            )
        self.name = name
        self._array: NDArray[Any] | None = array
        self.spec = ArraySpec(array.shape, check_dtype(name, array.dtype))

    @property
    def array(self) -> NDArray[Any] | None:
        """The array itself; None after `close`."""
        return self._array

    def read(
        self, frames: FrameIndices, rows: IndexRange, columns: IndexRange, out: NDArray[Any]
    ) -> None:
        """Copy a part into `out`; see `Frames.read`."""
        if self._array is None:
            raise SourceError(f"{self.name}: is closed")
        within = self._array[:, slice(*rows), slice(*columns)]
        parallel_copy(out, within[as_slice(frames)])

    def close(self) -> None:
        """Drop the array."""
        self._array = None


class JoinedFrames(Frames):
    """Two stacks of frames, one after the other."""

    def __init__(self, first: Frames, second: Frames) -> None:
        if first.spec.shape[1:] != second.spec.shape[1:] or first.spec.dtype != second.spec.dtype:
            raise SourceError(
                f"{first.name} and {second.name}: frames of {first.spec} and of {second.spec} "
                "differ in shape or dtype: give one of them to the loader (data_path)"
            )
        self._parts = first, second
        self._n_first = first.spec.shape[0]
        self.name = f"{first.name} and {second.name}"
        n_frames = self._n_first + second.spec.shape[0]
        self.spec = ArraySpec((n_frames, *first.spec.shape[1:]), first.spec.dtype)

    @property
    def files(self) -> Iterable[Path]:
        """Files of the frames."""
        return [path for part in self._parts for path in part.files]

    @property
    def reads_rows(self) -> bool:
        """True if both stacks read rows of a frame without its other rows."""
        return all(part.reads_rows for part in self._parts)

    def written(self) -> FramesWritten:
        """Find which frames were written; see `Frames.written`."""
        first, second = (part.written() for part in self._parts)
        missing = np.concatenate([first.missing, second.missing])
        return FramesWritten(missing, first.files | second.files, first.why or second.why)

    def read(
        self, frames: FrameIndices, rows: IndexRange, columns: IndexRange, out: NDArray[Any]
    ) -> None:
        """Read a part into `out`; see `Frames.read`."""
        n = int(np.searchsorted(frames, self._n_first))
        for part, chosen, target in zip(
            self._parts, (frames[:n], frames[n:] - self._n_first), (out[:n], out[n:]), strict=True
        ):
            if chosen.size:
                part.read(chosen, rows, columns, target)

    def close(self) -> None:
        """Close both; a second call has no effect."""
        for part in self._parts:
            part.close()


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """A subset of the frames of a stack, each cropped to the same rows and columns."""

    frames: Frames
    """The stack."""
    indices: FrameIndices
    """Index of each selected frame in the stack; not empty."""
    rows: IndexRange
    """Rows of each frame."""
    columns: IndexRange
    """Columns of each frame."""

    @classmethod
    def of(cls, frames: Frames, indices: Sequence[int] | NDArray[Any] | None = None) -> Selection:
        """Select whole frames by increasing index; None selects all."""
        n_frames, n_rows, n_columns = frames.spec.shape
        chosen = np.arange(n_frames) if indices is None else np.asarray(indices, np.int64)
        return cls(frames, chosen, (0, n_rows), (0, n_columns))

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the selection."""
        n_rows, n_columns = (stop - start for start, stop in (self.rows, self.columns))
        return ArraySpec((self.indices.size, n_rows, n_columns), self.frames.spec.dtype)

    @property
    def array(self) -> NDArray[Any] | None:
        """View of consecutive frames; None unless the frames are one array."""
        whole = self.frames.array if isinstance(self.frames, ArrayFrames) else None
        first, last = int(self.indices[0]), int(self.indices[-1])
        is_run = last - first + 1 == self.indices.size
        if whole is None or not is_run or whole.dtype != self.frames.spec.dtype:
            return None
        return whole[first : last + 1, slice(*self.rows), slice(*self.columns)]

    def n_before(self, frame: int) -> int:
        """Number of selected frames before a frame of the stack."""
        return int(np.searchsorted(self.indices, frame))

    def take(self, chosen: slice | Sequence[int] | NDArray[Any]) -> Selection:
        """Select a subset by increasing index among the selected frames."""
        return replace(self, indices=self.indices[chosen])

    def crop(self, rows: IndexRange, columns: IndexRange) -> Selection:
        """Crop each frame further; rows and columns count from the current crop."""
        (top, _), (left, _) = self.rows, self.columns
        return replace(
            self,
            rows=(top + rows[0], top + rows[1]),
            columns=(left + columns[0], left + columns[1]),
        )

    def read(self, frames: IndexRange, rows: IndexRange, out: NDArray[Any]) -> None:
        """Read rows of a range of the selected frames into `out`."""
        box_rows = (self.rows[0] + rows[0], self.rows[0] + rows[1])
        self.frames.read(self.indices[slice(*frames)], box_rows, self.columns, out)


_ANGLE_AXIS = re.compile("theta|angle|rot|omega|phi", re.IGNORECASE)
"""Names of the angle axis: theta in Data Exchange, rotation_angle in NeXus."""


def with_axes(frames: Frames, axes: Sequence[str]) -> Frames:
    """Frames of a stack with named axes, which is stored as sinograms if the second is of angles.

    Raises
    ------
    SourceError
        If the last axis is the angle axis.
    """
    of_angles = [n for n, axis in enumerate(axes) if _ANGLE_AXIS.search(axis)]
    if len(axes) != 3 or of_angles not in ([1], [2]):
        return frames
    if of_angles == [1]:
        return SinogramFrames(frames)
    raise SourceError(
        f"{frames.name}: axes {':'.join(axes)} are not supported: save it with axes "
        "(angles, rows, columns) or (rows, angles, columns)"
    )


class SinogramFrames(Frames):
    """Frames of a stack that is stored as sinograms, axes (rows, frames, columns).

    Parameters
    ----------
    stored : Frames
        The stack with the stored order of axes; closed with these frames.
    """

    def __init__(self, stored: Frames) -> None:
        self._stored = stored
        rows, frames, columns = stored.spec.shape
        self.name = stored.name
        self.spec = ArraySpec((frames, rows, columns), stored.spec.dtype)

    @property
    def files(self) -> Iterable[Path]:
        """Files of the frames."""
        return self._stored.files

    def written(self) -> FramesWritten:
        """Find which rows were written: a missing row is missing from every frame."""
        stored = self._stored.written()
        missing = np.full(self.spec.shape[0], stored.missing.any())
        return FramesWritten(missing, stored.files, stored.why)

    def read(
        self, frames: FrameIndices, rows: IndexRange, columns: IndexRange, out: NDArray[Any]
    ) -> None:
        """Read a part into `out`, row by row."""
        first, stop = int(frames[0]), int(frames[-1]) + 1
        sinogram = np.empty((1, stop - first, columns[1] - columns[0]), out.dtype)
        for i, row in enumerate(range(*rows)):
            self._stored.read(np.array([row]), (first, stop), columns, sinogram)
            out[:, i] = sinogram[0, np.asarray(frames) - first]

    def close(self) -> None:
        """Close the file."""
        self._stored.close()


UNWRITTEN = -1
"""Offset of an unwritten frame or chunk."""


@dataclass(frozen=True, slots=True)
class PlainFrames:
    """Offsets of uncompressed, contiguous frames in a file."""

    offsets: NDArray[np.int64]
    """First byte of each frame, or `UNWRITTEN`."""
    shape: tuple[int, int]
    """Rows and columns of a frame."""
    dtype: np.dtype[Any]
    """Stored dtype, including byte order."""
    fill: float = 0
    """Value of the pixels of unwritten frames."""

    def read(
        self,
        fd: int,
        frames: FrameIndices,
        rows: IndexRange,
        columns: IndexRange,
        out: NDArray[Any],
    ) -> None:
        """Read a part into `out`, C-contiguous and native, by several threads.

        Raises
        ------
        EOFError
            If the file is too short.
        OSError
            If the system cannot read it.
        """

        def part(some: IndexRange, of_rows: IndexRange, target: NDArray[Any]) -> None:
            self.read_part(fd, frames[slice(*some)], of_rows, columns, target)

        parallel_for_box((0, len(frames)), rows, out, part)

    def read_part(
        self,
        fd: int,
        frames: FrameIndices,
        rows: IndexRange,
        columns: IndexRange,
        out: NDArray[Any],
    ) -> None:
        """Read a part into `out`, in the calling thread."""
        starts = self.offsets[frames]
        if columns != (0, self.shape[1]) or not self.dtype.isnative:
            for start, target in zip(starts.tolist(), out, strict=True):
                self._read_window(fd, start, rows, columns, target)
            return
        written = starts != UNWRITTEN
        if not written.all():
            out[~written] = self.fill
            for i in np.flatnonzero(written):
                self.read_part(fd, frames[i : i + 1], rows, columns, out[i : i + 1])
            return
        starts = starts + rows[0] * self.shape[1] * self.dtype.itemsize
        if (np.diff(starts) == out[0].nbytes).all():  # contiguous
            pread_all(fd, [bytes_of(out)], int(starts[0]))
        else:
            pread_pieces(fd, out, starts)

    def _read_window(
        self, fd: int, start: int, rows: IndexRange, columns: IndexRange, out: NDArray[Any]
    ) -> None:
        """Read columns of one frame through a buffer of whole rows, in native byte order."""
        if start == UNWRITTEN:
            out[...] = self.fill
            return
        n_columns = self.shape[1]
        row_bytes = n_columns * self.dtype.itemsize
        step = fit_in_buffer(row_bytes)
        for row in range(rows[0], rows[1], step):
            last = min(row + step, rows[1])
            buffer = np.empty((last - row) * row_bytes, np.uint8)
            pread_all(fd, [buffer.data], start + row * row_bytes)
            stored = buffer.view(self.dtype).reshape(-1, n_columns)
            out[row - rows[0] : last - rows[0]] = stored[:, slice(*columns)]


_ZIP_SIGNATURES = (b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of a ZIP archive, and of an empty one, as in ``.npz`` files."""


class NpyFrames(Frames):
    """Frames in an ``.npy`` file, read by offset.

    The file is not read through a memory map: if another program truncates a mapped file, the
    process is killed (SIGBUS).

    Parameters
    ----------
    path : Path
        The file.
    may_be_one : bool
        Whether a two-dimensional array counts as one frame.

    Raises
    ------
    SourceError
        If it is not an ``.npy`` file, is truncated, has Fortran order or contains Python objects.
    """

    def __init__(self, path: Path, *, may_be_one: bool = False) -> None:
        self._path, self.name = path, str(path)
        mapped = self._mapped()
        array = mapped[np.newaxis] if may_be_one and mapped.ndim == 2 else mapped
        self.spec = ArrayFrames(str(path), array).spec
        if not array.flags.c_contiguous:
            raise SourceError(
                f"{path}: is in Fortran order, where frames are not contiguous: save it with "
                "numpy.save(path, numpy.ascontiguousarray(array))"
            )
        n_frames, n_rows, n_columns = array.shape
        offsets = mapped.offset + array[0].nbytes * np.arange(n_frames, dtype=np.int64)
        self._contents = PlainFrames(offsets, (n_rows, n_columns), array.dtype)

    @property
    def files(self) -> Iterable[Path]:
        """Files of the frames."""
        return (self._path,)

    def read(
        self, frames: FrameIndices, rows: IndexRange, columns: IndexRange, out: NDArray[Any]
    ) -> None:
        """Read a part into `out`; see `Frames.read`."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._contents.read(fd, frames, rows, columns, out)
            finally:
                os.close(fd)
        except (OSError, EOFError) as error:
            raise_if_of_system(self.name, error)
            raise SourceError(f"{self._path}: cannot be read any more ({error})") from None

    def _mapped(self) -> np.memmap[Any, Any]:
        try:
            with self._path.open("rb") as file:
                if file.read(4) in _ZIP_SIGNATURES:
                    raise SourceError(
                        f"{self._path}: is an .npz archive: save one array with numpy.save"
                    )
            return np.lib.format.open_memmap(self._path, mode="r")
        except Exception as error:
            raise_if_of_system(self.name, error)
            if not isinstance(error, OSError) and not raised_by_library(error):
                raise
            raise SourceError(
                f"{self._path}: cannot be read as .npy ({cause_of(error)}): it is another kind of "
                "file, is cut off, or holds Python objects. Write it again with numpy.save"
            ) from None
