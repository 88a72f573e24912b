"""Whether the files of a scan are still those that were opened."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

from ...errors import ScanChangedError


class FileStamp(NamedTuple):
    """What tells a file from another one, and from itself after a change."""

    device: int
    """Device that it is on."""
    inode: int
    """Its inode there."""
    n_bytes: int
    """Size."""
    time_ns: int
    """Time of its last change."""

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Self:
        """Stamp of a file or folder.

        Raises
        ------
        OSError
            If it cannot be looked at.
        """
        found = os.stat(path)
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class FileStamps:
    """Size, time and inode of files, to be compared later."""

    def __init__(self, paths: Iterable[Path]) -> None:
        # Absolute: a method may change the current folder.
        self._stamps = {path.absolute(): _stamp(path) for path in paths}

    def check(self) -> None:
        """Check that no file was replaced, cut or changed.

        Raises
        ------
        ScanChangedError
            Naming the first file that was.
        """
        for path, before in self._stamps.items():
            now = _stamp(path)
            if now == before or before is None:
                continue
            if now is None:
                what = "was removed"
            elif now[:2] != before[:2]:
                what = "was replaced by another file"
            elif now.n_bytes != before.n_bytes:
                what = f"had {before.n_bytes} bytes and now has {now.n_bytes}"
            else:
                what = "was changed"
            raise ScanChangedError(
                f"{path}: {what} while it was read, so the result may mix old data and new: run "
                "again when nothing writes to it"
            )


def _stamp(path: Path) -> FileStamp | None:
    try:
        return FileStamp.of(path)
    except OSError:
        return None
