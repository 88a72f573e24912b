"""Compare two arrays: how many values differ, by how much, and where.

NaN equals NaN, an infinity equals itself, both parts of complex values are compared, and integers
are compared exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class ArrayDifference:
    """Difference between an array and the expected one."""

    n_different: int
    """Number of values that differ."""
    largest: float
    """Largest absolute difference, infinite if only one of two values is finite."""
    where: tuple[int, ...] | None
    """Index of the largest difference; None if the arrays are equal."""


def compare_arrays(expected: Any, got: Any, axis: int = 0) -> ArrayDifference:
    """Compare two arrays of one shape.

    Parameters
    ----------
    expected, got : array
        Two arrays of NumPy or of CuPy, of equal shape.
    axis : int
        Axis along which the arrays are compared slice by slice, to save memory.

    Returns
    -------
    ArrayDifference
        Its largest difference is 0 for equal arrays.
    """
    if expected.ndim == 0:
        expected, got, axis = expected.reshape(1), got.reshape(1), 0
    n_different, largest = 0, 0.0
    where: tuple[int, ...] | None = None
    for i in range(expected.shape[axis]):
        index = (slice(None),) * axis + (slice(i, i + 1),)
        a, b = expected[index], got[index]
        gap = _gap(a, b)
        count = int((gap != 0).sum())
        if not count:
            continue
        n_different += count
        most = float(gap.max())
        if most > largest:
            place = [int(k) for k in np.unravel_index(int(gap.argmax()), gap.shape)]
            place[axis] = i
            largest, where = most, tuple(place)
    return ArrayDifference(n_different, largest, where)


def value_range(array: Any, axis: int = 0) -> float:
    """Range of the finite values of an array, or of their magnitudes if they are complex.

    If all values are equal, their magnitude is returned, or 1 if it is 0. Without finite values the
    range is 1.
    """
    lows: list[float] = []
    highs: list[float] = []
    if array.ndim == 0:
        array, axis = array.reshape(1), 0
    for i in range(array.shape[axis]):
        part = array[(slice(None),) * axis + (slice(i, i + 1),)]
        if part.dtype.kind == "c":
            part = abs(part)
        if part.dtype.kind == "f":
            part = part[abs(part) < np.inf]
        if part.size:
            lows.append(float(part.min()))
            highs.append(float(part.max()))
    if not lows:
        return 1.0
    return max(highs) - min(lows) or abs(max(highs)) or 1.0


def _gap(a: Any, b: Any) -> Any:
    """Absolute difference of each pair of values, 0 only if they are equal."""
    kind = a.dtype.kind + b.dtype.kind
    if "c" in kind:
        parts = [_gap(x, y) for x, y in ((a.real, b.real), (a.imag, b.imag))]
        with np.errstate(over="ignore"):
            return np.hypot(*parts)  # squares of parts above 1e154 would overflow
    if "f" not in kind:  # exact, because float64 cannot distinguish integers beyond 2**53
        larger = a > b
        a, b = (
            a.astype(np.uint64),
            b.astype(np.uint64),
        )  # differences wrap around to the right value
        gap = (b - a).astype(np.float64)
        gap[larger] = (a - b).astype(np.float64)[larger]
        return gap
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        gap = abs(a - b)
    gap[gap != gap] = np.inf
    gap[(a == b) | ((a != a) & (b != b))] = 0
    return gap
