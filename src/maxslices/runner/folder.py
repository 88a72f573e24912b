"""The folder of a run: nothing in it is overwritten unasked, nothing half-written looks whole."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from ..arrays import ArraySpec
from ..errors import StoreError
from ..io import Sink, SinkFormat, create_sink

REPORT_NAME = "report.json"


class RunFolder:
    """Makes the results of one run; leaving it unfinished removes what was written.

    Parameters
    ----------
    path : path-like
        The folder; it is made if it is not there.
    format : {"hdf5", "tiff"}
        How results are written.
    overwrite : bool
        Whether the results of an earlier run are removed first.

    Raises
    ------
    StoreError
        If the folder holds a run already, or cannot be made.
    """

    def __init__(
        self, path: str | os.PathLike[str], format: SinkFormat = "hdf5", overwrite: bool = False
    ) -> None:
        self.path = Path(path)
        self._format = format
        self._sinks: list[Sink] = []
        self._made = False
        report = self.path / REPORT_NAME
        if self.path.is_dir() and not overwrite and report.exists():
            raise StoreError(
                f"{self.path} already holds a run ({REPORT_NAME}): choose another folder, or "
                "allow it to be replaced with --overwrite"
            )
        self._earlier = report if report.exists() else None

    def __enter__(self) -> Self:
        if self._earlier is not None:
            _remove_earlier(self._earlier)
        try:
            self._made = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make the folder {self.path}: {error.strerror}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for sink in self._sinks:
            sink.abandon()
        if kind is not None and self._made and not any(self.path.iterdir()):
            self.path.rmdir()

    def sink(self, name: str, spec: ArraySpec, slice_dim: int) -> Sink:
        """Make a place for a result called `name`."""
        sink = create_sink(self.path / name, spec, slice_dim, self._format)
        self._sinks.append(sink)
        return sink

    def finish(self) -> tuple[Path, ...]:
        """Give all results their names, and return these."""
        return tuple(sink.finish() for sink in self._sinks)

    def write_report(self, text: str) -> None:
        """Write the report, which marks the folder as holding a whole run."""
        try:
            (self.path / REPORT_NAME).write_text(text, encoding="utf-8")
        except OSError as error:
            raise StoreError(f"cannot write {self.path / REPORT_NAME}: {error.strerror}") from None


def _remove_earlier(report: Path) -> None:
    """Remove the files that an earlier run's report names, then the report itself."""
    try:
        named = json.loads(report.read_text(encoding="utf-8"))["files"]
        for entry in named:
            result = report.parent / Path(entry).name
            if result.is_dir():
                shutil.rmtree(result)
            else:
                result.unlink(missing_ok=True)
        report.unlink()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"cannot replace the run in {report.parent}: {report.name} is not readable as a "
            f"report ({error}); remove the folder by hand"
        ) from None
