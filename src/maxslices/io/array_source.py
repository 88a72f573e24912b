"""Scans in arrays: given from Python, or in an ``.npy`` file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SourceError
from ..model.arrays import ArraySpec
from ..system.threads import copy
from .check_arrays import check_angles, check_dtype
from .frame_source import FrameSource, Selection, Span
from .loader_options import LoaderOptions
from .plain_frames import PlainFrames
from .side_data import plain_source

_MAPPED_BYTES = 2**26
"""Bytes of a Fortran-ordered file that are mapped at one time, or a frame if that is larger."""


class ArrayFrames:
    """Frames in an array."""

    def __init__(self, name: str, array: NDArray[Any]) -> None:
        if isinstance(array, np.ma.MaskedArray):
            raise SourceError(
                f"{name}: is a masked array, and methods know no masks: give array.filled(value), "
                "or array.data to count what is masked"
            )
        if array.ndim != 3 or 0 in array.shape:
            raise SourceError(
                f"{name}: has shape {array.shape}: a scan has three dims, (angles, detector_y, "
                "detector_x), of at least 1"
            )
        self._name = name
        self._array: NDArray[Any] | None = array
        self._spec = ArraySpec(array.shape, check_dtype(name, array.dtype))

    @property
    def name(self) -> str:
        """What messages call it."""
        return self._name

    @property
    def spec(self) -> ArraySpec:
        """Shape and native dtype."""
        return self._spec

    @property
    def array(self) -> NDArray[Any] | None:
        """The array itself; None once it is closed."""
        return self._array

    def read_box(self, frames: Span, rows: Span, columns: Span, out: NDArray[Any]) -> None:
        """Copy a box into `out`."""
        if self._array is None:
            raise SourceError(f"{self._name}: is closed")
        copy(out, self._array[slice(*frames), slice(*rows), slice(*columns)])

    def close(self) -> None:
        """Let go of the array, and of its file."""
        self._array = None


class ArraySource(FrameSource):
    """A scan given as arrays from Python.

    Parameters
    ----------
    data : ndarray
        Projections (angles, detector_y, detector_x); not copied.
    flats, darks : ndarray, optional
        Frames (n, detector_y, detector_x), or a single one (detector_y, detector_x).
    angles : array-like, optional
        Angle of each projection in radians.
    name : str, optional
        What messages call it.

    Raises
    ------
    SourceError
        If shapes, dtypes or the number of angles do not go together.
    """

    def __init__(
        self,
        data: NDArray[Any],
        *,
        flats: NDArray[Any] | None = None,
        darks: NDArray[Any] | None = None,
        angles: NDArray[Any] | Sequence[float] | None = None,
        name: str = "array",
    ) -> None:
        super().__init__(
            name,
            Selection.of(ArrayFrames(name, data)),
            flats=_side(name, "flats", flats),
            darks=_side(name, "darks", darks),
            angles=None if angles is None else check_angles(name, angles),
        )


def _side(name: str, side: str, array: NDArray[Any] | None) -> Selection | None:
    if array is None:
        return None
    stack = array[np.newaxis] if array.ndim == 2 else array
    return Selection.of(ArrayFrames(f"{name} {side}", stack))


def array_source(data: NDArray[Any], options: LoaderOptions) -> FrameSource:
    """Return an array as a scan, with what `options` add to it."""
    return plain_source("array", Selection.of(ArrayFrames("array", data)), options)


def npy_source(path: Path, options: LoaderOptions) -> FrameSource:
    """Open an ``.npy`` file as a scan."""
    return plain_source(str(path), Selection.of(npy_frames(path)), options)


def npy_frames(path: Path) -> NpyFrames:
    """Open an ``.npy`` file; see `NpyFrames`."""
    return NpyFrames(path)


class NpyFrames:
    """Frames in an ``.npy`` file, read by offset.

    One in Fortran order has no frame in one piece: it is mapped into memory for each read and
    no longer. A map that stays would leave every page that was ever read with the process, so
    that its resident memory grows to the size of the file.

    Raises
    ------
    SourceError
        If it is no such file, is cut off or holds Python objects.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        array = self._mapped()
        self._spec = ArrayFrames(str(path), array).spec
        self._places: PlainFrames | None = None
        if array.flags.c_contiguous:
            n_frames, n_rows, n_columns = array.shape
            frames = np.arange(n_frames, dtype=np.int64)
            offsets = array.offset + array[0].nbytes * frames
            self._places = PlainFrames(offsets, (n_rows, n_columns), array.dtype)

    @property
    def name(self) -> str:
        """The file."""
        return str(self._path)

    @property
    def spec(self) -> ArraySpec:
        """Shape and native dtype."""
        return self._spec

    def read_box(self, frames: Span, rows: Span, columns: Span, out: NDArray[Any]) -> None:
        """Read a box into `out`."""
        if self._places is None:
            step = max(1, _MAPPED_BYTES // max(1, out[0].nbytes))
            for first in range(frames[0], frames[1], step):
                last = min(first + step, frames[1])
                part = out[first - frames[0] : last - frames[0]]
                copy(part, self._mapped()[first:last, slice(*rows), slice(*columns)])
            return
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._places.read(fd, frames, rows, columns, out)
            finally:
                os.close(fd)
        except (OSError, EOFError) as error:
            raise SourceError(f"{self._path}: cannot be read any more ({error})") from None

    def close(self) -> None:
        """Do nothing: the file is open only while it is read."""

    def _mapped(self) -> np.memmap[Any, Any]:
        try:
            array = np.load(self._path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            why = "" if "pickle" in str(error) else f" ({error})"  # NumPy's advice is to trust it
            raise SourceError(
                f"{self._path}: cannot be read as .npy{why}: it is no such file, is cut off, "
                "or holds Python objects; write it again with numpy.save"
            ) from None
        if not isinstance(array, np.memmap):
            array.close()
            raise SourceError(f"{self._path}: is an .npz archive: save one array with numpy.save")
        return array
