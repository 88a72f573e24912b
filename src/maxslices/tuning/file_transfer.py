"""Transfer data between memory and files: many pieces in a call, and memory maps.

**Many small pieces of a file are read by one system call.**

The rows of a sinogram are one piece of each frame in a file. A thread that reads pieces one by one
takes Python's lock twice for each, so eight threads are not faster than three: pieces of 160 kB are
read at 20 GB/s, and at 35 GB/s with one call. Linux's ``io_submit`` takes a list of pieces, and
reads them before it returns if the file is in the page cache or not opened for direct access. On
other systems each piece is read by its own call.

Without this, reading sinograms from a file takes 2.4 times as long (H200, 2026-11-22). Scratch
files, whose bands are read in one piece, gain nothing.

**A part of a file is mapped into memory**, and several threads write to it at the same time.

`pwrite` into the page cache reaches 5.0 GB/s however many threads write. Ten threads that write to
a mapping in large pages reach 18.3 GB/s (ext4, Linux 6.18).

Without this, httomo's pipeline with its result saved takes 31 % longer, and twice the processor
time (H200, 2026-11-22).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..system.files import bytes_of, pread_all

_PIECES_PER_CALL = 256
"""Pieces per call, which are the requests of a context. All processes of a system share 65536
requests (``fs.aio-max-nr``), enough for 256 contexts. Each reading thread needs one."""
CALL_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""Numbers of io_setup, io_destroy, io_getevents and io_submit."""
_REQUEST = np.dtype(
    [
        *[("data", "u8"), ("key", "u4"), ("flags", "i4"), ("command", "u2"), ("priority", "i2")],
        *[("fd", "u4"), ("address", "u8"), ("size", "u8"), ("offset", "i8"), ("reserved", "u8")],
        *[("more_flags", "u4"), ("event_fd", "u4")],
    ]
)
"""``struct iocb`` of linux/aio_abi.h; command 0 reads."""
_EVENT = np.dtype([("data", "u8"), ("request", "u8"), ("result", "i8"), ("result2", "i8")])
"""``struct io_event``."""

_contexts: list[int] = []
"""Unused contexts (the system's queues of requests)."""


def pread_pieces(fd: int, outs: NDArray[Any], offsets: NDArray[np.int64]) -> None:
    """Fill each ``outs[i]`` from the byte ``offsets[i]`` of a file.

    Parameters
    ----------
    fd : int
        The file.
    outs : ndarray
        Each item is C-contiguous. There may be gaps between the items.
    offsets : ndarray
        One offset per item.

    Raises
    ------
    EOFError
        If the file ends within a piece.
    OSError
        If the system cannot read the file.
    """
    unread = range(len(outs))
    if len(outs) > 1:
        unread = _read_batches(fd, outs, offsets)
    for i in unread:
        pread_all(fd, [bytes_of(outs[i])], int(offsets[i]))


def _read_batches(fd: int, outs: NDArray[Any], offsets: NDArray[np.int64]) -> Any:
    """Read pieces with few calls; indices of those that were not completely read."""
    context = _take_context()
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
        for first in range(0, len(outs), _PIECES_PER_CALL):
            events = _submit(context, addresses[first : first + _PIECES_PER_CALL])
            done[events["data"][events["result"] == size]] = True
    except BaseException:
        # Pending events would be taken for those of the next read.
        _destroy(context)
        raise
    _contexts.append(context)
    return np.flatnonzero(~done)


def _submit(context: int, addresses: NDArray[np.uint64]) -> NDArray[Any]:
    """Execute requests; the events of those that the system accepted."""
    *_, getevents, submit = CALL_NUMBERS[platform.machine()]
    count = max(0, system_call(submit, context, len(addresses), addresses.ctypes.data))
    events = np.zeros(count, _EVENT)
    got = 0
    while got < count:  # all must end before their memory is reused
        place = events.ctypes.data + got * _EVENT.itemsize
        n = system_call(getevents, context, count - got, count - got, place, 0)
        if n < 0 and ctypes.get_errno() != errno.EINTR:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        got += max(0, n)
    return events


def _take_context() -> int | None:
    """An unused context; None if the system provides none."""
    if sys.platform != "linux" or platform.machine() not in CALL_NUMBERS:
        return None
    with suppress(IndexError):
        return _contexts.pop()
    context = ctypes.c_ulong(0)
    setup = CALL_NUMBERS[platform.machine()][0]
    has_failed = system_call(setup, _PIECES_PER_CALL, ctypes.addressof(context))
    return None if has_failed else context.value


def _destroy(context: int) -> None:
    """Wait for the requests of a context, and free it."""
    system_call(CALL_NUMBERS[platform.machine()][1], context)


def system_call(number: int, *arguments: int) -> int:
    """Make a system call, without holding Python's lock."""
    result: int = _libc().syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    return result


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


if hasattr(os, "register_at_fork"):  # a child process does not have its parent's contexts
    os.register_at_fork(after_in_child=_contexts.clear)


_SAFE_FILE_SYSTEMS = ("ext4", "xfs")
"""File systems on which a write to allocated space never needs more space."""


def is_safe_to_map(path: Path) -> bool:
    """True if writing to a mapping of a file cannot run out of space, once that is allocated.

    Without space, a system call raises an error, and a write to a mapping ends the process.

    Parameters
    ----------
    path : Path
        The file.
    """
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:  # not Linux
        return False
    # A line: mount ID, parent's ID, device, ..., "-", file system type, ...
    mounts = [line.partition(" - ") for line in lines]
    types = {after.split()[0] for before, _, after in mounts if before.split()[2] == wanted}
    return bool(types) and types <= set(_SAFE_FILE_SYSTEMS)


def file_map(fd: int, offset: int, n_bytes: int) -> NDArray[np.uint8]:
    """Part of a file as an array, mapped until the array is freed.

    It has large pages if the file system supports them. With small pages the threads would wait for
    each other.

    Parameters
    ----------
    fd : int
        The file, open for reading and writing, at least as long.
    offset, n_bytes : int
        Start and length of the part.
    """
    lead = offset % mmap.ALLOCATIONGRANULARITY
    memory = mmap.mmap(fd, lead + n_bytes, offset=offset - lead)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)[lead:]
