"""Many small reads by one call of the system.

Rows of every frame of a scan are a piece here and a piece there. Reading them one by one
costs Python's lock twice a piece, and with it the threads stand in each other's way: eight
read no faster than three (pieces of 160 kB: 20 GB/s, by this way 35). Linux reads a list of
pieces in one call (``io_submit``), which does it there and then where the file is in the page
cache or is not opened for direct access. Where there is no such call, each is read by itself.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..system.positional_io import bytes_of, pread_all

_AT_ONCE = 256
"""Pieces a call; the system lets all processes have 65536 together, if nobody changed that."""
_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""Of io_setup, io_destroy, io_getevents and io_submit."""
_REQUEST = np.dtype(
    [
        *[("data", "u8"), ("key", "u4"), ("flags", "i4"), ("command", "u2"), ("priority", "i2")],
        *[("fd", "u4"), ("address", "u8"), ("size", "u8"), ("offset", "i8"), ("reserved", "u8")],
        *[("more_flags", "u4"), ("event_fd", "u4")],
    ]
)
"""``struct iocb`` of linux/aio_abi.h; its command 0 is to read."""
_ANSWER = np.dtype([("data", "u8"), ("request", "u8"), ("result", "i8"), ("result2", "i8")])
"""``struct io_event``."""

_contexts: list[int] = []
"""What the system calls queues of requests, such as nobody is using."""
_usable = sys.platform == "linux" and platform.machine() in _NUMBERS and hasattr(os, "preadv")


def pread_pieces(fd: int, outs: NDArray[Any], offsets: NDArray[np.int64]) -> None:
    """Fill each ``outs[i]`` from the byte ``offsets[i]`` of a file.

    Parameters
    ----------
    fd : int
        The file.
    outs : ndarray
        Each of its items C-contiguous; between them there may be gaps.
    offsets : ndarray
        One an item.

    Raises
    ------
    EOFError
        If the file ends before.
    OSError
        If the system cannot read it.
    """
    left = range(len(outs))
    if len(outs) > 1:
        left = _read_at_once(fd, outs, offsets)
    for i in left:
        pread_all(fd, [bytes_of(outs[i])], int(offsets[i]))


def _read_at_once(fd: int, outs: NDArray[Any], offsets: NDArray[np.int64]) -> Any:
    """Fill what can be filled by few calls; return the numbers of the others."""
    context = _context()
    if context is None:
        return range(len(outs))
    size = outs[0].nbytes
    requests = np.zeros(len(outs), _REQUEST)
    requests["data"] = np.arange(len(outs))
    requests["fd"] = fd
    requests["address"] = outs.ctypes.data + outs.strides[0] * np.arange(len(outs))
    requests["size"] = size
    requests["offset"] = offsets
    addresses = requests.ctypes.data + _REQUEST.itemsize * np.arange(len(outs), dtype=np.uint64)
    done = np.zeros(len(outs), bool)
    try:
        for first in range(0, len(outs), _AT_ONCE):
            answers = _submit(context, addresses[first : first + _AT_ONCE])
            done[answers["data"][answers["result"] == size]] = True
    except BaseException:
        # It has answers that were not taken: whoever used it next would take them for their own.
        _destroy(context)
        raise
    _contexts.append(context)
    return np.flatnonzero(~done)


def _submit(context: int, addresses: NDArray[np.uint64]) -> NDArray[Any]:
    """Have requests carried out; return the answers to those that were taken."""
    *_, getevents, submit = _NUMBERS[platform.machine()]
    count = max(0, _call(submit, context, len(addresses), addresses.ctypes.data))
    answers = np.zeros(count, _ANSWER)
    got = 0
    while got < count:  # none may be under way when the memory is used for something else
        place = answers.ctypes.data + got * _ANSWER.itemsize
        n = _call(getevents, context, count - got, count - got, place, 0)
        if n < 0 and ctypes.get_errno() != errno.EINTR:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        got += max(0, n)
    return answers


def _context() -> int | None:
    """Return a queue that nobody uses, or None where there are none."""
    global _usable
    if not _usable:
        return None
    try:
        return _contexts.pop()
    except IndexError:
        made = ctypes.c_ulong(0)
        if _call(_NUMBERS[platform.machine()][0], _AT_ONCE, ctypes.addressof(made)):
            _usable = False
            return None
        return made.value


def _destroy(context: int) -> None:
    """Free a queue, when all that is under way in it has ended."""
    _call(_NUMBERS[platform.machine()][1], context)


def _call(number: int, *arguments: int) -> int:
    """Make a system call, without Python's lock; return what it returns."""
    result: int = _libc().syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    return result


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


if hasattr(os, "register_at_fork"):  # a child has none of them
    os.register_at_fork(after_in_child=_contexts.clear)
