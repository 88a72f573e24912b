"""Files: arrays at offsets, small texts, and protection against planted links.

Other users of a shared folder may create a symbolic or hard link at a name that a program will
write to. The program would then write to the link's target with its own rights. So files are
created under random names and then renamed, which replaces a link and leaves its target alone.
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
"""Most bytes in one system call. Linux transfers at most 0x7ffff000, a little under 2 GiB."""
_CALL_PIECES = 1024
"""Most pieces of memory in one system call (IOV_MAX of Linux)."""


def bytes_of(array: NDArray[Any]) -> memoryview:
    """View the memory of a C-contiguous array as bytes."""
    if not array.flags.c_contiguous:
        raise ValueError(f"an array with strides {array.strides} is not contiguous")
    return array.reshape(-1).view(np.uint8).data


def pwrite_all(fd: int, pieces: Sequence[memoryview], offset: int) -> None:
    """Write pieces of memory to a file, one after the other from `offset` on."""
    rest = list(pieces)
    while rest:
        call = _call(rest)
        has_many = len(call) > 1
        n_bytes = os.pwritev(fd, call, offset) if has_many else os.pwrite(fd, call[0], offset)
        _drop(rest, n_bytes)
        offset += n_bytes


def pread_all(fd: int, pieces: Sequence[memoryview], offset: int) -> None:
    """Fill pieces of memory from a file, one after the other from `offset` on.

    Raises
    ------
    EOFError
        If the file ends too early.
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
    """Write rows contiguously, through a buffer if they are not contiguous in memory."""
    if rows.flags.c_contiguous:
        pwrite_all(fd, [bytes_of(rows)], offset)
        return
    row_bytes = rows.shape[1] * rows.itemsize
    step = fit_in_buffer(row_bytes)
    for row in range(0, len(rows), step):
        some = rows[row : row + step]
        buffer = np.empty(some.nbytes, np.uint8)
        buffer.view(rows.dtype).reshape(some.shape)[...] = some
        pwrite_all(fd, [buffer.data], offset + row * row_bytes)


def _call(pieces: list[memoryview]) -> list[memoryview]:
    """The first pieces, as many as fit into one system call."""
    if len(pieces[0]) > _CALL_BYTES:
        return [pieces[0][:_CALL_BYTES]]
    n_bytes = 0
    for i, piece in enumerate(pieces[:_CALL_PIECES]):
        n_bytes += len(piece)
        if n_bytes > _CALL_BYTES:
            return pieces[:i]
    return pieces[:_CALL_PIECES]


def _drop(pieces: list[memoryview], n_bytes: int) -> None:
    """Remove the first bytes of `pieces`, and pieces that become empty."""
    n_done = 0
    while n_done < len(pieces) and len(pieces[n_done]) <= n_bytes:
        n_bytes -= len(pieces[n_done])
        n_done += 1
    del pieces[:n_done]
    if n_bytes:
        pieces[0] = pieces[0][n_bytes:]


def replace_text(path: Path, text: str) -> None:
    """Replace the text of a file atomically.

    Raises
    ------
    OSError
        If it cannot be written. No other file is left behind.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # O_EXCL: an existing file or link is an error.
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(readable(text))
        os.replace(fresh, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(fresh)
        raise


def check_one_name(path: Path, state: os.stat_result) -> None:
    """Check that an existing file that will be written to is not a hard link.

    Raises
    ------
    StoreError
        If it is one, because the other name may be a file of another user.
    """
    if stat.S_ISREG(state.st_mode) and state.st_nlink > 1:
        raise StoreError(
            f"{path}: is a hard link, so another file would be changed too. Replace it with a "
            "copy, or remove it and start anew"
        )


WAIT_S = 5.0
"""Longest wait for a silent pipe, such as a shell's ``<(command)``, in seconds."""


def read_small_text(path: str | os.PathLike[str], most_bytes: int) -> str:
    """Read a text file in UTF-8.

    Parameters
    ----------
    path : path-like
        A file, or a pipe with a writer.
    most_bytes : int
        Size limit.

    Raises
    ------
    OSError
        If it cannot be read, is a folder or a device, is too large, or is a silent pipe.
    ValueError
        If the path is invalid, or the text is not UTF-8 (`UnicodeDecodeError`).
    """
    # Without O_NONBLOCK, opening a pipe waits until its other end is opened.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        is_pipe = stat.S_ISFIFO(mode)
        if not is_pipe and not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a file", str(path))
        content = bytearray()
        while len(content) <= most_bytes:
            if is_pipe and not select.select([fd], [], [], WAIT_S)[0]:
                raise OSError(errno.ETIMEDOUT, f"it was silent for {WAIT_S:g} s", str(path))
            part = os.read(fd, 2**20)
            if not part:
                return content.decode()
            content += part
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))
    finally:
        os.close(fd)
