"""The memory of the process: freed arrays kept, Python objects not traced.

**Freed arrays stay in the C library's heap** while blocks are worked on.

glibc takes each array of more than 32 MiB from the system and gives it back when it is freed, so
the pages of every array of every block are made anew. While a run goes on whose blocks have room
several times over, such arrays come from the heap and go back to it.

On two cores of an H200's host (2026-11-22) a run from memory to memory takes 27 % longer without,
and minus_log with a median from file to file 14 %.

Without such room, each array of 128 KiB or more has a mapping of its own, which the system has back
when it is freed. glibc raises that size to 32 MiB by itself, and holes between arrays of different
sizes then stay with the heap: fbp in 60 MB took 87 by the kernel's count, in 100 MB 115.

The heap is that of the whole process, so whatever else allocates meanwhile is affected. With
another C library than glibc nothing happens.

**tracemalloc's hooks** are taken off Python's own allocators.

tracemalloc hooks all three of them, and a method that works in many small steps then takes three
times as long. NumPy reports arrays to tracemalloc by itself, hooks or not. So where arrays alone
count, the allocators from before the hooks are installed again once tracing has begun. The memory
is the same either way, so it may be freed with or without the hooks.

Without, a run of minus_log with a median takes 31 % more processor time, with one block of four
traced (two cores, 2026-11-22).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@cache
def libc() -> ctypes.CDLL:
    """The C library."""
    return ctypes.CDLL(None)


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
"""Parameters of ``mallopt``, by their numbers in malloc.h: the free bytes at the end of the heap
from which on they go back to the system, the size from which on an array gets a mapping of its
own, and the number of such mappings."""
_NEVER, _NONE = -1, 0
_SMALL_BYTES = 2**17
"""Size from which on an array has a mapping of its own where memory is short: glibc's first value,
before it raises it. With 256 KiB arrays of 100 to 250 KiB left holes: six methods in 12.4 MB took
13.0, and take 11.4; with 64 KiB no less (2026-11-23)."""
_FRUGAL = ((_TRIM_THRESHOLD, _SMALL_BYTES), (_MMAP_THRESHOLD, _SMALL_BYTES), (_MMAP_MAX, 2**16))
"""Values that give back what is freed."""
_DEFAULTS = (
    (_TRIM_THRESHOLD, int(os.environ.get("MALLOC_TRIM_THRESHOLD_", 2**26))),
    (_MMAP_THRESHOLD, int(os.environ.get("MALLOC_MMAP_THRESHOLD_", 2**25))),
    (_MMAP_MAX, int(os.environ.get("MALLOC_MMAP_MAX_", 2**16))),
)
"""Values that a run leaves: those of the environment, which glibc reads at the start, else those of
a program that has freed large arrays. glibc raises the mapping threshold to at most 32 MiB, trims
at twice that, and allows 65536 mappings; it has no way to read its values."""
LARGE_BYTES = 2**25
"""Arrays of this size and more have mappings of their own; glibc keeps smaller ones in the heap
anyway (its ``DEFAULT_MMAP_THRESHOLD_MAX``)."""

_n_holders = 0
_n_frugal = 0


@contextmanager
def malloc_frugal() -> Iterator[None]:
    """Give back large arrays as they are freed, and at the end all that is free."""
    global _n_frugal
    if not is_glibc():
        yield
        return
    _n_frugal += 1
    _give_back()
    try:
        yield
    finally:
        _n_frugal -= 1
        _give_back()


def trim_heap() -> None:
    """Give free memory of C's heap back to the system, where it is glibc's."""
    if is_glibc():
        libc().malloc_trim(0)


def malloc_retain() -> bool:
    """Retain freed memory in the heap.

    Returns
    -------
    bool
        True if the heap does so now, and `malloc_release` is to be called once.
    """
    global _n_holders
    if not is_glibc():
        return False
    _n_holders += 1
    _set(retains=True)
    return True


def malloc_release() -> None:
    """Give back what is free; free as usual from now on, unless another run retains memory."""
    global _n_holders
    _n_holders -= 1
    _give_back()


@cache
def is_glibc() -> bool:
    """True if the C library is glibc."""
    return sys.platform == "linux" and hasattr(libc(), "gnu_get_libc_version")


def _give_back() -> None:
    """Give back what is free, and free from now on as those who are left want it."""
    _set(retains=False)
    libc().malloc_trim(0)
    if _n_holders:
        _set(retains=True)


def _set(retains: bool) -> None:
    settings: tuple[tuple[int, int], ...] = _FRUGAL if _n_frugal else _DEFAULTS
    if retains:
        settings = ((_TRIM_THRESHOLD, _NEVER), (_MMAP_MAX, _NONE))
    for parameter, value in settings:
        libc().mallopt(parameter, value)


_DOMAINS = range(3)
"""``PYMEM_DOMAIN_RAW``, ``_MEM`` and ``_OBJ``."""


class PythonAllocator(ctypes.Structure):
    """``PyMemAllocatorEx`` of Python's C interface."""

    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("ctx", "malloc", "calloc", "realloc", "free")
    )


def installed_allocators() -> list[PythonAllocator]:
    """Allocators in force, one per domain."""
    found = []
    for domain in _DOMAINS:
        allocator = PythonAllocator()
        ctypes.pythonapi.PyMem_GetAllocator(domain, ctypes.byref(allocator))
        found.append(allocator)
    return found


def install_allocators(wanted: list[PythonAllocator]) -> None:
    """Put one allocator per domain in force."""
    for domain, allocator in zip(_DOMAINS, wanted, strict=True):
        ctypes.pythonapi.PyMem_SetAllocator(domain, ctypes.byref(allocator))
