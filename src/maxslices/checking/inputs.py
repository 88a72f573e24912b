"""Data to try a method on: made by rule, so that every run sees the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ..core.method_meta import MethodMeta
from ..core.parameters import check_parameters
from ..devices.sample_data import detector_values
from ..errors import OutOfMemoryError, ParameterError, UsageError

_ALL_RANDOM = 2**24
"""Elements beyond which slices repeat: to draw so many takes 0.2 s, and a block of real size has
twenty times as many."""


@lru_cache(maxsize=2)
def plausible_data(shape: tuple[int, int, int], dtype: np.dtype[Any], seed: int) -> np.ndarray:
    """Make positive data without constant slices, read-only.

    Seed 0 gives values spread evenly over the range that a detector would use, any other
    their squares: another histogram, to find out whether memory depends on the values.
    """
    try:
        data = np.empty(shape, dtype)  # first, as it may be more than there is
    except (MemoryError, ValueError) as error:  # ValueError: more than can be addressed
        raise OutOfMemoryError(
            f"{'x'.join(map(str, shape))} {dtype}, the input to measure with, is more than can be "
            "allocated here: measure fewer slices"
        ) from error
    rng = np.random.default_rng(0)
    n_random = shape[0]
    if math.prod(shape) > _ALL_RANDOM:
        n_random = min(shape[0], max(1, _ALL_RANDOM // (shape[1] * shape[2])) | 1)
    even = rng.random((n_random, *shape[1:]), np.float32)
    if seed:
        np.square(even, out=even)
    even = detector_values(even, dtype)
    for start in range(0, shape[0], n_random):
        data[start : start + n_random] = even[: shape[0] - start]
    data.flags.writeable = False
    return data.view()  # it owns nothing: lists of what is alive leave it out


def input_data(
    shape: tuple[int, int, int],
    dtype: np.dtype[Any],
    seed: int,
    make_data: Callable[..., Any] | None = None,
) -> np.ndarray:
    """Make a method's input on the host; `make_data` as in `Case`."""
    if make_data is None:
        return plausible_data(shape, dtype, seed)
    made = make_data(np.random.default_rng(seed), shape, dtype)
    if not isinstance(made, np.ndarray) or made.shape != shape or made.dtype != dtype:
        raise ValueError(
            f"make_data must return a NumPy array of shape {shape} and {dtype}, not "
            f"{getattr(made, 'shape', type(made).__name__)} {getattr(made, 'dtype', '')}"
        )
    return made


def check_given(meta: MethodMeta, parameters: Mapping[str, Any]) -> None:
    """Require that the parameters fit the method's signature.

    Raises
    ------
    ParameterError
        Naming all that do not.
    """
    faults = [text for _, text in check_parameters(meta.function, parameters)]
    if faults:
        raise ParameterError(f"{meta.full_name}: {'; '.join(faults)}")


def require_slice_dim(meta: MethodMeta, slice_dim: int) -> None:
    """Require that a method's pattern allows slices along an axis.

    Raises
    ------
    UsageError
        Naming the axes that it allows.
    """
    if slice_dim not in meta.slice_dims():
        raise UsageError(
            f"{meta.full_name} works on slices along dim "
            f"{' or '.join(map(str, meta.slice_dims()))}, not {slice_dim!r}"
        )
