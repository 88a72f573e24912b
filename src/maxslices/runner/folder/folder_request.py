"""Whether what a user asks for goes with what is in the folder of the results."""

from __future__ import annotations

from pathlib import Path

from ...errors import StoreError, UsageError
from ...io.results.sink import check_removable
from .earlier_run import BESIDE_NAMES, REPORT_NAME, TIMELINE_NAME, EarlierRun, foreign_file
from .folder_place import FolderLock
from .unfinished_files import named_results
from .unfinished_run import UnfinishedRun


def check_request(
    folder: Path,
    unfinished: UnfinishedRun | None,
    earlier: EarlierRun,
    *,
    overwrite: bool,
    resume: bool,
) -> None:
    """Check that what is in a folder is what the user takes it to be.

    Parameters
    ----------
    folder : Path
        The folder.
    unfinished : UnfinishedRun or None
        An unfinished run in it.
    earlier : EarlierRun
        A finished one, if there is one.
    overwrite, resume : bool
        Whether what is there is to be replaced, or to go on.

    Raises
    ------
    UsageError
        If both are asked for.
    StoreError
        If a run would be lost or mixed up with another, or there is none to go on with.
    """
    if overwrite and resume:
        raise UsageError("a run either goes on (resume) or is replaced (overwrite)")
    if unfinished is not None:
        if not (overwrite or resume):
            lock = FolderLock(folder)
            lock.acquire()  # or it is still at work
            lock.release()
        if unfinished.is_given_up and not overwrite:
            raise StoreError(
                f"{folder} holds what is left of a run that was being replaced when that was "
                f"stopped: start anew with `{unfinished.command(folder, '--overwrite')}`"
            )
        if not (overwrite or resume):
            raise StoreError(
                f"{folder} holds an unfinished run ({unfinished.progress}): go on with "
                f"`{unfinished.command(folder, '--resume')}`, or start anew with "
                f"`{unfinished.command(folder, '--overwrite')}`"
            )
    elif earlier.is_there and not overwrite:
        raise StoreError(
            f"{folder} already holds a run ({REPORT_NAME}): choose another folder, or "
            "allow it to be replaced with --overwrite"
        )
    elif not earlier.is_there:
        for name in (TIMELINE_NAME, *BESIDE_NAMES):
            if (folder / name).exists():
                raise StoreError(foreign_file(folder / name))
    if overwrite:
        replaced = earlier.listed()
        if unfinished is not None:
            replaced += [folder / hidden for hidden in unfinished.names]
            replaced += named_results(folder, unfinished)
        for path in replaced:
            check_removable(path)
