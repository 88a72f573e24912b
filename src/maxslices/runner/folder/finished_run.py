"""A finished run in a folder: what its report names, and removing that."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import StoreError
from ...io import remove_result
from ...io.results.sink import is_result_name
from ...system.files import read_small_text
from ...tuning.file_transfer import close_in_background

REPORT_NAME = "report.json"
PIPELINE_NAME, LOG_NAME, PAGE_NAME = "pipeline_as_run.yaml", "run.log", "report.html"
PICTURE_NAME = "slices.png"
RECORD_NAMES = (PIPELINE_NAME, LOG_NAME, PAGE_NAME)
"""Files that describe a run to people and record how its results were made."""
TEXT_NAMES = (*RECORD_NAMES, PICTURE_NAME)
"""Files that describe a run, without the report; some are written on request only."""
_MAX_REPORT_BYTES = 2**26
"""Largest report: one of a million TIFFs has 30 MB."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that has ended, by its report."""

    folder: Path
    """The folder with the report."""
    files: tuple[Path, ...]
    """Results and texts that the report names."""
    moved: Mapping[str, str] | None = None
    """Of a run that failed, name in its hidden folder -> name of the slices that were finished."""

    def remove(self) -> None:
        """Remove the files, then the report.

        Disk space is freed in the background: while 13 GB became free, the last small files of a
        run took 0.3 s longer (H200).
        """
        nameless = []
        for path in self.files:
            if path.is_file():
                with suppress(OSError):  # one that may not be read
                    nameless.append(path.open("rb", buffering=0))
            remove_result(path)
        remove_result(self.folder / REPORT_NAME)
        close_in_background(nameless)


def find_finished(folder: Path) -> FinishedRun | None:
    """Find the finished run in a folder; None if it holds no report.

    Raises
    ------
    StoreError
        If the report is not readable, names files that runs do not write, or leaves out files
        that have the names of its texts.
    """
    path = folder / REPORT_NAME
    if not os.path.lexists(path):
        return None
    try:
        report = read_report(path)
        results = [Path(entry).name for entry in report["files"]]
        texts = [Path(entry).name for entry in report.get("records", [])]
        for name in (*results, *texts):
            if not (is_result_name(name) or name in TEXT_NAMES):
                raise ValueError(f"no run writes {name!r}")
        moved = dict(report["moved"]) if "failed" in report else None
        if moved is not None and not set(moved.values()) <= set(results):
            raise ValueError(f"it names {moved}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"cannot replace the run in {folder}: {REPORT_NAME} is not readable as a report "
            f"({error}); remove the folder by hand"
        ) from None
    check_no_texts(folder, but=texts)
    return FinishedRun(folder, tuple(folder / name for name in results + texts), moved)


def check_no_texts(folder: Path, but: list[str] | None = None) -> None:
    """Check that no file has the name of a run's text, except the names in `but`.

    Raises
    ------
    StoreError
        If one has.
    """
    for name in TEXT_NAMES:
        if name not in (but or ()) and os.path.lexists(folder / name):
            raise StoreError(
                f"{folder / name} is there already and of no run: move it away, or choose another "
                "folder"
            )


def read_report(report: Path) -> Any:
    """Read the report of a run.

    Raises
    ------
    OSError, ValueError
        If it cannot be read, or is not JSON.
    """
    return json.loads(read_small_text(report, _MAX_REPORT_BYTES))
