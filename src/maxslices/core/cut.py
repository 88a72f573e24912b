"""Slices of an array, and what belongs to them of the data beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def cut(data: Any, axis: int, low: int, high: int) -> Any:
    """View of the slices from `low` up to `high`."""
    index = [slice(None)] * data.ndim
    index[axis] = slice(low, high)
    return data[tuple(index)]


def side_of_block(side: Mapping[str, Any], slice_dim: int, low: int, high: int) -> dict[str, Any]:
    """Side data that differ from block to block: rows of frames, angles, the first slice."""
    found: dict[str, Any] = {}
    for name, value in side.items():
        if name in ("flats", "darks") and slice_dim == 1:
            found[name] = value[:, low:high].copy()
        elif name == "angles" and slice_dim == 0:
            found[name] = value[low:high]
        elif name == "first_slice":
            found[name] = low
    return found
