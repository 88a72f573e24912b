"""Whether a folder can be used for results, and its lock, which one run holds at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ...errors import StoreError


class FolderLock:
    """Locks a folder against other runs, which would remove what this one writes.

    The folder itself is locked, so that no lock file can be left behind. File systems without such
    locks (some over a network) go without.

    Parameters
    ----------
    folder : Path
        The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: int | None = None

    def acquire(self) -> None:
        """Lock the folder.

        Raises
        ------
        StoreError
            If another run holds the lock.
        """
        try:
            self._held = os.open(self._folder, os.O_RDONLY)
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise StoreError(
                f"another run is writing to {self._folder}: wait for its end, or choose another "
                "folder"
            ) from None
        except OSError:
            self.release()

    def release(self) -> None:
        """Give the lock back; a second call has no effect."""
        held, self._held = self._held, None
        if held is not None:
            os.close(held)


def check_usable(path: Path) -> None:
    """Check that a path is a folder that can be written to, or can be made one.

    Raises
    ------
    StoreError
        If not.
    """
    try:
        there = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    except OSError as error:
        raise StoreError(
            f"cannot use {path} as a folder ({error.strerror}): choose another folder for the "
            "results"
        ) from None
    for each in (path, *path.parents):
        if each.is_symlink() and not each.exists():
            raise StoreError(
                f"{each} is a link to {os.readlink(each)}, which is not there: choose another "
                "folder for the results"
            )
    if not there.is_dir():
        raise StoreError(f"{there} is a file, so results cannot be put there: choose a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise StoreError(f"{there} cannot be written to: choose another folder for the results")
