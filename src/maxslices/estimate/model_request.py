"""What a method is asked to be planned for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..registry.method_meta import MethodMeta


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What a method is asked to be planned for."""

    meta: MethodMeta
    """The method."""
    slice_dim: int
    """Axis along which the data are cut."""
    other_dims: tuple[int, int]
    """The two dims that remain, in array order."""
    dtype: np.dtype[Any]
    """Input dtype."""
    parameters: Mapping[str, Any]
    """The user's parameters, as far as they are known before anything runs."""
    total_slices: int
    """Slices that there are."""
    is_first: bool = False
    """Whether its data are the scan itself."""

    @property
    def most_slices(self) -> int:
        """Return how many slices one call is given at most."""
        if self.meta.looks_at is None:
            return self.total_slices
        looked_at = self.meta.looked_at(self.total_slices, **self.parameters)
        return min(self.total_slices, len(looked_at))
