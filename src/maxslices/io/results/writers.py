"""Write results: block by block during a run, or whole ones in other formats at its end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ...core.arrays import ArraySpec
from ...errors import StoreError
from ...system.disk_space import check_free_space, store_errors
from .result_format import ResultFormat
from .result_info import ResultInfo
from .sink import Sink, SinkFormat, SinkStart, result_path

if TYPE_CHECKING:
    from .stored_result import WholeResult


def create_sink(
    path: str | os.PathLike[str],
    spec: ArraySpec,
    slice_dim: int,
    format: SinkFormat = "hdf5",
    start: SinkStart = "new",
    info: ResultInfo | None = None,
) -> Sink:
    """Create a sink.

    Parameters
    ----------
    path : path
        Without a suffix: ``.h5`` is added for HDF5 (unless it is there), and for TIFF it
        is the name of a folder. Missing parent folders are made.
    spec : ArraySpec
        The whole result.
    slice_dim : int
        Axis along which the result will be viewed: an HDF5 chunk and a TIFF are one slice
        along it.
    format : {"hdf5", "tiff"}
        HDF5 in NeXus style with the data at ``/entry/data/data``, or one TIFF a slice.
    start : {"new", "resume", "join"}
        "new": nothing may have its name. "resume": continue what another process wrote. "join":
        write at the same time as other processes to a result that one of them made.
    info : ResultInfo, optional
        What the result is. HDF5 keeps all of it, and the data in the order of its axes: a
        reconstruction as (z, y, x). With angles the result is a scan again. TIFFs keep the pixel
        size.

    Raises
    ------
    StoreError
        If `path` exists already or cannot be made, or the disk has less free space than the
        result needs.
    """
    return sink_maker(format)(result_path(Path(path), format), spec, slice_dim, start, info)


def sink_maker(
    format: SinkFormat,
) -> Callable[[Path, ArraySpec, int, SinkStart, ResultInfo | None], Sink]:
    """Class of the sinks of a format, whose library is loaded then.

    Raises
    ------
    StoreError
        If there is no such format.
    """
    if format == "hdf5":
        from .hdf5_sink import Hdf5Sink

        return Hdf5Sink
    if format == "tiff":
        from .tiff_sink import TiffSink

        return TiffSink
    raise StoreError(
        f"{format!r} is not a format of results: choose from {', '.join(get_args(SinkFormat))}"
    )


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
    from . import exports

    levels = whole.levels(format)
    if format.name == "hdf5":
        exports.write_hdf5(whole, path, levels, format.compressed, advance)
    elif format.name == "ome-zarr":
        exports.write_zarr(whole, path, levels, advance)
    elif format.name == "tiff":
        exports.write_folder(whole, path, levels, format.compressed, advance)
    else:
        exports.write_stack(whole, path, levels, format.compressed, advance)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
