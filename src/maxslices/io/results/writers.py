"""The sinks of each format, whose libraries are loaded when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...core.arrays import ArraySpec
from .result_info import ResultInfo
from .sink import Sink, SinkFormat, SinkStart


def create_sink(
    path: Path,
    spec: ArraySpec,
    slice_dim: int,
    format: SinkFormat = "hdf5",
    start: SinkStart = "new",
    info: ResultInfo | None = None,
) -> Sink:
    """Create a sink.

    Parameters
    ----------
    path : Path
        An HDF5 file, or a folder of TIFFs. Missing parent folders are made.
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
    return sink_maker(format)(path, spec, slice_dim, start, info)


def sink_maker(
    format: SinkFormat,
) -> Callable[[Path, ArraySpec, int, SinkStart, ResultInfo | None], Sink]:
    """Class of the sinks of a format, whose library is loaded then."""
    if format == "hdf5":
        from .hdf5_sink import Hdf5Sink

        return Hdf5Sink
    from .tiff_sink import TiffSink

    return TiffSink
