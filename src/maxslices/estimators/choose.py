"""The one place that decides where a method's memory model comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import EstimatorError
from ..ledger import Device
from ..memory import MemoryModel
from ..method import MethodMeta
from .declared import declared_model, speaks_of


def choose_model(
    meta: MethodMeta,
    slice_dim: int,
    other_dims: tuple[int, int],
    dtype: np.dtype[Any],
    device: Device,
    parameters: Mapping[str, Any],
) -> tuple[MemoryModel, str]:
    """Return the memory model of a method for these slices, and the name of its source.

    Raises
    ------
    EstimatorError
        If the method declares no estimator, or it fails.
    """
    if meta.estimator is None:
        raise EstimatorError(
            f"{meta.full_name} declares no memory estimator, so it cannot be planned: give "
            "calc_max_slices where it is registered"
        )
    # An estimator that knows nothing of the CPU is the best there is for it; the plan says so.
    source = "declared" if speaks_of(meta, device) else "declared for CUDA"
    return declared_model(meta, slice_dim, other_dims, dtype, device, parameters), source
