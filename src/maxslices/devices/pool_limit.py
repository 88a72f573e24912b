"""Limit CuPy's pool, which gives back what it does not use before it refuses a request.

Where the device is full, the pool gives back to it the blocks that it does not use, collects
garbage, and asks once more. Where its own limit is reached it refuses at once (CuPy 14.2), unused
blocks or not. Blocks of which a part is in use cannot be given back either way.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def limited_pool(cupy: Any, budget_bytes: int) -> Iterator[None]:
    """Limit the current device's pool to what it has in use plus a budget.

    An allocator that is not the pool's stays, and the limit with it: that of a method's own, or
    one shared with torch. So does one inside `cupy.cuda.using_allocator`, which CuPy does not
    let anything override.
    """
    pool = cupy.get_default_memory_pool()
    limit_before, allocator_before = pool.get_limit(), cupy.cuda.get_allocator()
    allocator = None
    if allocator_before == pool.malloc:
        allocator = _patient(pool, cupy.cuda.memory.OutOfMemoryError)
        with suppress(ValueError):
            cupy.cuda.set_allocator(allocator)
    pool.free_all_blocks()
    pool.set_limit(size=pool.total_bytes() + budget_bytes)
    try:
        yield
    finally:
        pool.set_limit(size=limit_before)
        if cupy.cuda.get_allocator() is allocator:
            cupy.cuda.set_allocator(allocator_before)


def _patient(pool: Any, refusal: type[Exception]) -> Callable[[int], Any]:
    """The pool's function that allocates, tried again after what is unused was given back."""

    def malloc(n_bytes: int) -> Any:
        for give_back in (pool.free_all_blocks, collect, None):
            try:
                return pool.malloc(n_bytes)
            except refusal:
                if give_back is None:
                    raise
            give_back()

    def collect() -> None:
        gc.collect()  # arrays in reference cycles
        pool.free_all_blocks()

    malloc.__self__ = pool  # type: ignore[attr-defined]  # for the meters
    return malloc
