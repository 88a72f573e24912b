"""Scans in arrays: given from Python, or in an ``.npy`` file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import ArraySpec
from ..errors import SourceError
from .frames import FrameSource, Selection, Span, check_angles, check_dtype
from .options import LoaderOptions
from .side import plain_source


class ArrayFrames:
    """Frames in an array, in memory or memory-mapped."""

    def __init__(self, name: str, array: NDArray[Any]) -> None:
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

    def read_box(self, frames: Span, rows: Span, columns: Span, out: NDArray[Any]) -> None:
        """Copy a box into `out`."""
        if self._array is None:
            raise SourceError(f"{self._name}: is closed")
        np.copyto(out, self._array[slice(*frames), slice(*rows), slice(*columns)])

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
    """Open an ``.npy`` file as a scan, memory-mapped."""
    return plain_source(str(path), Selection.of(npy_frames(path)), options)


def npy_frames(path: Path) -> ArrayFrames:
    """Open an ``.npy`` file, memory-mapped.

    Raises
    ------
    SourceError
        If it is not one, is cut off or holds Python objects.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise SourceError(
            f"{path}: cannot be read as .npy ({error}): it is no such file, is cut off, or holds "
            "Python objects; write it again with numpy.save"
        ) from None
    if not isinstance(array, np.ndarray):
        raise SourceError(f"{path}: is an .npz archive; save one array with numpy.save")
    return ArrayFrames(str(path), array)
