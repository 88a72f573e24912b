"""Python's own allocators: with or without the hooks of tracemalloc.

tracemalloc hooks all three of them, and a method that works in many small steps then takes three
times as long. NumPy tells it of arrays by itself, hooks or not. So where arrays alone are asked
for, the allocators are put back as they were when tracing has begun. What they hand out is the
same memory either way, whoever frees it.
"""

from __future__ import annotations

import ctypes

_DOMAINS = range(3)
"""``PYMEM_DOMAIN_RAW``, ``_MEM`` and ``_OBJ``."""


class Allocator(ctypes.Structure):
    """``PyMemAllocatorEx`` of Python's C interface."""

    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("ctx", "malloc", "calloc", "realloc", "free")
    )


def allocators() -> list[Allocator]:
    """Return those that are in force."""
    found = []
    for domain in _DOMAINS:
        allocator = Allocator()
        ctypes.pythonapi.PyMem_GetAllocator(domain, ctypes.byref(allocator))
        found.append(allocator)
    return found


def use(wanted: list[Allocator]) -> None:
    """Put these in force."""
    for domain, allocator in zip(_DOMAINS, wanted, strict=True):
        ctypes.pythonapi.PyMem_SetAllocator(domain, ctypes.byref(allocator))
