"""Differences between a method's results in blocks of several sizes, and the halo to declare."""

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
    """End of a message that proposes the halo to declare, or "" if no halo helps.

    No halo helps a method that adds noise, for example.
    """
    declared = call.meta.halo_slices(**call.parameters)

    def trial(n_slices: int) -> Trial:
        data = call.slice_dim, call.other_dims, call.dtype, call.backend
        return Trial(call.meta, *data, call.parameters, total_slices=n_slices)

    try:
        reach = find_reach(trial, max(SIZES))
    except Exception:  # noqa: BLE001 - a method may raise anything for other numbers of slices
        return ""
    if reach is None or reach.halo == declared:
        return ""
    if reach.halo is None:
        return f"; a slice depends on {reach}, so no halo is enough: another pattern may be right"
    return f"; a slice depends on {reach}: declare halo={reach.halo} in place of {declared}"


def find_halo(
    method: Callable[..., Any] | MethodMeta | str,
    /,
    other_dims: tuple[int, int] = (64, 64),
    dtype: DTypeLike = "float32",
    device: str = "auto",
    slice_dim: int | None = None,
    **parameters: Any,
) -> Reach:
    """Find the number of neighbouring slices on which a slice of the result depends.

    The values of one slice are changed, and the slices of the result that change are counted.

    Parameters
    ----------
    method : callable, MethodMeta or str
        A registered function, its ``.meta``, or its name.
    other_dims : (int, int)
        Dims of the slices of the test data, in array order.
    dtype : dtype-like
        Input dtype.
    device : str
        "auto", "cpu", "cuda" or "cuda:N".
    slice_dim : int, optional
        Axis of the slices. By default, the first that the pattern allows.
    **parameters
        Parameters of the method.

    Returns
    -------
    Reach
        Its ``halo`` is the halo to declare, or None if a slice depends on all slices.

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

    reach = find_reach(trial, max(SIZES))
    if reach is None:
        raise UsageError(
            f"{meta.full_name}: no halo can be found, because its result is not a block of as many "
            "slices as its input, or differs from call to call"
        )
    return reach


def differences_between_blocks(trial: Trial, sizes: Iterable[int], tolerance: float) -> list[str]:
    """Messages for differences of results in blocks from the result in one block.

    Parameters
    ----------
    trial : Trial
        Method and data.
    sizes : iterable of int
        Numbers of slices in a block.
    tolerance : float
        Largest allowed difference, relative to the range of the result. 0 requires bitwise
        equality.
    """
    data = trial.data()
    whole = _in_blocks(trial, data, trial.n_slices)  # combined, if the method has a `combine`
    faults = []
    for size in sizes:
        fault = _difference(whole, _in_blocks(trial, data, size), tolerance)
        if fault:
            faults.append(f"in blocks of {size} the result {fault}")
    return faults


def _in_blocks(trial: Trial, data: Any, size: int) -> Any:
    """Result on the host of a run in blocks of one size."""
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
    """Describe the largest difference, or "" if it is within the tolerance."""
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
        difference = compare_arrays(a, b)
        largest = difference.largest / value_range(a) if difference.n_different else 0.0
        if not largest <= tolerance:
            return (
                f"differs at {difference.n_different} of {a.size} voxels, by {largest:.2g} of its "
                f"range at most (at {difference.where}); allowed: {tolerance:g}"
            )
    return ""
