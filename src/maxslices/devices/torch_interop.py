"""What the ways to torch on the CPU and on a GPU share: which parameters become tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_FRAMES = ("flats", "darks")
"""Parameters that become tensors as the data do. Angles stay a NumPy array."""


def convert_frames(
    parameters: Mapping[str, Any], to_tensor: Callable[[Any], Any]
) -> dict[str, Any]:
    """Parameters of a method, with flats and darks made tensors."""
    return {
        name: to_tensor(value) if name in _FRAMES and hasattr(value, "shape") else value
        for name, value in parameters.items()
    }
