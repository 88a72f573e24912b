"""Files: reading and writing arrays by offset, small texts, and names that others may have planted.

Who may write to a folder may put a symbolic or a hard link where a program is to write, and have it
write elsewhere with its own rights. So files are made anew under names that nobody knows before,
and then renamed, which replaces a link and leaves its target alone.
"""

from __future__ import annotations

import errno
import os
import secrets
import select
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.units import readable
from ..errors import StoreError
from .threads import fit_in_buffer

_CALL_BYTES = 2**30
"""Most bytes in one system call; Linux moves at most 0x7ffff000, a little under 2 GiB."""
_CALL_PIECES = 1024
"""Most pieces of memory in one system call (Linux: IOV_MAX)."""


def bytes_of(array: NDArray[Any]) -> memoryview:
    """Memory of a C-contiguous array as bytes."""
    if not array.flags.c_contiguous:
        raise ValueError(f"an array of strides {array.strides} is not contiguous")
    return array.reshape(-1).view(np.uint8).data


def pwrite_all(fd: int, pieces: Sequence[memoryview], offset: int) -> None:
    """Write all bytes of some pieces of memory at `offset` of a file."""
    rest = list(pieces)
    while rest:
        call = _call(rest)
        many = len(call) > 1
        n_bytes = os.pwritev(fd, call, offset) if many else os.pwrite(fd, call[0], offset)
        _drop(rest, n_bytes)
        offset += n_bytes


def pread_all(fd: int, pieces: Sequence[memoryview], offset: int) -> None:
    """Fill some pieces of memory with the bytes at `offset` of a file.

    Raises
    ------
    EOFError
        If the file ends before they are filled.
    """
    rest = list(pieces)
    while rest:
        call = _call(rest)
        n_bytes = os.preadv(fd, call, offset)
        if n_bytes == 0:
            missing = sum(len(piece) for piece in rest)
            raise EOFError(f"the file ends at byte {offset}, {missing} bytes too early")
        _drop(rest, n_bytes)
        offset += n_bytes


def write_rows(fd: int, rows: NDArray[Any], offset: int) -> None:
    """Write rows without gaps, through the thread's buffer if they have gaps in memory."""
    if rows.flags.c_contiguous:
        pwrite_all(fd, [bytes_of(rows)], offset)
        return
    row_bytes = rows.shape[1] * rows.itemsize
    step = fit_in_buffer(row_bytes)
    for row in range(0, len(rows), step):
        some = rows[row : row + step]
        held = np.empty(some.nbytes, np.uint8)
        held.view(rows.dtype).reshape(some.shape)[...] = some
        pwrite_all(fd, [held.data], offset + row * row_bytes)


def _call(pieces: list[memoryview]) -> list[memoryview]:
    """First of `pieces`, as many as one system call takes."""
    if len(pieces[0]) > _CALL_BYTES:
        return [pieces[0][:_CALL_BYTES]]
    n_bytes = 0
    for i, piece in enumerate(pieces[:_CALL_PIECES]):
        n_bytes += len(piece)
        if n_bytes > _CALL_BYTES:
            return pieces[:i]
    return pieces[:_CALL_PIECES]


def _drop(pieces: list[memoryview], n_bytes: int) -> None:
    """Remove the first bytes of `pieces`, and pieces that are then empty."""
    n_done = 0
    while n_done < len(pieces) and len(pieces[n_done]) <= n_bytes:
        n_bytes -= len(pieces[n_done])
        n_done += 1
    del pieces[:n_done]
    if n_bytes:
        pieces[0] = pieces[0][n_bytes:]


def replace_text(path: Path, text: str) -> None:
    """Replace a file's text at once: readers see the old text or the new, never a part.

    Raises
    ------
    OSError
        If it cannot be written; nothing is left behind.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # O_EXCL: what is there already, a link too, is an error.
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(readable(text))
        os.replace(fresh, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(fresh)
        raise


def check_one_name(path: Path, found: os.stat_result) -> None:
    """Check that a file that is written to again has no other name.

    Raises
    ------
    StoreError
        If it has: a hard link, through which a file of somebody else would be written to.
    """
    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        raise StoreError(
            f"{path}: has another name too (a hard link), and what has it would be changed: copy "
            "the file to one of its own, or remove it and start anew"
        )


WAIT_S = 5.0
"""Longest wait for a pipe whose other end says nothing; a shell's ``<(command)`` is one."""


def read_small_text(path: str | os.PathLike[str], most_bytes: int) -> str:
    """Read a text file in UTF-8.

    Parameters
    ----------
    path : path-like
        A file, or a pipe that something writes to.
    most_bytes : int
        Most bytes that it may have.

    Raises
    ------
    OSError
        If it cannot be read, is a folder or a device, is too large, or says nothing.
    ValueError
        If its name is none, or it is not text in UTF-8 (`UnicodeDecodeError`).
    """
    # Without O_NONBLOCK opening a pipe waits until something opens its other end.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        is_pipe = stat.S_ISFIFO(found.st_mode)
        if not is_pipe and not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        held = bytearray()
        while len(held) <= most_bytes:
            if is_pipe and not select.select([fd], [], [], WAIT_S)[0]:
                raise OSError(errno.ETIMEDOUT, f"nothing came from it for {WAIT_S:g} s", str(path))
            part = os.read(fd, 2**20)
            if not part:
                return held.decode()
            held += part
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))
    finally:
        os.close(fd)
