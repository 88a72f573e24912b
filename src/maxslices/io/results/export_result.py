"""Write a whole result in another format than it was written in during the run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from ...system.disk_space import check_free_space, hidden_path, store_errors
from .result_format import ResultFormat
from .whole_result import WholeResult


def export_result(
    whole: WholeResult, result: Path, format: ResultFormat, advance: Callable[[int], None]
) -> Path:
    """Write a result under the hidden name of a format.

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
        Path that it is to have; it still has the hidden one.

    Raises
    ------
    StoreError
        If the disk is full or out of reach.
    """
    path = format.path_of(result)
    part = hidden_path(path)
    n_values = whole.shape[0] * whole.shape[1] * whole.shape[2]
    n_bytes = format.n_bytes(n_values * whole.dtype.itemsize, whole.dtype.itemsize)
    with store_errors(path, n_bytes):
        _remove(part)  # what a killed run left behind
        check_free_space(path, n_bytes)
        try:
            _write(whole, part, path, format, advance)
        except BaseException:
            _remove(part)
            raise
    return path


def _write(
    whole: WholeResult, part: Path, path: Path, format: ResultFormat, advance: Callable[[int], None]
) -> None:
    levels = whole.levels(format)
    if format.name == "hdf5":
        from .export_hdf5 import write_hdf5

        write_hdf5(whole, part, levels, format.compressed, advance)
    elif format.name == "ome-zarr":
        from .export_zarr import write_zarr

        write_zarr(whole, part, path.name.removesuffix(".ome.zarr"), levels, advance)
    elif format.name == "tiff":
        from .export_tiff import write_folder

        write_folder(whole, part, path.name, levels, format.compressed, advance)
    else:
        from .export_tiff import write_stack

        write_stack(whole, part, levels, format.compressed, advance)


def _remove(part: Path) -> None:
    if part.is_dir() and not part.is_symlink():
        shutil.rmtree(part, ignore_errors=True)
    else:
        part.unlink(missing_ok=True)
