"""Shapes, dtypes and slices of arrays."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, overload

import numpy as np

from ..errors import UsageError

SLICE_NAMES = {0: "projection", 1: "sinogram"}
"""Name of a slice, by the axis that arrays are cut along."""

NUMBER_KINDS = "biufc"
"""Kinds of `numpy.dtype` that are processed: bool, integers, floats and complex."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and dtype of a 3D array, axes (angles, detector_y, detector_x).

    Raises
    ------
    UsageError
        If the shape is not three ints of at least 1, or the dtype is not numeric.
    """

    shape: tuple[int, ...]
    """Length of each axis."""
    dtype: np.dtype[Any]
    """Element type. Anything that `numpy.dtype` accepts is converted."""

    def __post_init__(self) -> None:
        try:
            shape = tuple(index(n) for n in self.shape)
        except TypeError:
            shape = ()
        if len(shape) != 3 or min(shape) < 1:
            raise UsageError(
                f"an array of slices must have three dims, whole numbers of at least 1, not "
                f"{self.shape}"
            )
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", as_dtype(self.dtype))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def other_dims(self, slice_dim: int) -> tuple[int, int]:
        """Dims that remain without `slice_dim`, in array order."""
        angles, rows, columns = self.shape
        if slice_dim == 0:
            return rows, columns
        if slice_dim == 1:
            return angles, columns
        if slice_dim == 2:
            return angles, rows
        raise UsageError(f"slice_dim must be 0, 1 or 2, not {slice_dim!r}")

    def with_slices(self, slice_dim: int, n_slices: int) -> ArraySpec:
        """Array with `n_slices` along `slice_dim`, otherwise the same."""
        return ArraySpec(block_shape(slice_dim, n_slices, self.other_dims(slice_dim)), self.dtype)

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape))} {self.dtype}"


def as_dtype(dtype: Any) -> np.dtype[Any]:
    """Convert a dtype, its name, a type or a scalar such as ``np.float32()`` to a `numpy.dtype`.

    Raises
    ------
    UsageError
        If it is not a dtype, or not numeric. None is refused, which NumPy reads as float64.
    """
    try:
        if dtype is None:
            raise TypeError("it is None")
        result: np.dtype[Any] = dtype.dtype if isinstance(dtype, np.generic) else np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{dtype!r} is not a dtype: {error}") from None
    if result.kind not in NUMBER_KINDS:
        raise UsageError(f"arrays of dtype {result} cannot be processed: it is not numeric")
    return result


@overload
def block_shape(axis: int, n_slices: int, other_dims: tuple[int, int]) -> tuple[int, int, int]: ...


@overload
def block_shape(axis: int, n_slices: int, other_dims: Sequence[int]) -> tuple[int, ...]: ...


def block_shape(axis: int, n_slices: int, other_dims: Sequence[int]) -> tuple[int, ...]:
    """Shape of `n_slices` slices: `other_dims` with the dim of the slices inserted at `axis`."""
    if axis not in range(len(other_dims) + 1):
        valid = ", ".join(map(str, range(len(other_dims) + 1)))
        raise UsageError(f"the axis of slices must be one of {valid}, not {axis!r}")
    return (*other_dims[:axis], n_slices, *other_dims[axis:])


def normalized_axis(axis: int, n_dims: int) -> int:
    """Convert an axis that may count from the last one to one that counts from the first.

    Raises
    ------
    UsageError
        If an array of `n_dims` dims has no such axis.
    """
    if axis not in range(-n_dims, n_dims):
        raise UsageError(f"an array of {n_dims} dims has no axis {axis!r}")
    return axis % n_dims


def parse_shape(text: str) -> tuple[int, int, int]:
    """Read a shape such as ``"1801x2160x2560"`` (angles x detector_y x detector_x).

    Raises
    ------
    UsageError
        If it is not three positive integers joined by ``x``.
    """
    number = r"\s*([0-9]{1,12})\s*"
    match = re.fullmatch(f"{number}[xX]{number}[xX]{number}", text)
    dims = tuple(int(n) for n in match.groups()) if match else ()
    if not dims or min(dims) < 1:
        raise UsageError(
            f"{text!r} is not a shape: write angles x rows x columns, for example 1801x2160x2560"
        )
    first, second, third = dims
    return first, second, third


def cut(data: Any, axis: int, low: int, high: int) -> Any:
    """View of the slices from `low` up to `high`."""
    index = [slice(None)] * data.ndim
    index[axis] = slice(low, high)
    return data[tuple(index)]


def side_of_block(side: Mapping[str, Any], slice_dim: int, low: int, high: int) -> dict[str, Any]:
    """Side data that depend on the block: rows of frames, angles, the first slice."""
    of_block: dict[str, Any] = {}
    for name, value in side.items():
        if name in ("flats", "darks") and slice_dim == 1:
            of_block[name] = value[:, low:high].copy()
        elif name == "angles" and slice_dim == 0:
            of_block[name] = value[low:high]
        elif name == "first_slice":
            of_block[name] = low
    return of_block
