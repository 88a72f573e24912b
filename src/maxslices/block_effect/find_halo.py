"""Measurement of a method's halo from the reach of one changed slice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.arrays import cut
from ..core.compare_arrays import compare_arrays
from ..system.process_state import quiet
from ..trial.trial import Trial

SIZES = (9, 33, 129)
"""Numbers of slices, tried in turn with the middle slice changed, until the first and last slice
of the result do not change. Most filters reach a few slices, and few of them more than 64."""


_ABOVE, _BELOW = 1.05, 0.5
"""Factors for the values of the changed slice: made-up integers leave 5 % of their range free."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Slices of the input on which a slice of the result depends."""

    halo: tuple[int, int] | None
    """Slices (before, after) on which a slice of the result depends; None if it depends on all."""
    n_slices: int
    """Slices of the largest input that was tried."""

    def __str__(self) -> str:
        if self.halo is None:
            return f"all of {self.n_slices} slices"
        before, after = self.halo
        return f"{before} slices before and {after} after"


def find_halo(trial_of: Callable[[int], Trial], most_slices: int) -> Reach | None:
    """Find the slices around a slice on which its result depends.

    Parameters
    ----------
    trial_of : callable
        Returns a trial of the method with so many slices.
    most_slices : int
        Most slices to try.

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


def _reach(trial: Trial) -> Reach | None:
    n, middle, axis = trial.n_slices, trial.n_slices // 2, trial.slice_dim
    data, side = trial.data(), trial.side()
    with quiet():  # warnings about made-up data are not helpful
        usual, again = (trial.call(data.copy(), side) for _ in range(2))
        if getattr(usual, "ndim", 0) != 3 or usual.shape[axis] != n:
            return None
        if compare_arrays(usual, again, axis).n_different:
            return None
        del again
        marked = trial.call(_marked(trial, data, middle), side)
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


def _marked(trial: Trial, data: Any, index: int) -> Any:
    """Copy of a block with one slice changed, some values above and some below all others.

    This changes all statistics of the block.
    """
    block = data.copy()
    place = cut(block, trial.slice_dim, index, index + 1)
    other = cut(trial.data(kind="dark"), trial.slice_dim, index, index + 1)[:, ::-1, ::-1]
    place[...] = other
    flat = place.reshape(-1)
    flat[::2] = (other.max() * _ABOVE).astype(place.dtype)
    flat[1::4] = (other.min() * _BELOW).astype(place.dtype)
    place[...] = flat.reshape(place.shape)
    return block
