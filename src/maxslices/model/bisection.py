"""The last number for which something holds."""

from __future__ import annotations

from collections.abc import Callable


def last_of(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last number, of those from `low` to below `high`, up to which it holds.

    Parameters
    ----------
    holds : callable
        Whether it does. Neither end is asked about: it holds for `low`, and not for `high`.
    low, high : int
        The ends, `low` the smaller one.
    """
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
