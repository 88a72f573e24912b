"""What a C library takes on a GPU outside the pool: 3D arrays of a block's dims, or a constant.

The device is read every 2 ms, in steps of 2 MiB: a reading alone does not tell bytes. But such
memory is an array: its size is a product of dims that the method knows. The product that explains
all readings is taken for the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations_with_replacement

from ..measure.cupy_pool import GRAIN_BYTES
from ..trial.trial import OUTSIDE_BYTES
from .formula import Formula

ABOVE_BYTES = OUTSIDE_BYTES["cuda"]
"""Readings may lie as much above what arrays take: FISTA3d_tomobar's on an H200 lie 3 to 6 MiB
above."""
_ITEM_BYTES = 4
"""ASTRA's arrays are float32."""


def outside_formula(readings: Mapping[int, int], dims: Iterable[tuple[int, int]]) -> Formula | None:
    """Bytes outside the pool for n slices; None if nothing explains the readings.

    One array of a product of two dims is tried first, then up to four of them, then two different,
    and then a constant: workspaces of a library that works slice by slice.

    `readings` are bytes by the slices of the call; `dims` are those of the input and the output.

    CUDA pads the depth of a 3D array, the slices, to a power of two up to 16 and to a multiple of
    16 beyond: 33 slices take as much as 48 (measured on an H200).
    """
    lengths = sorted({length for pair in dims for length in pair})
    products = sorted(a * b for a, b in combinations_with_replacement(lengths, 2))
    several = [n * area for n in (2, 3, 4) for area in products]
    for areas in (products, several, [p + q for p in products for q in products]):
        found = []
        for area in areas:
            formula = Formula(0, area * _ITEM_BYTES, "depth(n)")
            off = [n_bytes - formula.at(n) for n, n_bytes in readings.items()]
            if min(off) >= -GRAIN_BYTES and max(off) <= ABOVE_BYTES:
                found.append((sum(map(abs, off)), formula))
        if found:
            return min(found, key=lambda each: each[0])[1]
    most = max(readings.values())
    is_constant = len(readings) > 1 and most - min(readings.values()) <= ABOVE_BYTES
    return Formula(most) if is_constant else None
