"""Runs a method in blocks, as a plan would, and holds the joined result against one block."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..block_effect.side_of_block import cut, side_of_block
from ..core.compare_arrays import compare_arrays, value_range
from .measured_call import MeasuredCall


def differences_between_blocks(
    call: MeasuredCall, sizes: Iterable[int], tolerance: float
) -> list[str]:
    """Differences of results in blocks from the result in one block; empty if there are none.

    Parameters
    ----------
    call : MeasuredCall
        Method and data.
    sizes : iterable of int
        Slices in a block.
    tolerance : float
        Largest difference allowed, relative to the range of the result; 0: bitwise.
    """
    host = call.data()
    whole = _in_blocks(call, host, call.n_slices)  # combined, where the method has a `combine`
    faults = []
    for size in sizes:
        fault = _difference(whole, _in_blocks(call, host, size), tolerance)
        if fault:
            faults.append(f"in blocks of {size} the result {fault}")
    return faults


def _in_blocks(call: MeasuredCall, host: np.ndarray, size: int) -> Any:
    before, after = call.meta.halo_slices(**call.parameters)
    found = []
    for start in range(0, call.n_slices, size):
        stop = min(call.n_slices, start + size)
        low, high = max(0, start - before), min(call.n_slices, stop + after)
        block = call.on_device(cut(host, call.slice_dim, low, high))
        result = call.on_host(call.invoke(block, **_side_of(call, low, high)))
        if not call.meta.side_results:
            result = cut(result, call.slice_dim, start - low, stop - low)
        found.append(result)
    if not call.meta.side_results:
        return np.concatenate(found, axis=call.slice_dim)
    combine = call.meta.combine
    if combine is None:
        return found[0]
    if len(call.meta.side_results) == 1:
        return combine(found)
    return tuple(combine(list(values)) for values in zip(*found, strict=True))


def _side_of(call: MeasuredCall, low: int, high: int) -> dict[str, Any]:
    side = side_of_block(call.side, call.slice_dim, low, high)
    return {name: value for name, value in side.items() if name not in call.parameters}


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
