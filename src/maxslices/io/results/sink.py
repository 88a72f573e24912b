"""Results: the interface of a sink, creating one, names, and removing a result."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol, Self, get_args

from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...errors import StoreError
from ..paths import HDF5_SUFFIXES
from .file_sink import SinkStart
from .result_info import ResultInfo

_RESULT = re.compile(
    r"(result(_8bit|_16bit)?|[0-9]{2,}_\w+)(\.incomplete)?(\.h5|\.tif|\.ome\.zarr)?"
    r"|sweep\.tif|sweep\.png"
)
"""The last result, or the number of a step and its method, in any format; the pictures of a
sweep."""


def is_result_name(name: str) -> bool:
    """True if a run may have written a result of that name.

    Examples
    --------
    >>> [is_result_name(name) for name in ("result.h5", "02_fbp.incomplete.h5", "03_fbp_8bit")]
    [True, True, True]
    >>> [is_result_name(name) for name in ("scan.h5", "..", "result.h5.bak")]
    [False, False, False]
    """
    return _RESULT.fullmatch(name) is not None


SinkFormat = Literal["hdf5", "tiff"]
"""File formats of results."""


class Sink(Protocol):
    """A result that is written block by block. Leaving the ``with`` statement closes it."""

    @property
    def path(self) -> Path:
        """Path of the result."""

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the whole result."""

    @property
    def info(self) -> ResultInfo:
        """What the result is."""

    def write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write a block of the sink's dtype whose first slice along `slice_dim` is `start`.

        Raises
        ------
        StoreError
            If it cannot be written: the disk is full or out of reach.
        """

    def shorten(self, n_slices: int) -> None:
        """Close the result and cut it to its first slices, so that it reads as a result of these.

        A sink with ``start="resume"`` continues the whole result.

        Parameters
        ----------
        n_slices : int
            Slices that were written, along the sink's slice dim.

        Raises
        ------
        StoreError
            If the disk cannot be written.
        """

    def sync(self) -> None:
        """Put what was written on disk, or on the server of a folder on the network."""

    def close(self) -> None:
        """Close the result; a second call has no effect."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...


SinkMaker = Callable[[Path, ArraySpec, int, SinkStart, ResultInfo | None], Sink]
"""Makes a sink; see `create_sink` for what it is given, the path with its suffix."""


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


def sink_maker(format: SinkFormat) -> SinkMaker:
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


def result_path(path: Path, format: SinkFormat) -> Path:
    """Path of a result: ``.h5`` is added for HDF5, unless the path has such a suffix."""
    if format == "hdf5" and path.suffix.lower() not in HDF5_SUFFIXES:
        return path.with_name(f"{path.name}.h5")
    return path


def remove_result(path: Path) -> None:
    """Remove a finished result, if there is one.

    Parameters
    ----------
    path : Path
        A file, a folder of TIFFs or OME-Zarr, as runs write them.

    Raises
    ------
    StoreError
        If it is a folder with other files in it, which is left as it is, or cannot be removed.
    """
    try:
        if not path.is_dir() or path.is_symlink():
            path.unlink(missing_ok=True)
            return
        check_removable(path)
        shutil.rmtree(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be removed ({error.strerror})") from None


def check_removable(path: Path) -> None:
    """Check that a result, if there is one, holds nothing that no run writes.

    Raises
    ------
    StoreError
        If it is a folder with other files in it.
    OSError
        If the folder cannot be read.
    """
    if not path.is_dir() or path.is_symlink():
        return
    is_part = _is_zarr_part if ".ome.zarr" in path.name else _is_tiff_of
    foreign = next((p for p in path.iterdir() if not is_part(path, p)), None)
    if foreign is not None:
        raise StoreError(
            f"{path}: contains {foreign.name}, which no run wrote, so it is not removed: move that "
            "file away, or choose another folder"
        )


def _is_tiff_of(folder: Path, path: Path) -> bool:
    stem, _, number = path.stem.rpartition("_")
    return (
        stem == folder.name.removesuffix(".incomplete")
        and number.isdigit()
        and path.suffix == ".tif"
    )


def _is_zarr_part(folder: Path, path: Path) -> bool:
    """True for a level of a pyramid and for the group's own file."""
    if path.name.isdecimal():
        return path.is_dir() and not path.is_symlink()
    return path.name == "zarr.json"
