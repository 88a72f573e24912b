"""Memory of the process: retain freed arrays, and remove tracemalloc's hooks for Python objects.

**Freed arrays stay in the C library's heap** between blocks.

glibc takes each array of more than 32 MiB from the system and returns it when it is freed, so the
system provides new pages for every array of every block. If memory is ample for several blocks,
such arrays are taken from the heap and returned to it.

Without this, on two cores of an H200's host (2026-11-22), a run from memory to memory takes 27 %
longer, and minus_log with a median from file to file 14 %.

If memory is short, each array of 128 KiB or more has its own mapping, which returns to the system
when it is freed. glibc would raise that size to 32 MiB by itself, and the heap would keep holes
between arrays of different sizes. With that, fbp in a budget of 60 MB took 87 MB as the kernel
counts, and in 100 MB 115 MB.

The heap belongs to the whole process, so other allocations are affected as well. Nothing happens
with a C library other than glibc.

**tracemalloc's hooks** are removed from Python's own allocators.

tracemalloc hooks all three of them, which makes a method with many small steps three times slower.
NumPy reports its arrays to tracemalloc in any case. So if only arrays count, the original
allocators are installed again once tracing has started. The memory is the same either way, so it
may be freed with or without hooks.

Without this, a run of minus_log with a median takes 31 % more processor time, with one block of
four traced (two cores, 2026-11-22).
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
"""Parameters of ``mallopt``, from malloc.h: the free bytes at the end of the heap that are returned
to the system, the smallest size with its own mapping, and the number of such mappings."""
_NEVER, _NONE = -1, 0
_SMALL_BYTES = 2**17
"""Smallest size of an array with its own mapping if memory is short: glibc's initial value. With
256 KiB, arrays of 100 to 250 KiB left holes: six methods with a budget of 12.4 MB took 13.0 MB
instead of 11.4 MB. 64 KiB gain nothing more (2026-11-23)."""
_FRUGAL = ((_TRIM_THRESHOLD, _SMALL_BYTES), (_MMAP_THRESHOLD, _SMALL_BYTES), (_MMAP_MAX, 2**16))
"""Values with which freed memory is returned to the system."""
_DEFAULTS = (
    (_TRIM_THRESHOLD, int(os.environ.get("MALLOC_TRIM_THRESHOLD_", 2**26))),
    (_MMAP_THRESHOLD, int(os.environ.get("MALLOC_MMAP_THRESHOLD_", 2**25))),
    (_MMAP_MAX, int(os.environ.get("MALLOC_MMAP_MAX_", 2**16))),
)
"""Values after a run: those of the environment, which glibc reads at the start, or else those of a
program that has freed large arrays. glibc then has a mapping threshold of up to 32 MiB, trims at
twice that, and allows 65536 mappings. It has no function to read its values."""
LARGE_BYTES = 2**25
"""Smallest array for which retaining matters. glibc keeps smaller ones in the heap anyway (its
``DEFAULT_MMAP_THRESHOLD_MAX``)."""

_n_holders = 0
_n_frugal = 0


@contextmanager
def malloc_frugal() -> Iterator[None]:
    """Return large arrays to the system when they are freed, and all free memory at the end."""
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
    """Return free memory of glibc's heap to the system."""
    if is_glibc():
        libc().malloc_trim(0)


def malloc_retain() -> bool:
    """Retain freed memory in the heap.

    Returns
    -------
    bool
        True if the heap does so now. Then `malloc_release` must be called once.
    """
    global _n_holders
    if not is_glibc():
        return False
    _n_holders += 1
    _set(retains=True)
    return True


def malloc_release() -> None:
    """Return free memory, and stop retaining memory unless another run still does."""
    global _n_holders
    _n_holders -= 1
    _give_back()


@cache
def is_glibc() -> bool:
    """True if the C library is glibc."""
    return sys.platform == "linux" and hasattr(libc(), "gnu_get_libc_version")


def _give_back() -> None:
    """Return free memory, and apply the settings of the remaining users."""
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
    """The installed allocators, one per domain."""
    allocators = []
    for domain in _DOMAINS:
        allocator = PythonAllocator()
        ctypes.pythonapi.PyMem_GetAllocator(domain, ctypes.byref(allocator))
        allocators.append(allocator)
    return allocators


def install_allocators(wanted: list[PythonAllocator]) -> None:
    """Install one allocator per domain."""
    for domain, allocator in zip(_DOMAINS, wanted, strict=True):
        ctypes.pythonapi.PyMem_SetAllocator(domain, ctypes.byref(allocator))
