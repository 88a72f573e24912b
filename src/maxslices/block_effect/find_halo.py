"""The halo that a method needs: one slice is given other values, and how far it reaches is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..core.compare_arrays import compare_arrays
from .side_of_block import cut
from .trial_slices import TrialSlices

SIZES = (9, 33, 129)
"""Slices that are tried in turn, the middle one marked, until the reach ends before the first and
the last: most filters reach a few slices, and few more than 64."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a slice reaches."""

    halo: tuple[int, int] | None
    """Slices (before, after) that a slice of the result depends on; None if on all there were."""
    n_slices: int
    """Slices of the largest array tried."""

    def __str__(self) -> str:
        if self.halo is None:
            return f"all of {self.n_slices} slices"
        before, after = self.halo
        return f"{before} slices before and {after} after"


def find_halo(trial_of: Callable[[int], TrialSlices], most_slices: int) -> Reach | None:
    """Find the slices around a slice on which its result depends.

    Parameters
    ----------
    trial_of : callable
        Makes the method with so many slices.
    most_slices : int
        Most that may be tried.

    Returns
    -------
    Reach or None
        None if the result is not a block of slices, or differs from call to call.
    """
    reach: Reach | None = None
    for n in sorted({min(size, most_slices) for size in SIZES}):
        reach = _reach(trial_of(n))
        if reach is None or reach.halo is not None:
            break
    return reach


def _reach(trial: TrialSlices) -> Reach | None:
    n, middle = trial.n_slices, trial.n_slices // 2
    usual = trial.run(0, n)
    axis = trial.slice_dim
    if not trial.is_block(usual, n) or compare_arrays(usual, trial.run(0, n), axis).n_different:
        return None
    marked = trial.run(0, n, middle)
    changed = []
    for i in range(n):
        one, other = (cut(result, axis, i, i + 1) for result in (usual, marked))
        if compare_arrays(one, other, axis).n_different:
            changed.append(i)
    if not changed:
        return Reach((0, 0), n)
    first, last = min(changed), max(changed)
    if (first == 0 and middle) or (last == n - 1 and n - 1 > middle):
        return Reach(None, n)
    return Reach((max(0, last - middle), max(0, middle - first)), n)
