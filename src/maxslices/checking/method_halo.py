"""The halo of one method, for its author."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..block_effect.find_halo import SIZES, Reach
from ..block_effect.find_halo import find_halo as find_reach
from ..core.arrays import as_dtype
from ..core.method_meta import MethodMeta
from ..devices import Backend, select_backend
from ..errors import UsageError
from ..trial.trial import Trial, check_given, require_slice_dim
from .estimate_check import find_method


def proposed_halo(call: Trial) -> str:
    """What to declare so that a method's result no longer depends on its blocks, for a message.

    Empty where no halo is found, as for a method that adds noise.
    """
    meta, declared = call.meta, call.meta.halo_slices(**call.parameters)
    try:
        found = _find_halo(
            meta, call.other_dims, call.dtype, call.backend, call.slice_dim, call.parameters
        )
    except Exception:  # noqa: BLE001 - a method may refuse other numbers of slices in any way
        return ""
    if found.halo is None:
        return f"; a slice depends on {found}, so no halo is enough: another pattern may be right"
    if found.halo == declared:
        return ""
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
    require_slice_dim(meta, axis)
    check_given(meta, parameters)
    return _find_halo(meta, other_dims, as_dtype(dtype), select_backend(device), axis, parameters)


def _find_halo(
    meta: MethodMeta,
    other_dims: tuple[int, int],
    dtype: np.dtype[Any],
    backend: Backend,
    axis: int,
    parameters: Mapping[str, Any],
) -> Reach:
    def trial(n_slices: int) -> Trial:
        return Trial(meta, axis, other_dims, dtype, backend, parameters, total_slices=n_slices)

    found = find_reach(trial, max(SIZES))
    if found is None:
        raise UsageError(
            f"{meta.full_name} has no halo to be found: its result is not a block of as many "
            "slices as it is given, or differs from call to call"
        )
    return found
