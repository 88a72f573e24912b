"""The results of a run: their sinks and formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...errors import SourceError
from ...io import (
    Sink,
    SinkFormat,
    SinkStart,
    create_sink,
    remove_result,
)
from ...io.results.nexus_notes import fill_in_found
from ...io.results.result_format import ResultFormat
from ...io.results.result_info import ResultInfo
from ...io.results.stored_result import Choice, WholeResult, some_slices
from ...io.results.writers import sink_maker
from ...system.disk_space import store_errors
from ..report.progress import Progress

LabelledSlice = tuple[str, NDArray[Any]]
"""Label of a slice, such as "row 42", and the slice."""


@dataclass(slots=True)
class ResultSinks:
    """Results of a run, in the order in which they were made.

    One format is written during the run, block by block. The others are exported from the complete
    result at the end. If only exported formats are requested, an HDF5 file is written during the
    run that is not one of the results.
    """

    folder: Path
    """Folder in which they are written."""
    formats: tuple[ResultFormat, ...]
    """The requested formats."""
    _sinks: dict[str, Sink] = field(default_factory=dict)
    """Name of a result, without a suffix -> its sink."""

    def __post_init__(self) -> None:
        sink_maker(self.streamed)  # imports its library before memory is measured

    @property
    def streamed(self) -> SinkFormat:
        """Format that is written during the run. Other formats can be exported from HDF5 only."""
        is_tiff = len(self.formats) == 1 and self.formats[0] == ResultFormat("tiff")
        return "tiff" if is_tiff else "hdf5"

    @property
    def _exported(self) -> list[ResultFormat]:
        """Formats that are exported from the complete result."""
        streamed = next(
            (f for f in self.formats if f.is_streamed and f.name == self.streamed), None
        )
        return [each for each in self.formats if each is not streamed]

    def _path(self, name: str) -> Path:
        """Path of the file that is written during the run."""
        is_kept = len(self._exported) < len(self.formats)
        # Names with this prefix are not names of results, so the file is not moved.
        return ResultFormat(self.streamed).path_of(
            self.folder / (name if is_kept else f"whole_{name}")
        )

    def names(self, name: str) -> list[str]:
        """Names of the files of a result."""
        is_kept = len(self._exported) < len(self.formats)
        files = [self._path(name)] if is_kept else []
        files += [each.path_of(self.folder / name) for each in self._exported]
        return [path.name for path in files]

    def export_bytes(self, spec: ArraySpec) -> int:
        """Upper bound of the disk space of a result's exported formats."""
        return sum(each.n_bytes(spec.nbytes, spec.dtype.itemsize) for each in self._exported)

    def add(
        self, name: str, spec: ArraySpec, slice_dim: int, info: ResultInfo, *, has_slices: bool
    ) -> Sink:
        """Make the sink of a result; see `RunFolder.sink`."""
        path = self._path(name)
        if not has_slices:
            remove_result(path)  # left by a run that was killed before its first slice
        start: SinkStart = "resume" if has_slices else "new"
        self._sinks[name] = create_sink(path, spec, slice_dim, self.streamed, start, info)
        return self._sinks[name]

    def some_slices(self, choose: Choice) -> Iterator[tuple[str, list[LabelledSlice]]]:
        """Read some slices of each complete and readable result, the last result first.

        Yields
        ------
        (str, list of (str, ndarray))
            Name of the result's file, and its slices with their labels.
        """
        for name, sink in reversed(self._sinks.items()):
            # TIFFs are slices along the slice dim. HDF5 files have the slices for viewers first.
            axis = sink.info.file_axis(sink.slice_dim) if self.streamed == "tiff" else 0
            with suppress(SourceError):
                slices = some_slices(sink.path, choose)
                labelled = [(sink.info.slice_name(axis, index), image) for index, image in slices]
                yield self.names(name)[0], labelled

    def close(self) -> None:
        """Close all sinks."""
        for sink in self._sinks.values():
            sink.close()

    def complete(self, values: Mapping[str, Any], progress: Progress) -> list[str]:
        """Close complete results, and export them; names of all files.

        Parameters
        ----------
        values : mapping of str to value
            Text of a reference -> its value, which is stored with the parameters.
        progress : Progress
            Shows the progress of exports.
        """
        self.close()
        for name, sink in self._sinks.items() if self.streamed == "hdf5" else ():
            _fill_in(sink.path, values)
            if not self._exported:
                continue
            from ...io.results.exports import export_result

            with WholeResult(sink.path, sink.info) as whole:
                for each in self._exported:
                    progress.start(each.path_of(self.folder / name).name, whole.shape[0])
                    path = export_result(whole, self.folder / name, each, progress.advance)
                    if each.name == "hdf5":
                        _fill_in(path, values)
        return [file for name in self._sinks for file in self.names(name)]


def _fill_in(path: Path, values: Mapping[str, Any]) -> None:
    with store_errors(path, 0):
        fill_in_found(path, values)
