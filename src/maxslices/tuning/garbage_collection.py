"""Python's collection of garbage, beside which arrays on a device come and go."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_ITS_OWN = 2000
"""So many objects Python 3.12 counts as left out from the beginning; a program has more."""
_inside = False
"""Whether a block of `quick_collections` is under way: to count takes milliseconds."""


@contextmanager
def quick_collections() -> Iterator[None]:
    """Have garbage looked for among what is made meanwhile only.

    CuPy looks for garbage whenever its cache of FFT plans is cleared, and to look through all
    objects of a program takes longer than most blocks. Where something is left out already, by
    the program or around this, it stays so: Python cannot take back a part.
    """
    global _inside
    if _inside or gc.get_freeze_count() > _ITS_OWN:
        yield
        return
    gc.freeze()
    _inside = True
    try:
        yield
    finally:
        _inside = False
        gc.unfreeze()
