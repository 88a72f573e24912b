"""A method's results in blocks of two sizes, compared on the same data.

The result of a run must not depend on its blocks. It does where a method looks at neighbouring
slices and declares no halo, and where it scales by something of the whole block, or works otherwise
above some number of slices, or on pairs of them. The first has a remedy, a halo; of the others,
blocks that disagree are kept away.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import takewhile
from typing import Any

from ..core.compare_arrays import compare_arrays, value_range
from .effect import ROUNDING, BlockEffect
from .find_halo import find_halo
from .side_of_block import cut
from .trial_slices import TrialSlices

LARGE, SMALL = 16, 5
"""Slices of the whole and of its blocks: 5 is odd, which tells methods that work on pairs, and does
not divide 16, so that one block is smaller."""
MULTIPLES = (1, 2, 4)
"""Numbers of slices that methods work on together: LPRec3d_tomobar takes two for the parts of a
complex number, so that they mix."""
_LEAST_ALIKE = 3
"""Sizes of blocks that must agree for a multiple to be believed."""


def compare_blocks(
    trial: TrialSlices,
    small: int = SMALL,
    halo_trial: Callable[[int], TrialSlices] | None = None,
    most_slices: int = 0,
) -> BlockEffect | None:
    """Compare a method's result in one block with that in smaller ones.

    Parameters
    ----------
    trial : TrialSlices
        The method with the slices of the larger block.
    small : int
        Slices of the smaller blocks.
    halo_trial : callable, optional
        Makes the method with so many slices, perhaps smaller ones, to find its halo with.
    most_slices : int
        Most slices to find a halo with.

    Returns
    -------
    BlockEffect or None
        None if the result is not a block of as many slices.
    """
    n = trial.n_slices
    whole = trial.run(0, n)
    if not trial.is_block(whole, n):
        return None
    extent = value_range(whole, trial.slice_dim)

    def difference(size: int, halo: tuple[int, int]) -> float:
        gaps = [0.0]
        for start, part in trial.run_in_blocks(size, halo):
            stop = start + part.shape[trial.slice_dim]
            gaps.append(_gap(trial, _part(trial, whole, start, stop), part))
        return max(gaps) / extent

    found = difference(small, trial.declared)
    if found <= ROUNDING:
        return BlockEffect(n, small, found)
    if _gap(trial, whole, trial.run(0, n)) > ROUNDING * extent:
        return BlockEffect(n, small, found, is_repeatable=False)
    if halo_trial is not None:
        reach = find_halo(halo_trial, most_slices)
        if reach is not None and reach.halo is not None and reach.halo != trial.declared:
            before, after = (max(pair) for pair in zip(reach.halo, trial.declared, strict=True))
            if difference(small, (before, after)) <= ROUNDING:
                return BlockEffect(n, small, found, halo=(before, after))
    agree_from, multiple = _agreement(trial, whole, extent)
    return BlockEffect(n, small, found, agree_from=agree_from, multiple=multiple)


def _agreement(trial: TrialSlices, whole: Any, extent: float) -> tuple[int | None, int]:
    """Least size from which blocks agree with the whole, and of what number it is a multiple."""
    n, (_, after) = trial.n_slices, trial.declared

    @cache
    def agrees(size: int) -> bool:
        """Compare a block at the beginning."""
        sure = max(1, size - after)  # a block's last slices lack their halo
        result = trial.run(0, size)
        if not trial.is_block(result, size):
            return False
        gap = _gap(trial, _part(trial, whole, 0, sure), _part(trial, result, 0, sure))
        return gap <= ROUNDING * extent

    for multiple in MULTIPLES:
        sizes = range(multiple * ((n - 1) // multiple), 0, -multiple)
        alike = list(takewhile(agrees, sizes))
        if multiple == 1 and alike:
            return alike[-1], 1
        if len(alike) >= _LEAST_ALIKE and _last_agrees(trial, extent, multiple):
            return alike[-1], multiple
    return None, 1


def _last_agrees(trial: TrialSlices, extent: float, multiple: int) -> bool:
    """Compare blocks of a multiple, and a last one that is none, with all slices but one."""
    n, size = trial.n_slices - 1, multiple * (trial.n_slices // 2 // multiple)
    whole = trial.run(0, n)
    for start in range(0, n, size):
        stop = min(n, start + size)
        low, high = max(0, start - trial.declared[0]), min(n, stop + trial.declared[1])
        result = _part(trial, trial.run(low, high), start - low, stop - low)
        if _gap(trial, _part(trial, whole, start, stop), result) > ROUNDING * extent:
            return False
    return True


def _part(trial: TrialSlices, data: Any, low: int, high: int) -> Any:
    return cut(data, trial.slice_dim, low, high)


def _gap(trial: TrialSlices, expected: Any, got: Any) -> float:
    """Largest difference of two results."""
    return compare_arrays(expected, got, trial.slice_dim).largest
