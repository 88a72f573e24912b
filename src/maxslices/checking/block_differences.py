"""Runs a method in blocks, as a plan would, and compares the joined result with one block's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..core.compare_arrays import compare_arrays, value_range
from ..trial.trial import Trial


def differences_between_blocks(trial: Trial, sizes: Iterable[int], tolerance: float) -> list[str]:
    """Differences of results in blocks from the result in one block; empty if there are none.

    Parameters
    ----------
    trial : Trial
        Method and data.
    sizes : iterable of int
        Slices in a block.
    tolerance : float
        Largest difference allowed, relative to the range of the result; 0: bitwise.
    """
    data = trial.data()
    whole = _in_blocks(trial, data, trial.n_slices)  # combined, where the method has a `combine`
    faults = []
    for size in sizes:
        fault = _difference(whole, _in_blocks(trial, data, size), tolerance)
        if fault:
            faults.append(f"in blocks of {size} the result {fault}")
    return faults


def _in_blocks(trial: Trial, data: Any, size: int) -> Any:
    """Result of a run in blocks of a size, on the host."""
    meta = trial.meta
    blocks = trial.blocks(data, size, meta.halo_slices(**trial.parameters))
    results = [trial.on_host(result) for _, result in blocks]
    if not meta.side_results:
        return np.concatenate(results, axis=trial.slice_dim)
    if meta.combine is None:
        return results[0]
    if len(meta.side_results) == 1:
        return meta.combine(results)
    return tuple(meta.combine(list(values)) for values in zip(*results, strict=True))


def _difference(whole: Any, joined: Any, tolerance: float) -> str:
    """Describe the largest difference; empty if there is none."""
    pairs = [(whole, joined)]
    if isinstance(whole, tuple):
        pairs = list(zip(whole, joined, strict=True))
    for expected, got in pairs:
        a, b = np.asarray(expected), np.asarray(got)
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"is {b.shape} {b.dtype}, not {a.shape} {a.dtype}"
        if a.dtype.kind not in "fciub":
            if not np.array_equal(a, b):
                return f"is {got!r}, not {expected!r}"
            continue
        found = compare_arrays(a, b)
        if found.n_different and not (largest := found.largest / value_range(a)) <= tolerance:
            return (
                f"differs at {found.n_different} of {a.size} voxels, by {largest:.2g} of its "
                f"range at most (at {found.where}); allowed: {tolerance:g}"
            )
    return ""
