"""Reading and writing arrays at an offset of a file, without a file position or a lock."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
