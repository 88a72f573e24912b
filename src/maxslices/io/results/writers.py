"""The sinks of each format, whose libraries are loaded when they are needed."""

from __future__ import annotations

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
    """Create a sink of a format; see `Sink` for the other parameters and for errors."""
    return sink_maker(format)(path, spec, slice_dim, start, info)


def sink_maker(format: SinkFormat) -> type[Sink]:
    """Class of the sinks of a format, whose library is loaded then."""
    if format == "hdf5":
        from .hdf5_sink import Hdf5Sink

        return Hdf5Sink
    from .tiff_sink import TiffSink

    return TiffSink
