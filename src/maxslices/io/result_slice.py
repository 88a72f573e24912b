"""One slice of a result that was written, to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SourceError
from .hdf5_sink import DATA_PATH
from .library_errors import library_errors


def middle_slice(result: Path) -> tuple[int | None, NDArray[Any]]:
    """Read the middle slice of a result: its index, and the slice; None for one that is a slice.

    A result has a chunk, or a file, for each slice, so one piece of it is read.

    Parameters
    ----------
    result : pathlib.Path
        An HDF5 file or a folder of TIFFs that a run wrote; or a TIFF, of a slice or of a stack.

    Raises
    ------
    SourceError
        If it cannot be read.
    """
    try:
        with library_errors(str(result)):
            if result.is_dir():
                return _middle_tiff(result)
            return _middle_page(result) if result.suffix == ".tif" else _middle_chunk(result)
    except OSError as error:
        raise SourceError(f"{result}: cannot be read: {error.strerror}") from None


def _middle_tiff(folder: Path) -> tuple[int, NDArray[Any]]:
    import tifffile

    names = sorted(path for path in folder.iterdir() if path.suffix == ".tif")
    if not names:
        raise SourceError(f"{folder}: has no TIFFs")
    middle = len(names) // 2
    return middle, np.asarray(tifffile.imread(names[middle]))


def _middle_page(path: Path) -> tuple[int | None, NDArray[Any]]:
    import tifffile

    with tifffile.TiffFile(path) as file:
        n_pages = len(file.pages)
        middle = n_pages // 2
        return None if n_pages == 1 else middle, np.asarray(file.pages[middle].asarray())


def _middle_chunk(path: Path) -> tuple[int, NDArray[Any]]:
    import h5py

    with h5py.File(path) as file:
        data = file[DATA_PATH]
        if not isinstance(data, h5py.Dataset) or data.ndim != 3 or not data.chunks:
            raise SourceError(f"{path}: {DATA_PATH} is no result of a run")
        along = [axis for axis, n in enumerate(data.chunks) if n == 1]
        # A slice may have a single row too; the axis with more than one is that of the slices.
        axis = next((axis for axis in along if data.shape[axis] > 1), along[0] if along else 0)
        middle = data.shape[axis] // 2
        found = data[tuple(middle if i == axis else slice(None) for i in range(data.ndim))]
        return middle, np.asarray(found)
