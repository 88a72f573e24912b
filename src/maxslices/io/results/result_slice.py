"""Slices of a result that was written, to look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError
from ..library_errors import library_errors
from .hdf5_sink import DATA_PATH

Choice = Callable[[int], Sequence[int]]
"""Given the number of slices, says which of them are wanted."""


def middle_slice(result: Path) -> tuple[int | None, NDArray[Any]]:
    """Read the middle slice of a result: its index, and the slice; None for one that is a slice.

    Parameters
    ----------
    result : pathlib.Path
        A result of a run, in any format; or a TIFF of a slice.

    Raises
    ------
    SourceError
        If it cannot be read.
    """
    n_slices, found = some_slices(result, lambda n: [n // 2])
    index, image = found[0]
    return (None if n_slices == 1 and result.suffix == ".tif" else index), image


def some_slices(result: Path, choose: Choice) -> tuple[int, list[tuple[int, NDArray[Any]]]]:
    """Read some slices of a result: how many it has, and the index of each, and the slice.

    Parameters
    ----------
    result : pathlib.Path
        A result of a run, in any format; or a TIFF.
    choose : callable
        Says which.

    Raises
    ------
    SourceError
        If it cannot be read.
    """
    try:
        with library_errors(str(result)):
            if result.name.endswith(".ome.zarr"):
                return _of_zarr(result, choose)
            if result.is_dir():
                return _of_folder(result, choose)
            return (_of_tiff if result.suffix == ".tif" else _of_hdf5)(result, choose)
    except OSError as error:
        raise SourceError(f"{result}: cannot be read: {error.strerror}") from None


def _of_folder(folder: Path, choose: Choice) -> tuple[int, list[tuple[int, NDArray[Any]]]]:
    import tifffile

    names = sorted(path for path in folder.iterdir() if path.suffix == ".tif")
    if not names:
        raise SourceError(f"{folder}: has no TIFFs")
    return len(names), [(i, np.asarray(tifffile.imread(names[i]))) for i in choose(len(names))]


def _of_tiff(path: Path, choose: Choice) -> tuple[int, list[tuple[int, NDArray[Any]]]]:
    import tifffile

    with tifffile.TiffFile(path) as file:
        n_pages = len(file.pages)
        return n_pages, [(i, np.asarray(file.pages[i].asarray())) for i in choose(n_pages)]


def _of_zarr(path: Path, choose: Choice) -> tuple[int, list[tuple[int, NDArray[Any]]]]:
    import zarr

    data = zarr.open_array(path / "0", mode="r")
    return data.shape[0], [(i, np.asarray(data[i])) for i in choose(data.shape[0])]


def _of_hdf5(path: Path, choose: Choice) -> tuple[int, list[tuple[int, NDArray[Any]]]]:
    import h5py

    from ..hdf5.open_hdf5 import open_hdf5

    with open_hdf5(path, "r") as file:
        data = file[DATA_PATH]
        if not isinstance(data, h5py.Dataset) or data.ndim != 3:
            raise SourceError(f"{path}: {DATA_PATH} is no result of a run")
        return data.shape[0], [(i, np.asarray(data[i])) for i in choose(data.shape[0])]
