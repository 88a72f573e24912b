"""Whether the frames of a scan were written, and its files stay as they were."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

from ...errors import ScanChangedError, SourceError
from ..frames.frames import Selection

ALLOW = "to read what is missing as the fill value, allow it with --allow-missing-frames"
"""Advice at the end of a message."""


def check_written(selection: Selection, what: str, *, allow_missing: bool) -> None:
    """Check that frames of a scan were written.

    Parameters
    ----------
    selection : Selection
        Frames that a run reads.
    what : str
        What they are: projections, flats or darks.
    allow_missing : bool
        Whether missing frames are only warned about.

    Raises
    ------
    SourceError
        If frames are missing and may not be.
    """
    found = selection.frames.written(allow_missing=allow_missing)
    name = selection.frames.name
    if found.missing is None:
        return
    lost = selection.indices[found.missing[selection.indices]]
    if not lost.size:
        return
    n_frames = selection.spec.shape[0]
    text = f"{name}: {lost.size} of {n_frames} {what} were never written (the first: {lost[0]})"
    if found.absent:
        first = min(found.absent)
        more = f" and {len(found.absent) - 1} more" if len(found.absent) > 1 else ""
        are = "are" if more else "is"
        text += f": its data are in {first}{more}, which {are} not there"
    if found.short:
        # HDF5 fails to read boxes that reach into them, or reads zeros without a word.
        more = f" and {len(found.short) - 1} more" if len(found.short) > 1 else ""
        raise SourceError(
            f"{text}: too few are in {min(found.short)}{more}: the acquisition was aborted, or "
            "still runs; read the others with --angles"
        )
    if allow_missing:
        warnings.warn(f"{text}; they are read as the fill value", stacklevel=2)
        return
    hint = "the acquisition was aborted, or still runs"
    if found.absent:
        hint = f"copy what is missing beside {Path(name.partition(':/')[0]).name}"
    raise SourceError(f"{text}: {hint}; {ALLOW}")


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
