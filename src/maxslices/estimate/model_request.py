"""The request for a memory model: a method with its data and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..registry.method_meta import MethodMeta


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A method with its parameters and data, for which a memory model is wanted."""

    meta: MethodMeta
    """The method."""
    slice_dim: int
    """Axis of the slices: 0 for projections, 1 for sinograms."""
    other_dims: tuple[int, int]
    """The two dims that remain, in array order."""
    dtype: np.dtype[Any]
    """Input dtype."""
    parameters: Mapping[str, Any]
    """The user's parameters; those that an earlier step will compute are missing."""
    total_slices: int
    """Slices of the whole scan."""

    @property
    def slices(self) -> tuple[int, tuple[int, int], np.dtype[Any]]:
        """What a method's functions are asked about: the axis, the other dims, and the dtype."""
        return self.slice_dim, self.other_dims, self.dtype

    @property
    def most_slices(self) -> int:
        """Most slices that one call is ever given."""
        if self.meta.sample_slices is None:
            return self.total_slices
        looked_at = self.meta.looked_at(self.total_slices, **self.parameters)
        return min(self.total_slices, len(looked_at))
