"""Folders of results: the finished run, the lock, the work folder, and names for new ones."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from ...errors import StoreError
from ...io import remove_result
from ...io.results.result_names import is_result_name
from ...system.disk_space import check_absent, store_errors
from ...system.files import read_small_text

REPORT_NAME = "report.json"
PIPELINE_NAME, LOG_NAME, PAGE_NAME = "pipeline_as_run.yaml", "run.log", "report.html"
PICTURE_NAME = "slices.png"
RECORD_NAMES = (PIPELINE_NAME, LOG_NAME, PAGE_NAME)
"""Files for people that record how the results of a run were made."""
TEXT_NAMES = (*RECORD_NAMES, PICTURE_NAME)
"""All files that describe a run, except the report. The picture is written on request only."""
_MAX_REPORT_BYTES = 2**26
"""Size limit of a report. That of a run with a million TIFFs has 30 MB."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished run, read from its report."""

    folder: Path
    """Folder with the report."""
    files: tuple[Path, ...]
    """Results and records that the report names."""

    def remove(self) -> None:
        """Remove the files, then the report."""
        for path in (*self.files, self.folder / REPORT_NAME):
            remove_result(path)


def find_finished(folder: Path) -> FinishedRun | None:
    """Find the finished run in a folder; None without a report.

    Raises
    ------
    StoreError
        If the report is unreadable, or names files that maxslices does not write.
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
                raise ValueError(f"runs do not write {name!r}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"cannot replace the run in {folder}: {REPORT_NAME} is not a readable report "
            f"({error}). Remove the folder by hand"
        ) from None
    return FinishedRun(folder, tuple(folder / name for name in results + texts))


def read_report(report: Path) -> Any:
    """Read the report of a run.

    Raises
    ------
    OSError, ValueError
        If it cannot be read, or is not JSON.
    """
    return json.loads(read_small_text(report, _MAX_REPORT_BYTES))


WORK_NAME = ".run"
"""Name of the hidden folder, in the folder of the results, in which a run works."""
JOURNAL_NAME = f"{WORK_NAME}/journal"
"""Path of the journal in the folder of the results."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other runs, which would remove the files of this one.

    The folder itself is locked, so no lock file can be left behind. Some network file systems do
    not support such locks. There, nothing is locked.

    Raises
    ------
    StoreError
        If another run holds the lock.
    """
    with ExitStack() as held:
        with suppress(OSError):
            fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            held.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(
                    f"another run is writing to {folder}: wait until it ends, or choose another "
                    "folder"
                ) from None
        yield


def check_usable(path: Path) -> None:
    """Check that a path is a writable folder, or that one can be made there.

    Raises
    ------
    StoreError
        If not.
    """
    try:
        existing = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    except OSError as error:
        raise StoreError(
            f"cannot use {path} as a folder ({error.strerror}): choose another folder for the "
            "results"
        ) from None
    for each in (path, *path.parents):
        if each.is_symlink() and not each.exists():
            raise StoreError(
                f"{each} is a link to {os.readlink(each)}, which does not exist: choose another "
                "folder for the results"
            )
    if not existing.is_dir():
        raise StoreError(f"{existing} is a file: choose a folder for the results")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise StoreError(f"{existing} is not writable: choose another folder for the results")


def scratch_place(results: Path, elsewhere: Path | None) -> Path:
    """Folder of the scratch files of a run.

    Parameters
    ----------
    results : Path
        Folder of its results.
    elsewhere : Path or None
        Folder in which the run gets a subfolder of its own. None: the work folder is used.
    """
    if elsewhere is None:
        return results / WORK_NAME
    name = hashlib.sha256(os.fsencode(results.absolute())).hexdigest()[:12]
    return elsewhere / f"maxslices-{name}"


def check_work_folder(results: Path) -> None:
    """Check that the work folder, if it exists, is a folder.

    Raises
    ------
    StoreError
        If not.
    """
    work = results / WORK_NAME
    if work.is_symlink() or (work.exists() and not work.is_dir()):
        raise StoreError(f"{work} is not a folder of a run: remove it")


def clear_work_folder(results: Path, scratch: Path | None = None) -> None:
    """Remove the work folder of a run, and its folder of scratch files.

    The scratch files are removed first. A run that has lost them repeats sections. Then the journal
    is removed, without which a run is not resumed.
    """
    work = results / WORK_NAME
    _remove_scratch(work, scratch)
    journal = results / JOURNAL_NAME
    if os.path.lexists(journal):
        with store_errors(journal, 0):
            journal.unlink()
    shutil.rmtree(work, ignore_errors=True)


def _remove_scratch(work: Path, scratch: Path | None) -> None:
    """Remove the folder of scratch files, if it is not the work folder."""
    if scratch is not None and scratch != work:
        shutil.rmtree(scratch, ignore_errors=True)


def publish(results: Path, scratch: Path | None = None) -> None:
    """Move the files of a finished run out of its work folder, the report last.

    The earlier run in the folder is removed first. If the process is killed meanwhile, the next run
    calls this again.

    Raises
    ------
    StoreError
        If the earlier run cannot be removed, or the name of a file is taken.
    """
    work = results / WORK_NAME
    if (work / REPORT_NAME).exists():
        if earlier := find_finished(results):
            earlier.remove()
        with store_errors(work, 0):
            files = sorted(work.iterdir())
        for path in files:
            if is_result_name(path.name) or path.name in TEXT_NAMES:
                move(path, results / path.name)
        _remove_scratch(work, scratch)
        move(work / REPORT_NAME, results / REPORT_NAME)
    shutil.rmtree(work, ignore_errors=True)


def move(path: Path, to: Path) -> None:
    """Rename a file or folder.

    Raises
    ------
    StoreError
        If the name is taken, or the file cannot be renamed.
    """
    check_absent(to)
    with store_errors(to, 0):
        path.rename(to)


def disk_bytes(path: Path) -> int:
    """Disk space of a file, or of the files in a folder; 0 if it does not exist."""
    try:
        if path.is_dir() and not path.is_symlink():
            return sum(disk_bytes(each) for each in path.iterdir())
        return 512 * path.lstat().st_blocks
    except FileNotFoundError:
        return 0


def numbered_folder(*names: str) -> Path:
    """Unused name in the current folder for results, after the names of files.

    Parameters
    ----------
    names : str
        Paths of the scan and the pipeline.

    Examples
    --------
    >>> numbered_folder("/data/flower.nxs", "fbp.yaml").name
    'flower-fbp'
    """
    stem = "-".join(Path(name).stem or "results" for name in names)
    numbered = (Path(stem if number == 1 else f"{stem}-{number}") for number in count(1))
    return next(path for path in numbered if not os.path.lexists(path))
