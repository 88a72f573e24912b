"""Calls of a method on the tiles of a block, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ...devices import Backend
from ...errors import MethodError
from ...estimate.tiling import Tiling, Window


def in_tiles(
    call: Callable[[Any, Mapping[str, Any]], Any],
    data: Any,
    supplied: Mapping[str, Any],
    tiling: Tiling,
    slice_dim: int,
    dtype: DTypeLike,
    backend: Backend,
) -> Any:
    """Call a method on each tile of a block, and join the results.

    Parameters
    ----------
    call : callable
        ``call(data, supplied)``: the method.
    data : array
        The block, axes (angles, detector_y, detector_x).
    supplied : mapping
        Flats, darks and other values that the runner gives the method; cut like the data.
    tiling : Tiling
        Tiles of a slice.
    slice_dim : int
        Axis of the slices.
    dtype : dtype-like
        Of the result.
    backend : Backend
        The device.

    Raises
    ------
    MethodError
        If the method returns another shape or dtype than that of a tile.
    """
    out = backend.empty(data.shape, dtype)
    for window in tiling.windows():
        # A copy: a method may write to its data, and the next tile has the same halo.
        given = _cut(data, slice_dim, window.given).copy()
        result = call(given, _cut_supplied(supplied, slice_dim, window))
        if getattr(result, "shape", None) != given.shape or result.dtype != out.dtype:
            raise MethodError(
                f"it returned {_described(result)} for a tile of {given.shape}; as it declares "
                f"tile_halo, that must be {given.shape} {out.dtype}"
            )
        _cut(out, slice_dim, window.place)[...] = _cut(result, slice_dim, window.kept)
        del given, result
    return out


def _cut(data: Any, slice_dim: int, window: tuple[slice, slice]) -> Any:
    return data[:, window[0], window[1]] if slice_dim == 0 else data[window[0], :, window[1]]


def _cut_supplied(supplied: Mapping[str, Any], slice_dim: int, window: Window) -> dict[str, Any]:
    first, columns = window.given
    cut = dict(supplied)
    for name in {"flats", "darks"} & set(supplied):
        # For sinograms, flats and darks hold only the rows of the block.
        rows = first if slice_dim == 0 else slice(None)
        cut[name] = supplied[name][:, rows, columns]
    if "angles" in supplied and slice_dim == 1:
        cut["angles"] = supplied["angles"][first]
    if "detector_start" in supplied:
        row, column = supplied["detector_start"]
        cut["detector_start"] = (
            row + first.start if slice_dim == 0 else row,
            column + columns.start,
        )
    return cut


def _described(result: Any) -> str:
    if isinstance(getattr(result, "shape", None), tuple):
        return f"{result.shape} {np.dtype(result.dtype)}"
    return f"a {type(result).__name__}"
