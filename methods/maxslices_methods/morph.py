"""Changes of shape: stitching of full turns into half turns, and resampling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from maxslices import method
from maxslices.core.ledger import Ledger, from_ledger

from ._angles import Rows, halves
from .namespaces import array_namespace, on_gpu

PIECE_VOXELS = {"cpu": 2**16, "cuda": 2**23}
"""Voxels of scratch: 256 KiB of float32 on a CPU, for a core's cache, and 32 MiB on a GPU."""

VIEWS_BYTES = 4096
"""Bytes of NumPy's views of a piece, or of CuPy's rounding of its arrays, which matter for small
data."""

BROADCAST_BYTES = 2**15
"""NumPy broadcasts a short row or column through a buffer of 8192 items (``np.getbufsize()``)."""


def _even(overlap: float) -> int:
    """Overlap in pixels, rounded to an integer and then up to an even one."""
    pixels = round(overlap)
    return pixels + pixels % 2


def _stitched_dims(other_dims: tuple[int, int], overlap: float) -> tuple[int, int]:
    n_angles, width = other_dims
    if n_angles < 2:
        raise ValueError(f"sino_360_to_180 needs two angles or more, not {n_angles}")
    if not abs(overlap) < width - 1 or abs(_even(overlap)) >= width - 1:  # also for NaN
        raise ValueError(f"overlap must be less than {width - 1} pixels, not {overlap!r}")
    return n_angles // 2, 2 * width - min(0, _even(overlap))


def _blend_angles(n_rows: int, n_angles: int, overlap: int, device: str) -> int:
    """Number of angles whose overlap is blended at a time."""
    return min(n_angles, max(1, PIECE_VOXELS[device] // max(1, n_rows * overlap)))


@from_ledger
def _stitch_memory(m: Ledger, shape: tuple[int, ...], dtype: np.dtype[Any], overlap: float) -> None:
    n_angles, n_rows, width = shape
    half, stitched_width = _stitched_dims((n_angles, width), overlap)
    pixels = _even(overlap)
    m.alloc(shape, dtype)
    m.alloc((half, n_rows, stitched_width), dtype)
    if pixels > 0:
        angles = _blend_angles(n_rows, half, pixels, m.device)
        m.alloc(pixels, "float32")
        m.alloc((angles, n_rows, pixels), "float32")
        m.alloc((angles, n_rows, pixels), "float32")
        if m.device == "cpu":
            m.alloc_bytes(BROADCAST_BYTES)
    if m.device == "cpu":
        m.alloc_bytes(VIEWS_BYTES)


def _stitched_angles(angles: np.ndarray) -> np.ndarray:
    """Angles of the projections from the front."""
    half = len(angles) // 2
    front, _ = halves("sino_360_to_180", angles, len(angles), half, half, warns=False)
    return angles[front]


@method(
    "sinogram",
    calc_max_slices=_stitch_memory,
    output_dims=_stitched_dims,
    output_angles=_stitched_angles,
    keeps_pixel_size=True,
    gives="same",
)
def sino_360_to_180(
    data: Any,
    overlap: float = 0.0,
    side: Literal["left", "right"] = "left",
    angles: Any = None,
) -> Any:
    """Stitch the two halves of a full turn into sinograms of half a turn, twice as wide.

    Projections half a turn apart are stitched: the opposite projection, mirrored, continues the
    first one on the side of the rotation axis. For an odd number of angles, one is omitted.

    Parameters
    ----------
    data : array
        Shape (angles, detector_y, detector_x) over 360 degrees, uint16 or float32.
    overlap : float
        Common pixels of both projections, rounded to an even number. The projections are blended
        linearly across them, and at both ends the outermost pixel is repeated half as often.
        Negative: pixels between the projections, filled with the last value of the left one.
    side : {"left", "right"}
        Side of the field of view with the rotation axis.
    angles : array, shape (angles,), optional
        Angles in radians. Projections that are out of order or incomplete are paired by angle, and
        some may be used twice. A warning is logged if few have a partner. By default, the first
        half is stitched to the second.

    Returns
    -------
    array
        Shape (angles // 2, detector_y, 2 * detector_x), by angle, wider for a negative overlap, of
        the same dtype. The rotation axis is in the middle of a row.

    Raises
    ------
    ValueError
        If there are fewer than two angles, or the overlap or the side is invalid.

    Notes
    -----
    Follows the method of this name in httomolibgpu and Algotom [1]_. As in httomolibgpu, columns
    are repeated at both ends, so the width does not depend on a positive overlap.

    References
    ----------
    .. [1] N. T. Vo et al., "Data processing methods and data acquisition for samples
       larger than the field of view in parallel-beam tomography", Opt. Express 29, 2021.
    """
    n_angles, n_rows, width = data.shape
    half, stitched_width = _stitched_dims((n_angles, width), overlap)
    pixels = _even(overlap)
    if side not in ("left", "right"):
        raise ValueError(f"side must be 'left' or 'right', not {side!r}")
    xp = array_namespace(data)
    front, behind = halves("sino_360_to_180", angles, n_angles, half, half)
    n_blended = 1
    if isinstance(front, slice):
        n_blended = _blend_angles(n_rows, half, pixels, "cuda" if on_gpu(data) else "cpu")
    out = xp.empty((half, n_rows, stitched_width), dtype=data.dtype)
    rising = xp.linspace(0, 1, max(0, pixels), dtype=xp.float32)
    buffers = xp.empty((2, n_blended, n_rows, max(0, pixels)), dtype=xp.float32)
    for own, near, far in _views(half, front, behind):
        seen, mirrored = data[near], data[far, :, ::-1]
        left, right = (mirrored, seen) if side == "left" else (seen, mirrored)
        _stitch(left, right, pixels, rising, buffers, out[own])
    return out


def _views(half: int, front: Rows, behind: Rows) -> Iterator[tuple[slice, slice, slice]]:
    """Rows of the result, with the rows of the two views that are stitched into them.

    If pairs are not stored in order these are single rows, because several would need copies.
    """
    if isinstance(front, slice) and isinstance(behind, slice):
        yield slice(half), front, behind
        return
    pairs = zip(np.asarray(front), np.asarray(behind), strict=True)
    for row, (near, far) in enumerate(pairs):
        yield slice(row, row + 1), slice(near, near + 1), slice(far, far + 1)


def _stitch(left: Any, right: Any, pixels: int, rising: Any, buffers: Any, out: Any) -> None:
    """Stitch the views from the front and from behind, as many together as fit the buffers."""
    xp = array_namespace(out)
    width = left.shape[2]
    if pixels <= 0:
        out[:, :, :width] = left
        if pixels < 0:
            out[:, :, width : width - pixels] = left[:, :, -1:]
        out[:, :, width - pixels :] = right
        return
    seam, margin = width - pixels, pixels // 2
    out[:, :, :margin] = left[:, :, :1]
    out[:, :, out.shape[2] - margin :] = right[:, :, -1:]
    stitched = out[:, :, margin : out.shape[2] - margin]
    stitched[:, :, :seam] = left[:, :, :seam]
    stitched[:, :, width:] = right[:, :, pixels:]
    step = buffers.shape[1]
    for first in range(0, len(out), step):
        own = slice(first, min(first + step, len(out)))
        fading, growing = buffers[:, : own.stop - first]
        growing[...] = right[own, :, :pixels]
        growing *= rising
        fading[...] = left[own, :, seam:]
        # left * (1 - rising) + right * rising, with the weights mirrored in place.
        fading *= rising[::-1]
        fading += growing
        if out.dtype.kind in "iu":
            xp.rint(fading, out=fading)
        stitched[own, :, seam:width] = fading


def _check_new_shape(newshape: list[int]) -> None:
    if len(newshape) != 2 or min(newshape) < 1:
        raise ValueError(f"newshape must be two numbers of pixels, not {newshape!r}")


def _new_dims(other_dims: tuple[int, int], newshape: list[int]) -> tuple[int, int]:
    _check_new_shape(newshape)
    return int(newshape[0]), int(newshape[1])


def _resample_piece(
    n_slices: int, n_columns: int, newshape: Sequence[int], device: str
) -> tuple[int, int]:
    """Numbers of slices, and of new rows in each, that are resampled together."""
    lines = max(1, PIECE_VOXELS[device] // max(n_columns, newshape[1]))
    return min(n_slices, max(1, lines // newshape[0])), min(newshape[0], lines)


@from_ledger
def _resample_memory(
    m: Ledger,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    newshape: list[int],
    interpolation: str,
    slice_dim: int,
) -> None:
    n_slices, (n_new_rows, n_new) = shape[slice_dim], _new_dims((1, 1), newshape)
    n_old = shape[2]
    slices, rows = _resample_piece(n_slices, n_old, newshape, m.device)
    old, new = slices * rows * n_old, slices * rows * n_new
    m.alloc(shape, dtype)
    m.alloc((n_slices, n_new_rows, n_new), "float32")
    if interpolation == "nearest":
        places_bytes, piece_bytes = 8, (old + new) * dtype.itemsize
    else:
        cast_bytes = 0 if dtype == np.float32 else dtype.itemsize
        places_bytes = 8 + 8 + 4
        piece_bytes = max(old * (4 + 4 + cast_bytes), old * 4 + new * (4 + 4))
        if m.device == "cpu":
            piece_bytes += BROADCAST_BYTES
    m.alloc_bytes(piece_bytes + places_bytes * (n_new_rows + n_new) + VIEWS_BYTES)


@method(
    "all",
    calc_max_slices=_resample_memory,
    output_dims=_new_dims,
    output_dtype="float32",
    check_values=_check_new_shape,
    gives="same",
)
def data_resampler(
    data: Any,
    newshape: list[int],
    axis: int | Literal["auto"] | None = None,
    interpolation: Literal["linear", "nearest"] = "linear",
    slice_dim: int | None = None,
) -> Any:
    """Resample every slice to another number of pixels.

    Parameters
    ----------
    data : array
        Shape (angles, detector_y, detector_x), any real dtype.
    newshape : list of int
        The two dims of a slice of the result, in array order.
    axis : int or "auto", optional
        Axis of the slices, which keeps its length: 0 for projections, 1 for sinograms. By default,
        and for "auto", the axis along which the data are cut.
    interpolation : {"linear", "nearest"}
        Bilinear interpolation, or the value of the nearest pixel (the earlier one halfway between
        two).
    slice_dim : int, optional
        Axis along which the data are cut; supplied by the runner.

    Returns
    -------
    array
        float32. The first and the last pixel of a row or column keep their positions, and the
        others are evenly spaced between them: ``linspace(0, n - 1, new)``. Pixels are not averaged
        if the result has fewer.

    Raises
    ------
    ValueError
        If the new shape is not two positive numbers, the interpolation is unknown, or `axis` is not
        the axis along which the data are cut.

    Notes
    -----
    The same as `scipy.interpolate.interpn` on that grid.
    """
    _new_dims((1, 1), newshape)
    if interpolation not in ("linear", "nearest"):
        raise ValueError(f"interpolation must be 'linear' or 'nearest', not {interpolation!r}")
    axis = None if axis == "auto" else axis
    if axis is not None and slice_dim is not None and axis != slice_dim:
        raise ValueError(
            f"axis={axis} but the data are cut along axis {slice_dim}: omit axis, or put a "
            "method of the other pattern before this one"
        )
    along = axis if slice_dim is None else slice_dim
    if along not in (0, 1):
        raise ValueError(f"axis must be 0 (projections) or 1 (sinograms), not {along!r}")
    xp = array_namespace(data)
    shape = list(newshape)
    shape.insert(along, data.shape[along])
    out = xp.empty(tuple(shape), dtype=xp.float32)
    source, target = xp.moveaxis(data, along, 0), xp.moveaxis(out, along, 0)
    n_slices, n_rows, n_columns = source.shape
    at_rows = _places(xp, n_rows, newshape[0], interpolation)
    at_columns = _places(xp, n_columns, newshape[1], interpolation)
    device = "cuda" if on_gpu(data) else "cpu"
    slices, rows = _resample_piece(n_slices, n_columns, newshape, device)
    for first in range(0, n_slices, slices):
        block = source[first : first + slices]
        for top in range(0, newshape[0], rows):
            lines = slice(top, top + rows)
            own = [places[lines] for places in at_rows]
            target[first : first + slices, lines] = _resampled(xp, block, own, at_columns)
    return out


def _places(xp: Any, n: int, n_new: int, interpolation: str) -> list[Any]:
    """Nearest of `n` pixels for each new pixel, or both neighbours and the weight."""
    where = np.linspace(0, n - 1, n_new)
    if interpolation == "nearest":
        return [xp.asarray(np.ceil(where - 0.5).astype(np.int64))]
    low = np.floor(where).astype(np.int64)
    high = np.minimum(low + 1, n - 1)
    return [xp.asarray(low), xp.asarray(high), xp.asarray((where - low).astype(np.float32))]


def _resampled(xp: Any, block: Any, at_rows: list[Any], at_columns: list[Any]) -> Any:
    """Resample rows of a block of slices along rows, then along columns."""
    if len(at_rows) == 1:
        return block[:, at_rows[0]][:, :, at_columns[0]]
    low, high, weight = at_rows
    between = _mixed(
        block[:, low].astype(xp.float32, copy=False),
        block[:, high].astype(xp.float32, copy=False),
        weight[:, None],
    )
    low, high, weight = at_columns
    return _mixed(between[:, :, low], between[:, :, high], weight)


def _mixed(low: Any, high: Any, weight: Any) -> Any:
    """Interpolate ``low + weight * (high - low)`` into `low`; `high` is overwritten."""
    with np.errstate(invalid="ignore", over="ignore"):
        high -= low
        high *= weight
        low += high
    return low
