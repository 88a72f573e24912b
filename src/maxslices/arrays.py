"""What an array is, without the array: shape and dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import UsageError


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and dtype of a 3D array, axes (angles, detector_y, detector_x)."""

    shape: tuple[int, ...]
    """Length of each axis."""
    dtype: np.dtype[Any]
    """Element type; anything `numpy.dtype` understands may be given."""

    def __post_init__(self) -> None:
        shape = tuple(int(n) for n in self.shape)
        if len(shape) != 3 or min(shape) < 1:
            raise UsageError(f"an array of slices has three dims of at least 1, not {shape}")
        object.__setattr__(self, "shape", shape)
        try:
            object.__setattr__(self, "dtype", np.dtype(self.dtype))
        except TypeError as error:
            raise UsageError(f"{self.dtype!r} is not a dtype: {error}") from None

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def other_dims(self, slice_dim: int) -> tuple[int, int]:
        """Return the two dims that remain when `slice_dim` is taken out, in array order."""
        first, second = (n for axis, n in enumerate(self.shape) if axis != slice_dim)
        return first, second

    def with_slices(self, slice_dim: int, n_slices: int) -> ArraySpec:
        """Return the same array with `n_slices` along `slice_dim`."""
        return ArraySpec(
            block_shape(slice_dim, n_slices, self.other_dims(slice_dim)), self.dtype
        )

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape))} {self.dtype}"


def block_shape(
    slice_dim: int, n_slices: int, other_dims: tuple[int, int]
) -> tuple[int, int, int]:
    """Return the shape of `n_slices` slices: `other_dims` with the slice dim put back."""
    dims = list(other_dims)
    dims.insert(slice_dim, n_slices)
    return dims[0], dims[1], dims[2]


def parse_shape(text: str) -> tuple[int, int, int]:
    """Read a shape such as ``"1801x2160x2560"`` (angles x detector_y x detector_x).

    Raises
    ------
    UsageError
        If it is not three positive integers joined by ``x``.
    """
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(p.strip().isdigit() and int(p) > 0 for p in parts):
        raise UsageError(
            f"{text!r} is not a shape: write angles x rows x columns, for example 1801x2160x2560"
        )
    first, second, third = (int(p) for p in parts)
    return first, second, third
