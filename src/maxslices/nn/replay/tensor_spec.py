"""A tensor that need not be there."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor that need not be there: shape and dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    requires_grad: bool = False

    def empty(self) -> torch.Tensor:
        """Return a tensor like that without data."""
        return torch.empty(
            self.shape, dtype=self.dtype, device="meta", requires_grad=self.requires_grad
        )
