"""The results of an earlier run in a folder, by its report."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ...errors import StoreError
from ...io import remove_result
from ...io.results.sink import is_result_name
from ...system.files import read_small_text
from ...tuning.file_transfer import close_in_background

REPORT_NAME = "report.json"
TIMELINE_NAME = "timeline.json"
PIPELINE_NAME, LOG_NAME, PAGE_NAME = "pipeline_as_run.yaml", "run.log", "report.html"
PICTURE_NAME = "slices.png"
RECORD_NAMES = (PIPELINE_NAME, LOG_NAME, PAGE_NAME)
"""Files in the folder of a run that tell people of it and say how its results were made."""
BESIDE_NAMES = (*RECORD_NAMES, PICTURE_NAME)
"""The same, with what is there only if it was asked for."""
_MAX_REPORT_BYTES = 2**26
"""Largest report: one of a million TIFFs has 30 MB."""


def foreign_file(path: Path) -> str:
    """Say that a file is of no run."""
    return f"{path} is there already and of no run: move it away, or choose another folder"


def read_report(report: Path) -> Any:
    """Read the report of a run.

    Raises
    ------
    OSError, ValueError
        If it cannot be read, or is not JSON.
    """
    return json.loads(read_small_text(report, _MAX_REPORT_BYTES))


def results_of(report: Path) -> list[Path]:
    """Files that the report of an earlier run names, in the folder of the report."""
    try:
        earlier = read_report(report)
        names = [Path(entry).name for entry in earlier["files"]]
        for name in names:
            if not is_result_name(name):
                raise ValueError(f"no run writes {name!r}")
        results = [report.parent / name for name in names]
        records = [Path(entry).name for entry in earlier.get("records", [])]
        for name in records:
            if name not in BESIDE_NAMES:
                raise ValueError(f"no run writes {name!r}")
        has_timeline = earlier.get("timeline") is not None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"cannot replace the run in {report.parent}: {report.name} is not readable as a "
            f"report ({error}); remove the folder by hand"
        ) from None
    for name in BESIDE_NAMES:
        if name in records:
            results.append(report.parent / name)
        elif (report.parent / name).exists():
            raise StoreError(foreign_file(report.parent / name))
    timeline = report.parent / TIMELINE_NAME
    if has_timeline:
        results.append(timeline)
    elif timeline.exists():
        raise StoreError(foreign_file(timeline))
    return results


class EarlierRun:
    """The finished run in a folder, which a new one replaces once it is whole.

    Parameters
    ----------
    folder : Path
        The folder, which may hold none.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        report = folder / REPORT_NAME
        self._report = report if report.exists() else None
        self.results: list[Path] = []
        """Files that are removed in the end."""
        self._nameless: list[IO[bytes]] = []
        """Those whose names are gone, and whose disk space is not free yet."""

    @property
    def is_there(self) -> bool:
        """True if there is a report."""
        return self._report is not None

    def check_spares(self, path: Path) -> None:
        """Check that a file or folder is none of the results that will be removed.

        Raises
        ------
        StoreError
            If it is one of them or inside one, or if the report cannot be read.
        """
        whole = Path(os.path.realpath(path))  # a loop of links stays one, and is no error here
        for result in self.listed():
            if Path(os.path.realpath(result)) in (whole, *whole.parents):
                raise StoreError(
                    f"{path} is read, and --overwrite would remove it with the run in "
                    f"{self._folder}: choose another folder for the results"
                )

    def find_results(self) -> None:
        """List what the report names, to be removed in the end."""
        self.results = self.listed()

    def listed(self) -> list[Path]:
        """Files that the report names; none without a report.

        Raises
        ------
        StoreError
            If the report cannot be read.
        """
        return [] if self._report is None else results_of(self._report)

    def add(self, results: Iterable[Path]) -> None:
        """Add files that are removed in the end, too."""
        self.results += [each for each in results if each not in self.results]

    def remove_report(self) -> None:
        """Remove the report alone: its results are those of a run that goes on."""
        remove_result(self._folder / REPORT_NAME)
        self._report = None

    def remove(self) -> None:
        """Remove the names of the results, then of the report; `free` frees their disk space."""
        report, self._report = self._report, None
        results, self.results = self.results, []
        for result in results:
            if result.is_file():
                with suppress(OSError):  # one that may not be read
                    self._nameless.append(result.open("rb", buffering=0))
            remove_result(result)
        if report is not None:
            remove_result(report)

    def free(self) -> None:
        """Free the disk space of what was removed, in the background.

        While 13 GB became free, the last small files of a run took 0.3 s longer (H200).
        """
        files, self._nameless = self._nameless, []
        close_in_background(files)


def disk_bytes(path: Path) -> int:
    """Disk space that a file, or the files in a folder, take; 0 if it is not there."""
    try:
        if path.is_dir() and not path.is_symlink():
            return sum(disk_bytes(each) for each in path.iterdir())
        return 512 * path.lstat().st_blocks
    except FileNotFoundError:
        return 0
