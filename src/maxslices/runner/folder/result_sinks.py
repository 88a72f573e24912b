"""The results of a run: their sinks, their formats and their names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...core.arrays import ArraySpec
from ...io import Sink, SinkFormat, SinkStart, create_sink, incomplete_path, remove_result
from ...io.results.result_format import ResultFormat
from ...io.results.result_info import ResultInfo
from ...io.results.sink import sink_maker
from ...system.disk_space import give_name, hidden_path
from ..report.progress import Progress


@dataclass(frozen=True, slots=True)
class _Result:
    """One result of a run."""

    base: Path
    """Its path without a suffix."""
    path: Path
    """Path of the file that is written during the run."""
    slice_dim: int
    """Axis of the slices."""
    sink: Sink | None
    """Writes it; None if it was whole, and named or exported, before."""
    info: ResultInfo
    """What it is."""


@dataclass(slots=True)
class ResultSinks:
    """Results of a run, in the order in which they were made.

    One format is written during the run, block by block. The others are written of the whole result
    when the run is done. If all of these are, an HDF5 file under a hidden name is written during
    the run, and removed in the end.
    """

    formats: tuple[ResultFormat, ...]
    """The formats that are asked for."""
    named: list[Path] = field(default_factory=list)
    """Paths of those that have their names."""
    _results: list[_Result] = field(default_factory=list)

    def __post_init__(self) -> None:
        sink_maker(self.streamed)  # its library is no part of what the run takes

    @property
    def streamed(self) -> SinkFormat:
        """Format that is written during the run: others can be made of HDF5 only."""
        is_tiff = len(self.formats) == 1 and self.formats[0] == ResultFormat("tiff")
        return "tiff" if is_tiff else "hdf5"

    @property
    def _kept(self) -> ResultFormat | None:
        """The format that is written during the run, if it is asked for."""
        return next((f for f in self.formats if f.is_streamed and f.name == self.streamed), None)

    @property
    def _exported(self) -> list[ResultFormat]:
        """Formats that are written of the whole result."""
        return [each for each in self.formats if each is not self._kept]

    def path(self, base: Path) -> Path:
        """Path of the file that is written during the run; one that is removed has its own name."""
        if self._kept is None:
            base = base.with_name(f"{base.name}_whole")
        return ResultFormat(self.streamed).path_of(base)

    def paths(self, base: Path) -> list[Path]:
        """Paths of all files of a result, whether they are kept or not."""
        return [self.path(base), *(each.path_of(base) for each in self._exported)]

    def export_bytes(self, spec: ArraySpec) -> int:
        """Disk space that the other formats of a result take at most."""
        return sum(each.n_bytes(spec.nbytes, spec.dtype.itemsize) for each in self._exported)

    @property
    def have_hidden_names(self) -> bool:
        """True if no result was given a name before: what is written during the run is first."""
        return all(result.sink is not None for result in self._results)

    @property
    def open_paths(self) -> list[Path]:
        """Hidden paths of the files that were written during the run."""
        return [hidden_path(r.path) for r in self._results if r.sink is not None]

    @property
    def _open(self) -> list[Sink]:
        return [result.sink for result in self._results if result.sink is not None]

    def add(
        self,
        base: Path,
        spec: ArraySpec,
        slice_dim: int,
        start: SinkStart,
        *,
        is_whole: bool,
        info: ResultInfo,
    ) -> Sink | None:
        """Make a sink; None if the result is whole and has its name.

        Parameters
        ----------
        base : Path
            Path of the finished result, without a suffix.
        spec : ArraySpec
            The whole result.
        slice_dim : int
            Axis of the slices.
        start : {"new", "replace", "resume"}
            See `create_sink`.
        is_whole : bool
            Whether all results of the run were whole when it was stopped.
        info : ResultInfo
            What it is.
        """
        path = self.path(base)
        sink: Sink | None = None
        if not is_whole or os.path.lexists(hidden_path(path)):
            sink = create_sink(path, spec, slice_dim, self.streamed, start, info)
        self._results.append(_Result(base, path, slice_dim, sink, info))
        return sink

    def slice_name(self, path: Path, index: int) -> str:
        """Name of a slice of a file of a result; see `ResultInfo.slice_name`."""
        for result in self._results:
            if path == result.path:
                return result.info.slice_name(result.info.file_axis(result.slice_dim), index)
            if any(path == each.path_of(result.base) for each in self._exported):
                return result.info.slice_name(0, index)
        return f"slice {index}"

    def suspend(self) -> None:
        """Close all, under their hidden names."""
        for sink in self._open:
            sink.suspend()

    def abandon(self) -> None:
        """Remove what has a hidden name."""
        for sink in self._open:
            sink.abandon()

    def remove(self) -> None:
        """Remove all results."""
        self.abandon()
        for result in self._results:
            for each in self._exported:
                remove_result(hidden_path(each.path_of(result.base)))
        for path in self.named:
            remove_result(path)

    def export(self, progress: Progress) -> None:
        """Write the other formats of results that are whole and closed, under hidden names."""
        if not self._exported:
            return
        from ...io.results.export_result import export_result
        from ...io.results.whole_result import WholeResult

        for result in self._results:
            if result.sink is None:
                continue
            with WholeResult(hidden_path(result.path), result.info) as whole:
                for each in self._exported:
                    progress.start(each.path_of(result.base).name, whole.shape[0])
                    export_result(whole, result.base, each, progress.advance)

    def finish(self) -> None:
        """Give all results their names; what is written during the run comes first."""
        for result in self._results:
            if self._kept is None:
                if result.sink is not None:
                    result.sink.abandon()
            else:
                self.named.append(result.path if result.sink is None else result.sink.finish())
            for each in self._exported:
                path = each.path_of(result.base)
                if os.path.lexists(hidden_path(path)):
                    give_name(path)
                self.named.append(path)

    def finished(self, counts: Sequence[int]) -> list[tuple[Sink, Path, int]]:
        """Sinks with finished slices, the path where these are to be kept, and their number.

        Parameters
        ----------
        counts : sequence of int
            Finished slices of each result.
        """
        found = []
        for result, count in zip(self._results, counts, strict=True):
            if result.sink is not None and count:
                is_whole = count == result.sink.spec.shape[result.slice_dim]
                path = result.path if is_whole else incomplete_path(result.path)
                found.append((result.sink, path, count))
        return found

    def keep(self, finished: Sequence[tuple[Sink, Path, int]]) -> list[tuple[Path, int]]:
        """Give finished slices their names; each path, and its number of slices."""
        kept = []
        for sink, path, count in finished:
            self.named.append(sink.finish() if path == sink.path else sink.set_aside(count))
            kept.append((self.named[-1], count))
        return kept
