"""The sinks of a run, and the names of its results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..io import Sink, SinkStart, create_sink, incomplete_path, remove_result
from ..io.sink import SinkFormat
from ..model.arrays import ArraySpec
from ..system.disk_space import hidden_path


@dataclass(slots=True)
class ResultSinks:
    """Results of a run, in the order in which they were made."""

    format: SinkFormat
    """Their file format."""
    named: list[Path] = field(default_factory=list)
    """Paths of those that have their names."""
    _results: list[tuple[Path, int, Sink | None]] = field(default_factory=list)
    """Path, axis of the slices, and sink; None if the result had its name before."""

    @property
    def have_hidden_names(self) -> bool:
        """True if no result had its name before."""
        return all(sink is not None for _, _, sink in self._results)

    @property
    def _open(self) -> list[Sink]:
        return [sink for _, _, sink in self._results if sink is not None]

    def add(
        self,
        path: Path,
        spec: ArraySpec,
        slice_dim: int,
        start: SinkStart,
        *,
        is_whole: bool,
        angles: NDArray[Any] | None = None,
    ) -> Sink | None:
        """Make a sink; None if the result is whole and has its name.

        Parameters
        ----------
        path : Path
            Path of the finished result.
        spec : ArraySpec
            The whole result.
        slice_dim : int
            Axis of the slices.
        start : {"new", "replace", "resume"}
            See `create_sink`.
        is_whole : bool
            Whether all results of the run were whole when it was stopped.
        angles : ndarray, optional
            Angle of each projection in radians.
        """
        sink: Sink | None = None
        if not is_whole or os.path.lexists(hidden_path(path)):
            sink = create_sink(path, spec, slice_dim, self.format, start, angles)
        self._results.append((path, slice_dim, sink))
        return sink

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
        for path in self.named:
            remove_result(path)

    def finish(self) -> None:
        """Give all results their names."""
        for path, _, sink in self._results:
            self.named.append(path if sink is None else sink.finish())

    def finished(self, counts: Sequence[int]) -> list[tuple[Sink, Path, int]]:
        """Sinks with finished slices, the path where these are to be kept, and their number.

        Parameters
        ----------
        counts : sequence of int
            Finished slices of each result.
        """
        found = []
        for (path, slice_dim, sink), count in zip(self._results, counts, strict=True):
            if sink is not None and count:
                is_whole = count == sink.spec.shape[slice_dim]
                found.append((sink, path if is_whole else incomplete_path(path), count))
        return found

    def keep(self, finished: Sequence[tuple[Sink, Path, int]]) -> list[tuple[Path, int]]:
        """Give finished slices their names; each path, and its number of slices."""
        kept = []
        for sink, path, count in finished:
            self.named.append(sink.finish() if path == sink.path else sink.set_aside(count))
            kept.append((self.named[-1], count))
        return kept
