"""Folders of a run: whether one can be used, its lock, its scratch files, and a free name."""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
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


@dataclass(frozen=True, slots=True)
class ScratchPlace:
    """Folder of the scratch files of a run."""

    results: Path
    """Folder of its results."""
    elsewhere: Path | None = None
    """Folder in which it has its own, if they are not beside the results."""

    @property
    def path(self) -> Path:
        """Folder of the files: two runs with the same folder `elsewhere` have different ones."""
        if self.elsewhere is None:
            return self.results
        name = hashlib.sha256(os.fsencode(self.results.absolute())).hexdigest()[:12]
        return self.elsewhere / f"maxslices-{name}"

    def make(self) -> None:
        """Make the folder.

        Raises
        ------
        StoreError
            If it cannot be made.
        """
        check_usable(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make the folder {self.path}: {error.strerror}") from None

    def remove(self) -> None:
        """Remove the folder if it is the run's own and empty."""
        if self.elsewhere is not None:
            with suppress(OSError):
                self.path.rmdir()


def numbered_folder(*names: str) -> Path:
    """Folder here that is not there yet, named after files; numbered if there is one.

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
