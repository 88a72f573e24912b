"""Rescaling to integers or physical units, and statistics of the whole scan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np

from maxslices import method
from maxslices.core.exact_sum import exact_terms, sum_of_terms
from maxslices.core.ledger import Ledger, from_ledger

from .namespaces import array_namespace, on_gpu, to_host
from .normalize import float32_result_max_slices

Bits = Literal[8, 16, 32]
Statistics = tuple[float, float, float, int]
BlockStatistics = tuple[float, float, float, int, tuple[float, ...]]
"""Minimum, maximum, mean, number, and the terms of the exact sum (`maxslices.core.exact_sum`)."""

PIECE_VOXELS = {"cpu": 2**15, "cuda": 2**23}
"""Voxels converted to float64 at a time: 256 KiB on a CPU, for a core's cache, and 64 MiB on a
GPU."""

VIEWS_BYTES = 4096
"""Bytes of NumPy's views of a piece, which matter for small data."""

REDUCTION_BYTES = {"cpu": 2**16, "cuda": 2**18}
"""Bytes of the reductions of one piece. On a CPU, NumPy's buffer before 2.3. On a GPU, 32 bytes per
2048 voxels (2**17 per piece) and the results, rounded up."""


def _piece_shape(shape: tuple[int, ...], device: str) -> tuple[int, int, int]:
    """Shape of a piece: several rows of a slice, or several slices."""
    n_z, n_y, n_x = shape
    rows = max(1, PIECE_VOXELS[device] // n_x)
    return min(n_z, max(1, rows // n_y)), min(n_y, rows), n_x


def _piece_voxels(shape: tuple[int, ...], device: str) -> int:
    """Largest number of voxels of a piece. It never decreases with the number of slices."""
    return min(math.prod(shape), max(PIECE_VOXELS[device], shape[2]))


def _pieces(data: Any, *dtypes: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the index of each piece, with scratch arrays of its shape that all pieces share."""
    xp = array_namespace(data)
    device = "cuda" if on_gpu(data) else "cpu"
    deep, high, _ = _piece_shape(data.shape, device)
    buffers = [xp.empty(_piece_voxels(data.shape, device), dtype=dtype) for dtype in dtypes]
    for z in range(0, data.shape[0], deep):
        for y in range(0, data.shape[1], high):
            place = slice(z, z + deep), slice(y, y + high)
            shape = data[place].shape
            yield place, *(b[: math.prod(shape)].reshape(shape) for b in buffers)


def _count_pieces(m: Ledger, shape: tuple[int, ...], *dtypes: str) -> None:
    for dtype in dtypes:
        m.alloc(_piece_voxels(shape, m.device), dtype)
    if m.device == "cpu":
        m.alloc_bytes(VIEWS_BYTES)


@from_ledger
def _statistics_memory(m: Ledger, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    m.alloc(shape, dtype)
    m.alloc(shape[:2], "float64")  # the sum of each row
    _count_pieces(m, shape, "float64", "bool")
    m.alloc_bytes(REDUCTION_BYTES[m.device])


def _combine(blocks: Sequence[BlockStatistics]) -> Statistics:
    """Combine the statistics of all blocks."""
    counted = [block for block in blocks if block[3]]
    if not counted:
        return math.nan, math.nan, math.nan, 0
    number = sum(block[3] for block in counted)
    return (
        min(block[0] for block in counted),
        max(block[1] for block in counted),
        sum_of_terms(block[4] for block in counted) / number,
        number,
    )


@method(
    "all",
    calc_max_slices=_statistics_memory,
    side_results=("glob_stats",),
    combine=_combine,
)
def calculate_stats(data: Any) -> BlockStatistics:
    """Compute minimum, maximum, mean and number of the finite elements.

    Parameters
    ----------
    data : array
        Shape (angles, detector_y, detector_x), any real dtype.

    Returns
    -------
    (float, float, float, int, tuple of float)
        Minimum, maximum, mean and number of finite elements, as for `rescale_to_int`, and the terms
        of the exact sum. Without finite elements, the first three are NaN. The result of `combine`
        does not depend on the division into blocks, because each row is summed alone and the sums
        are added exactly.
    """
    xp = array_namespace(data)
    sums = xp.zeros(data.shape[:2], dtype=xp.float64)
    lowest, highest, number = math.inf, -math.inf, 0
    for place, values, other in _pieces(data, xp.float64, xp.bool_):
        values[...] = data[place]
        n_finite = values.size
        if data.dtype.kind == "f":
            xp.isfinite(values, out=other)
            n_finite = int(xp.count_nonzero(other))
        if n_finite == 0:
            continue
        if n_finite == values.size:
            least, most = float(values.min()), float(values.max())
        else:
            xp.logical_not(other, out=other)
            xp.copyto(values, math.inf, where=other)
            least = float(values.min())
            xp.copyto(values, -math.inf, where=other)
            most = float(values.max())
            xp.copyto(values, 0, where=other)
        xp.sum(values, axis=-1, out=sums[place])
        # Adding 0 turns -0.0 into 0.0, so the order of the two does not matter.
        lowest, highest = min(lowest, least + 0.0), max(highest, most + 0.0)
        number += n_finite
    terms = exact_terms(to_host(sums)) if number else ()
    return *_combine([(lowest, highest, 0.0, number, terms)]), terms


def _integer(bits: int) -> np.dtype[Any]:
    if bits not in get_args(Bits):
        raise ValueError(f"bits must be 8, 16 or 32, not {bits!r}")
    return np.dtype(f"uint{bits}")


def _output_dtype(dtype: np.dtype[Any], bits: int) -> np.dtype[Any]:
    return _integer(bits)


@from_ledger
def _rescale_memory(m: Ledger, shape: tuple[int, ...], dtype: np.dtype[Any], bits: int) -> None:
    m.alloc(shape, dtype)
    m.alloc(shape, _integer(bits))
    _count_pieces(m, shape, "float64")


def _check_range(perc_range_min: float, perc_range_max: float) -> None:
    if not 0 <= perc_range_min < perc_range_max <= 100:
        raise ValueError(
            "perc_range_min and perc_range_max must be between 0 and 100, the first below the "
            f"second, not {perc_range_min!r} and {perc_range_max!r}"
        )


@method(
    "all",
    calc_max_slices=_rescale_memory,
    output_dtype=_output_dtype,
    check_values=_check_range,
)
def rescale_to_int(
    data: Any,
    perc_range_min: float = 0.0,
    perc_range_max: float = 100.0,
    bits: Bits = 8,
    *,
    glob_stats: tuple[float, ...] | list[float],
) -> Any:
    """Rescale a range of values to the full range of an unsigned integer.

    Parameters
    ----------
    data : array
        Shape (angles, detector_y, detector_x), any real dtype.
    perc_range_min, perc_range_max : float
        Ends of the range, in percent of the way from the minimum to the maximum of the scan. Values
        outside are clipped.
    bits : {8, 16, 32}
        Bits of the integers.
    glob_stats : sequence of float
        Minimum and maximum of the whole scan; further elements are ignored. Refer to the result of
        an earlier `calculate_stats`, or pass two numbers. There is no default, because the range of
        each block would scale the blocks differently.

    Returns
    -------
    array
        uint8, uint16 or uint32, of the same shape, rounded to nearest. Infinities are clipped, and
        NaN becomes 0. If minimum and maximum are equal, all values are 0.

    Raises
    ------
    ValueError
        If a parameter is out of its range, or the statistics are not finite.

    Notes
    -----
    The method of this name in httomolibgpu rounds down, computes in single precision, and replaces
    NaN and infinities by the value 0.
    """
    dtype = _integer(bits)
    _check_range(perc_range_min, perc_range_max)
    low, high = _range_of(glob_stats)
    span = high - low
    low, high = low + perc_range_min / 100 * span, low + perc_range_max / 100 * span
    most = 2**bits - 1
    factor = most / (high - low) if high > low else 0.0

    xp = array_namespace(data)
    out = xp.empty(data.shape, dtype=dtype)
    for place, values in _pieces(data, xp.float64):
        values[...] = data[place]
        xp.fmax(values, low, out=values)
        xp.minimum(values, high, out=values)
        values -= low
        values *= factor
        xp.rint(values, out=values)
        out[place] = values
    return out


def _range_of(glob_stats: Sequence[float] | None) -> tuple[float, float]:
    if glob_stats is None or len(glob_stats) < 2:
        raise ValueError(
            f"glob_stats must be the minimum and maximum of the whole scan, not {glob_stats!r}: "
            "refer to the result of calculate_stats, or give two numbers"
        )
    low, high = float(glob_stats[0]), float(glob_stats[1])
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ValueError(
            f"glob_stats must be a finite minimum and a maximum not below it, not {low} and {high}"
        )
    return low, high


@method("all", calc_max_slices=float32_result_max_slices, takes="slices", gives="slices")
def per_length(
    data: Any, unit: Literal["mm", "cm", "um"] = "mm", *, pixel_size_um: float | None = None
) -> Any:
    """Convert attenuation per pixel to attenuation per length.

    Reconstructions have values per pixel. They are divided by the size of a pixel at the sample,
    which the scan's file stores or ``--pixel-size`` gives.

    Parameters
    ----------
    data : array
        Reconstructed slices with attenuation per pixel, any real dtype.
    unit : {"mm", "cm", "um"}
        Unit of length: the result is in 1/mm, 1/cm or 1/um.
    pixel_size_um : float, optional
        Pixel size at the sample in micrometres; supplied by the runner.

    Returns
    -------
    array
        Attenuation per length, float32, of the same shape.

    Raises
    ------
    ValueError
        If the pixel size is unknown.
    """
    if pixel_size_um is None:
        raise ValueError(
            "the pixel size at the sample is unknown: set it with --pixel-size (pixel_size)"
        )
    xp = array_namespace(data)
    out = data.astype(xp.float32)  # first: NumPy casts within an operation through buffers
    return xp.divide(out, np.float32(pixel_size_um / _UNIT_UM[unit]), out=out)


_UNIT_UM = {"um": 1.0, "mm": 1e3, "cm": 1e4}
"""Micrometres in a unit."""
