"""A result that stays in memory: the interface of `RunFolder`, for a run without a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ...core.arrays import ArraySpec
from ...errors import MethodError
from ...io import Sink
from ...io.results.result_format import ResultFormat
from ...io.results.result_info import ResultInfo
from ...planner import Plan
from ..report.progress import Progress
from ..report.run_log import RunLog
from .run_folder import RunFolder


class ResultsInMemory:
    """Keeps nothing on disk: no results, no journal, and nothing of a run that is stopped.

    Parameters
    ----------
    scratch_folder : Path, optional
        Folder for scratch files.
    """

    def __init__(self, scratch_folder: Path | None = None) -> None:
        self.scratch_folder = scratch_folder
        self.path = None
        self.unfinished = None
        self.journal = None
        self.result_formats: tuple[ResultFormat, ...] = ()
        self.is_kept = False
        self.resume_hint = ""
        self.identity: dict[str, Any] = {}
        self.origin = ResultInfo()
        self.log: RunLog | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def describe(self, identity: Callable[[], dict[str, Any]]) -> None:
        """Nothing is compared with a later run."""

    def mark(self, origin: Callable[[], ResultInfo], log: RunLog) -> None:
        """Nothing is written that would say where it came from."""

    def begin(self, plan: Plan, results: Mapping[str, ArraySpec]) -> None:
        """There is nothing to prepare."""

    def export_bytes(self, results: Iterable[ArraySpec]) -> int:
        """No bytes on disk."""
        return 0

    def sink(
        self,
        name: str,
        spec: ArraySpec,
        slice_dim: int,
        *,
        has_slices: bool = False,
        info: ResultInfo | None = None,
    ) -> Sink | None:
        """No result is written."""
        return None

    def keep_finished(
        self, error: MethodError, counts: Sequence[int], report: Mapping[str, Any]
    ) -> MethodError:
        """No finished slices are kept: the error itself."""
        return error

    def finish(
        self, found: Mapping[str, Any] | None = None, progress: Progress | None = None
    ) -> tuple[Path, ...]:
        """No files."""
        return ()

    def records(self, with_picture: bool) -> tuple[Path, ...]:
        """No files."""
        return ()

    def conclude(self, write: Callable[[RunFolder], str]) -> None:
        """Nothing is written about the run."""


Results = RunFolder | ResultsInMemory
"""Where the results of a run go."""
