"""Write a whole result in another format than it was written in during the run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from ...system.disk_space import check_free_space, store_errors
from .result_format import ResultFormat
from .whole_result import WholeResult


def export_result(
    whole: WholeResult, result: Path, format: ResultFormat, advance: Callable[[int], None]
) -> Path:
    """Write a result in a format, in place of a file that a killed run left.

    Parameters
    ----------
    whole : WholeResult
        The result.
    result : Path
        Its path without a suffix.
    format : ResultFormat
        What to write.
    advance : callable
        Is given the number of slices after each of them; all are those of the first axis.

    Returns
    -------
    Path
        Its path.

    Raises
    ------
    StoreError
        If the disk is full or out of reach.
    """
    path = format.path_of(result)
    n_values = whole.shape[0] * whole.shape[1] * whole.shape[2]
    n_bytes = format.n_bytes(n_values * whole.dtype.itemsize, whole.dtype.itemsize)
    with store_errors(path, n_bytes):
        _remove(path)
        check_free_space(path, n_bytes)
        try:
            _write(whole, path, format, advance)
        except BaseException:
            _remove(path)
            raise
    return path


def _write(
    whole: WholeResult, path: Path, format: ResultFormat, advance: Callable[[int], None]
) -> None:
    levels = whole.levels(format)
    if format.name == "hdf5":
        from .export_hdf5 import write_hdf5

        write_hdf5(whole, path, levels, format.compressed, advance)
    elif format.name == "ome-zarr":
        from .export_zarr import write_zarr

        write_zarr(whole, path, levels, advance)
    elif format.name == "tiff":
        from .export_tiff import write_folder

        write_folder(whole, path, levels, format.compressed, advance)
    else:
        from .export_tiff import write_stack

        write_stack(whole, path, levels, format.compressed, advance)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
