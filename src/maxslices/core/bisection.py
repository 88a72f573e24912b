"""Bisection over whole numbers."""

from __future__ import annotations

from collections.abc import Callable


def last_true(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Last number from `low` to below `high` for which a condition holds.

    Parameters
    ----------
    holds : callable
        The condition: true up to the number sought, false from there on. It is not evaluated at
        either end: it has to hold for `low`, and not for `high`.
    low, high : int
        The ends, ``low < high``.
    """
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
