"""Shape and dtype in place of a tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape and dtype of a tensor that need not exist."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    requires_grad: bool = False

    def empty(self) -> torch.Tensor:
        """Make such a tensor on the meta device, without data."""
        return torch.empty(
            self.shape, dtype=self.dtype, device="meta", requires_grad=self.requires_grad
        )
