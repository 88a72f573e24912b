"""One slice of a result that was written, to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SourceError
from .hdf5_sink import DATA_PATH


def middle_slice(result: Path) -> tuple[int, NDArray[Any]]:
    """Read the middle slice of a result: its index, and the slice.

    A result has a chunk, or a file, for each slice, so one piece of it is read.

    Parameters
    ----------
    result : pathlib.Path
        An HDF5 file or a folder of TIFFs that a run wrote.

    Raises
    ------
    SourceError
        If it cannot be read.
    """
    try:
        return _middle_tiff(result) if result.is_dir() else _middle_chunk(result)
    except (OSError, KeyError, ValueError) as error:
        raise SourceError(f"{result}: cannot be read: {error}") from None


def _middle_tiff(folder: Path) -> tuple[int, NDArray[Any]]:
    import tifffile

    names = sorted(path for path in folder.iterdir() if path.suffix == ".tif")
    if not names:
        raise ValueError("it has no TIFFs")
    middle = len(names) // 2
    return middle, np.asarray(tifffile.imread(names[middle]))


def _middle_chunk(path: Path) -> tuple[int, NDArray[Any]]:
    import h5py

    with h5py.File(path) as file:
        data = file[DATA_PATH]
        along = [axis for axis, n in enumerate(data.chunks) if n == 1]
        # A slice may have a single row too; the axis with more than one is that of the slices.
        axis = next((axis for axis in along if data.shape[axis] > 1), along[0] if along else 0)
        middle = data.shape[axis] // 2
        found = data[tuple(middle if i == axis else slice(None) for i in range(data.ndim))]
        return middle, np.asarray(found)
