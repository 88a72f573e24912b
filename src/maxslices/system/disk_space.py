"""Places on a disk: whether there is room, and what is said when there is not."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakSet

from ..errors import StoreError
from ..model.units import format_bytes

_FULL = (errno.ENOSPC, errno.EDQUOT)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_IN_THE_WAY = (errno.EEXIST, errno.ENOTDIR)
_giving_back: WeakSet[threading.Thread] = WeakSet()


def check_free_space(path: Path, n_bytes: int) -> None:
    """See that the disk under `path`, which need not exist yet, has `n_bytes` free.

    Where it has less, what is being given back is waited for.

    Raises
    ------
    StoreError
        If it has less.
    """
    free_bytes = _free_bytes(path)
    if free_bytes < n_bytes:
        wait_until_freed()
        free_bytes = _free_bytes(path)
    if free_bytes < n_bytes:
        raise StoreError(
            f"{path}: needs {format_bytes(n_bytes)}, but the disk has "
            f"{format_bytes(free_bytes)} free: make room, or write to another disk"
        )


def free_in_background(thread: threading.Thread) -> None:
    """Start a thread that gives room back, and ends when it has."""
    _giving_back.add(thread)
    thread.start()


def wait_until_freed() -> None:
    """Wait until all is free that is being given back."""
    for thread in list(_giving_back):
        thread.join()


def check_absent(path: Path) -> None:
    """See that there is nothing at `path`.

    Raises
    ------
    StoreError
        If there is: nothing is ever overwritten.
    """
    if os.path.lexists(path):
        raise StoreError(f"{path}: is there already: move it away, or choose another name")


def hidden_path(path: Path) -> Path:
    """Return the hidden name under which what will be `path` is written."""
    return path.with_name(f".{path.name}.part")


def preallocate(fd: int, n_bytes: int) -> bool:
    """Have a file's room given to it now, which makes writing faster, where the system can.

    ``os.posix_fallocate`` writes to all of the file where it cannot.

    Returns
    -------
    bool
        Whether it was given.

    Raises
    ------
    OSError
        If the disk is full.
    """
    error = _fallocate(fd, 0, 0, n_bytes)
    if error in _FULL:
        raise OSError(error, os.strerror(error))
    return error == 0


def punch_hole(fd: int, start: int, stop: int) -> None:
    """Give back the room of a part of a file, where the system can; it reads as zeros then."""
    if stop > start:
        _fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, start, stop - start)


def _fallocate(fd: int, mode: int, start: int, n_bytes: int) -> int:
    """Call the system; return its error number, 0 for none."""
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except AttributeError:  # not on every system
        return errno.ENOSYS
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    while fallocate(fd, mode, start, n_bytes):
        error = ctypes.get_errno()
        if error != errno.EINTR:
            return error
    return 0


@contextmanager
def store_errors(path: Path, n_bytes: int) -> Iterator[None]:
    """Turn what the system says about writing `path` into a `StoreError`.

    Parameters
    ----------
    path : Path
        What is written.
    n_bytes : int
        Bytes of the whole of it.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            reason = os.strerror(error.errno) if error.errno else str(error)
            if error.errno in _IN_THE_WAY:
                reason = "a file is in the way of its folder"
            raise StoreError(
                f"{path}: cannot be written ({reason}): check the folder and its permissions, or "
                "choose another"
            ) from None
        free_bytes = _free_bytes(path)
        quota = " within its quota" if error.errno == errno.EDQUOT else ""
        raise StoreError(
            f"{path}: the disk is full{quota}: the whole needs {format_bytes(n_bytes)}, "
            f"{format_bytes(free_bytes)} are free now: make room, or write to another disk"
        ) from None


def _free_bytes(path: Path) -> int:
    return shutil.disk_usage(_existing(path)).free


def _existing(path: Path) -> Path:
    """Return `path`, or the nearest folder above it that is there."""
    path = path.absolute()
    return next((p for p in (path, *path.parents) if p.exists()), Path("/"))
