"""What blocks do to a method's result, for its author: differences, and the halo to declare."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..block_effect.find_halo import SIZES, Reach
from ..block_effect.find_halo import find_halo as find_reach
from ..core.arrays import ArraySpec, as_dtype, block_shape
from ..core.compare_arrays import compare_arrays, value_range
from ..core.method_meta import MethodMeta
from ..errors import UsageError
from ..trial.trial import Trial
from .estimate_check import find_method, trial_of


def proposed_halo(call: Trial) -> str:
    """What to declare so that a method's result no longer depends on its blocks, for a message.

    Empty where no halo is found, as for a method that adds noise.
    """
    declared = call.meta.halo_slices(**call.parameters)

    def trial(n_slices: int) -> Trial:
        data = call.slice_dim, call.other_dims, call.dtype, call.backend
        return Trial(call.meta, *data, call.parameters, total_slices=n_slices)

    try:
        found = find_reach(trial, max(SIZES))
    except Exception:  # noqa: BLE001 - a method may refuse other numbers of slices in any way
        return ""
    if found is None or found.halo == declared:
        return ""
    if found.halo is None:
        return f"; a slice depends on {found}, so no halo is enough: another pattern may be right"
    return f"; a slice depends on {found}: declare halo={found.halo} in place of {declared}"


def find_halo(
    method: Callable[..., Any] | MethodMeta | str,
    /,
    other_dims: tuple[int, int] = (64, 64),
    dtype: DTypeLike = "float32",
    device: str = "auto",
    slice_dim: int | None = None,
    **parameters: Any,
) -> Reach:
    """Find how many slices around a slice its result depends on.

    One slice is given other values, and the slices of the result that change are counted.

    Parameters
    ----------
    method : callable, MethodMeta or str
        A registered function, its ``.meta``, or its name.
    other_dims : (int, int)
        Dims of a slice to try it on, in array order.
    dtype : dtype-like
        Input dtype.
    device : str
        "auto", "cpu", "cuda" or "cuda:N".
    slice_dim : int, optional
        Axis of the slices; by default the first that the pattern allows.
    **parameters
        Of the method.

    Returns
    -------
    Reach
        Its ``halo`` is what to declare; None if a slice depends on all slices there are.

    Raises
    ------
    UsageError
        If the result is not a block of as many slices, or differs from call to call.
    """
    meta = find_method(method)
    axis = meta.slice_dims()[0] if slice_dim is None else slice_dim

    def trial(n_slices: int) -> Trial:
        spec = ArraySpec(block_shape(axis, n_slices, other_dims), as_dtype(dtype))
        return trial_of(meta, spec, axis, device, parameters)

    found = find_reach(trial, max(SIZES))
    if found is None:
        raise UsageError(
            f"{meta.full_name} has no halo to be found: its result is not a block of as many "
            "slices as it is given, or differs from call to call"
        )
    return found


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
