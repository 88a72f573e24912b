"""The C library's heap, made to keep what blocks need from one to the next.

The C library asks the system for each array of more than 32 MiB, and gives it back with the
array; so its pages are made anew for every array of every block. Of what minus_log takes, that
is a tenth. In a virtual machine whose host has to find the memory first, a block of 84 MB takes
0.2 s and not 0.03. While a run goes on whose blocks find room several times over, arrays come
from the heap instead and go back to it. Its pages are made once, by a thread of its own while
the first block is read.

It is the heap of the whole process, so this concerns whatever else allocates meanwhile. Only
glibc is known to be asked in this way; elsewhere all this does nothing.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

import numpy as np

from .page_prefault import PagesAhead, libc

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
"""Parameters of ``mallopt``: bytes free at the heap's end that go back to the system; size from
which an array is asked for by itself; and how many may be."""
_NEVER, _NONE = -1, 0
_USUAL = ((_TRIM_THRESHOLD, 2**26), (_MMAP_THRESHOLD, 2**25), (_MMAP_MAX, 2**16))
"""What they are in a program that has freed some large arrays, if nobody sets them."""
LARGE_BYTES = 2**25
"""Smaller arrays come from the heap and go back to it anyway."""

_n_keepers = 0
_ahead: PagesAhead | None = None


def keep(n_bytes: int) -> bool:
    """Have the heap keep what is freed, and begin to make pages of so many bytes.

    Returns
    -------
    bool
        Whether it does, and is to be let go once.
    """
    global _n_keepers, _ahead
    if not _is_glibc():
        return False
    _stop()
    _n_keepers += 1
    _set(is_kept=True)
    with suppress(MemoryError):
        place = np.empty(n_bytes, np.uint8)
        address = place.ctypes.data
        del place
        # It is gone if it did not come from the heap: in a thread that is not the first, or that
        # ran out of memory before.
        if address + n_bytes <= _end():
            _ahead = PagesAhead(address, n_bytes)
    return True


def let_go() -> None:
    """Give back what is free; and whatever is freed, unless another run wants it kept."""
    global _n_keepers
    _n_keepers -= 1
    _give_back()
    _set(is_kept=_n_keepers > 0)


@contextmanager
def as_usual() -> Iterator[None]:
    """Keep nothing meanwhile, so that what is taken shows in the process's resident memory."""
    if _n_keepers:
        _give_back()
    try:
        yield
    finally:
        if _n_keepers:
            _set(is_kept=True)


def _give_back() -> None:
    _stop()
    _set(is_kept=False)
    libc().malloc_trim(0)


def _set(is_kept: bool) -> None:
    settings = ((_TRIM_THRESHOLD, _NEVER), (_MMAP_MAX, _NONE)) if is_kept else _USUAL
    for parameter, value in settings:
        libc().mallopt(parameter, value)


def _stop() -> None:
    global _ahead
    ahead, _ahead = _ahead, None
    if ahead is not None:
        ahead.stop()


@cache
def _is_glibc() -> bool:
    """Tell whether the C library is one that can be asked."""
    return sys.platform == "linux" and hasattr(libc(), "gnu_get_libc_version")


def _end() -> int:
    """Return the address at which the heap ends."""
    sbrk = libc().sbrk
    sbrk.restype, sbrk.argtypes = ctypes.c_size_t, [ctypes.c_ssize_t]
    return int(sbrk(0))
