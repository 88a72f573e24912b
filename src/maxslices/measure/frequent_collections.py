"""Collect garbage often, while Python's objects are counted as memory of a method.

Objects in reference cycles wait for the garbage collector, which comes after 700 new ones (2,000
since Python 3.13): 170 kB of a library's small objects, more or less of them by chance, that the
method does not need.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_OBJECTS = 50
"""New objects after which garbage is collected: they take 12 kB."""


@contextmanager
def frequent_collections() -> Iterator[None]:
    """Have the garbage collector come often inside a ``with`` block, if it is on."""
    usual = gc.get_threshold()
    if usual[0] == 0:
        yield
        return
    # What several threads use while it looks at new objects is looked at the next time.
    gc.set_threshold(min(_OBJECTS, usual[0]), 1, usual[2])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
