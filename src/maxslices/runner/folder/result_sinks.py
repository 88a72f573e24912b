"""The results of a run: their sinks and formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...errors import SourceError, StoreError
from ...io import Sink, remove_result
from ...io.results.nexus_notes import fill_in_found
from ...io.results.result_format import ResultFormat
from ...io.results.result_info import ResultInfo
from ...io.results.stored_result import Choice, WholeResult
from ...system.disk_space import store_errors
from ..report.progress import Progress

LabelledSlice = tuple[str, NDArray[Any]]
"""Label of a slice, such as "row 42", and the slice."""


@dataclass(slots=True)
class ResultSinks:
    """Results of a run, in the order in which they are computed.

    An HDF5 file is written during the run, block by block. Other formats are made from it at the
    end, and it is removed unless it was requested.
    """

    folder: Path
    """Folder in which they are written."""
    formats: tuple[ResultFormat, ...]
    """Requested formats."""
    _sinks: dict[str, Sink] = field(default_factory=dict)
    """Name of a result, without a suffix -> its sink."""

    @property
    def _exported(self) -> list[ResultFormat]:
        """Formats that are made from the whole result."""
        return [each for each in self.formats if each != ResultFormat()]

    def _path(self, name: str) -> Path:
        """Path of the file that is written during the run."""
        # Files with this prefix are not results, and stay in the hidden folder.
        prefix = "" if ResultFormat() in self.formats else "whole_"
        return ResultFormat().path_of(self.folder / f"{prefix}{name}")

    def names(self, name: str) -> list[str]:
        """Names of the files of a result; HDF5 without changes is the first."""
        formats = sorted(self.formats, key=lambda each: each != ResultFormat())
        return [each.path_of(self.folder / name).name for each in formats]

    def export_bytes(self, spec: ArraySpec) -> int:
        """Largest disk space of a result's other formats."""
        return sum(each.n_bytes(spec.nbytes, spec.dtype.itemsize) for each in self._exported)

    def add(self, name: str, spec: ArraySpec, info: ResultInfo, *, has_slices: bool) -> Sink:
        """Create the sink of a result; see `RunFolder.sink`."""
        path = self._path(name)
        if not has_slices:
            remove_result(path)  # left by a run that was killed before its first slice
        self._sinks[name] = Sink(path, spec, "resume" if has_slices else "new", info)
        return self._sinks[name]

    def some_slices(self, choose: Choice) -> Iterator[tuple[str, ResultInfo, list[LabelledSlice]]]:
        """Read some slices of each complete and readable result, the last result first.

        Yields
        ------
        (str, ResultInfo, list of (str, ndarray))
            Name and description of the result's file; label of each slice, such as "row 42", and
            the slice.
        """
        for name, sink in reversed(self._sinks.items()):
            with suppress(SourceError, StoreError):
                with WholeResult(sink.path, sink.info) as whole:
                    slices = [
                        (sink.info.slice_name(0, i), whole.read(i)) for i in choose(whole.shape[0])
                    ]
                yield self.names(name)[0], sink.info, slices

    def close(self) -> None:
        """Close all sinks."""
        for sink in self._sinks.values():
            sink.close()

    def complete(self, values: Mapping[str, Any], progress: Progress) -> list[str]:
        """Close whole results and write their other formats; return the names of all files.

        Parameters
        ----------
        values : mapping of str to value
            Text of a reference -> its value, stored with the parameters.
        progress : Progress
            Shows the progress of other formats.
        """
        self.close()
        for name, sink in self._sinks.items():
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
