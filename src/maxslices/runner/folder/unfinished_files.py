"""Files of a run that was stopped: their size, their names, and removing them."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from ...io import remove_result
from ...system.files import remove_fresh
from .earlier_run import BESIDE_NAMES, REPORT_NAME, TIMELINE_NAME, disk_bytes
from .folder_place import ScratchPlace
from .journal import JOURNAL_NAME, Journal
from .unfinished_run import UnfinishedRun

SCRATCH_PATTERN = ".section-*.scratch"
"""Names of scratch files that a run keeps while it is unfinished."""


def unfinished_bytes(folder: Path, run: UnfinishedRun) -> int:
    """Disk space that the results and the scratch files of an unfinished run take."""
    names = [*run.names, *run.aside.values()]
    if run.scratch_folder is None:
        names += run.scratch_names
    return sum(disk_bytes(folder / name) for name in names)


def named_results(folder: Path, run: UnfinishedRun) -> list[Path]:
    """Results of an unfinished run that have names, and of runs that it was about to replace.

    Where no report says otherwise, the timeline and other records are that run's too.
    """
    names = {*run.aside.values(), *run.replaces, *(run.names.values() if run.is_whole else ())}
    if not (folder / REPORT_NAME).exists():
        names |= {TIMELINE_NAME, *BESIDE_NAMES}
    return [folder / name for name in sorted(names) if os.path.lexists(folder / name)]


def restore_hidden_names(folder: Path, run: UnfinishedRun) -> bool:
    """Give results that were named when the run failed their hidden names again.

    Returns
    -------
    bool
        Whether there were any.
    """
    found = [
        (folder / name, folder / hidden)
        for hidden, name in run.aside.items()
        if os.path.lexists(folder / name) and not os.path.lexists(folder / hidden)
    ]
    for path, hidden in found:
        path.rename(hidden)
    return bool(found)


def remove_remains(folder: Path, scratch: ScratchPlace, *, keeps_journal: bool = False) -> None:
    """Remove what a run that was killed left beside its results, the journal last."""
    for path in scratch.path.glob(SCRATCH_PATTERN):
        path.unlink(missing_ok=True)
    for name in (TIMELINE_NAME, REPORT_NAME, *BESIDE_NAMES):
        remove_fresh(folder / name)
    if not keeps_journal:
        (folder / JOURNAL_NAME).unlink(missing_ok=True)


def remove_unfinished(folder: Path, run: UnfinishedRun) -> None:
    """Remove the hidden files of an unfinished run, the journal last.

    It says first that the run is given up, so that one that is half removed is not gone on with.
    The journal stays while there are results with names that nothing else knows of.
    """
    with closing(Journal(folder / JOURNAL_NAME, run.n_lines)) as journal:
        is_noted = journal.given_up()
    for hidden in run.names:
        remove_result(folder / hidden)
    scratch = run.scratch(folder)
    is_needed = named_results(folder, run) and not (folder / REPORT_NAME).exists()
    remove_remains(folder, scratch, keeps_journal=is_noted and bool(is_needed))
    scratch.remove()
