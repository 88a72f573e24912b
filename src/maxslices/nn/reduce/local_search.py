"""Local search: plans that differ from a given one by one rewrite.

The memory that a step needs for fragmentation differs from plan to plan by more than most
rewrites save, and only a replay shows it. So neighbours of a plan that almost fits are replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .knapsack import Knapsack

PEAK_POWERS = (8.0, 16.0, 32.0)
"""Exponents of the memory in use where all of it is lowered: the larger, the more the peak alone
counts."""
LEAST_GAIN = 1e-3
"""Relative improvement below which no further candidate is added."""


def neighbours(
    knapsack: Knapsack, chosen: Sequence[int], limit_bytes: float, held_bytes: Mapping[str, int]
) -> list[list[int]]:
    """Sets with one candidate more, without those that it excludes.

    Candidates with the largest reduction of the excess for their cost come first. Next come
    those of the modules that hold most at the replayed peak, where the expected peak is wrong.

    Parameters
    ----------
    knapsack : Knapsack
        All candidates.
    chosen : sequence of int
        Rows of the plan's candidates.
    limit_bytes : float
        Limit of the expected memory in use.
    held_bytes : mapping of str to int
        Bytes in use at the replayed peak, by module.
    """
    picked = np.array(list(chosen), np.int64)
    curve = knapsack.curve(chosen)
    trials, price = knapsack.with_one_more(picked, curve)
    above = np.maximum(trials - limit_bytes, 0).sum(axis=1, dtype=np.float64)
    gain = np.maximum(curve - limit_bytes, 0).sum(dtype=np.float64) - above
    score = np.maximum(gain, 0) / np.maximum(price, 1e-9) ** 0.5
    held = np.array([held_bytes.get(c.path, 0) if c.path else 0 for c in knapsack.candidates])
    known = set(chosen)
    rows = (int(row) for row in np.lexsort((price, -held, -score)))
    return [_added(knapsack, chosen, row) for row in rows if row not in known]


def lower_everywhere(
    knapsack: Knapsack, chosen: Sequence[int], power: float, banned: Sequence[int] = ()
) -> list[int]:
    """Add the candidates that lower the memory in use, at the peak and elsewhere, at any cost.

    The less memory is in use beside what is indispensable, the fewer gaps lie between.
    """
    chosen = list(chosen)
    for _ in range(len(knapsack.candidates)):
        curve = knapsack.curve(chosen)
        trials, _ = knapsack.with_one_more(np.array(chosen, np.int64), curve)
        level = (np.maximum(trials, 0) / curve.max()) ** power
        score = level.sum(axis=1, dtype=np.float64)
        score[[*chosen, *banned]] = np.inf
        row = int(score.argmin())
        if score[row] >= ((curve / curve.max()) ** power).sum() * (1 - LEAST_GAIN):
            break
        chosen = _added(knapsack, chosen, row)
    return chosen


def _added(knapsack: Knapsack, chosen: Sequence[int], row: int) -> list[int]:
    return [*(i for i in chosen if not knapsack.conflicts[row, i]), row]
