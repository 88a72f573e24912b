"""A whole result as OME-Zarr 0.5 with a pyramid."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from .result_info import ResultInfo
from .whole_result import GreyLevels, WholeResult

CHUNK = (16, 256, 256)
"""Chunk of an array: 4 MB of float32, so that a slice of 2048 x 2048 reads 256 MB at most, and a
result of 50 GB has 12,000 files."""
TOP_PIXELS = 256
"""Largest side of the smallest level: that of a chunk, so that a viewer begins with one."""


def write_zarr(
    whole: WholeResult,
    folder: Path,
    levels: GreyLevels | None,
    advance: Callable[[int], None],
) -> None:
    """Write the new `folder`; a box of 16 slices and 256 rows is in memory at a time."""
    group = zarr.create_group(folder, zarr_format=3)
    dtype = whole.dtype if levels is None else levels.dtype
    halved = (whole.info.is_volume, True, True)  # angles are no place
    shape: tuple[int, ...] = whole.shape
    factor: tuple[int, ...] = (1, 1, 1)
    below = _array(group, 0, shape, dtype, whole.info)
    n_rows = -(-shape[1] // CHUNK[1])
    for number, box in enumerate(_boxes(shape), start=1):
        values = whole.read(*box)
        below[box] = values if levels is None else levels.numbers(values)
        if number % n_rows == 0:  # the last rows of some slices
            advance(box[0].stop - box[0].start)
    scales = [factor]
    while max(shape[1:]) > TOP_PIXELS:
        step = tuple(2 if wanted and n > 1 else 1 for wanted, n in zip(halved, shape, strict=True))
        shape = tuple(-(-n // by) for n, by in zip(shape, step, strict=True))
        factor = tuple(f * by for f, by in zip(factor, step, strict=True))
        above = _array(group, len(scales), shape, dtype, whole.info)
        for box in _boxes(shape):
            source = tuple(
                slice(each.start * by, min(each.stop * by, n))
                for each, by, n in zip(box, step, below.shape, strict=True)
            )
            above[box] = _mean(np.asarray(below[source]), step)
        below = above
        scales.append(factor)
    middle = np.asarray(below[below.shape[0] // 2])
    name = folder.name.removesuffix(".ome.zarr")
    group.attrs["ome"] = _metadata(name, whole.info, scales, middle)
    own: dict[str, Any] = {}
    if levels is not None:
        own |= {"scaling_factor": levels.scale, "offset": levels.low}
    if whole.info.carried_facts:
        own["scan"] = {path: str(fact) for path, fact in whole.info.carried_facts.items()}
    if own:
        group.attrs["maxslices"] = own


def _array(
    group: zarr.Group, level: int, shape: tuple[int, ...], dtype: Any, info: ResultInfo
) -> Any:
    chunk = tuple(min(n, each) for n, each in zip(shape, CHUNK, strict=True))
    return group.create_array(
        str(level), shape=shape, dtype=dtype, chunks=chunk, dimension_names=info.axes
    )


def _boxes(shape: tuple[int, ...]) -> list[tuple[slice, slice, slice]]:
    """Boxes of whole chunks: some slices, and some of their rows."""
    starts = [range(0, n, by) for n, by in zip(shape[:2], CHUNK, strict=False)]
    return [
        (
            slice(first, min(first + CHUNK[0], shape[0])),
            slice(row, min(row + CHUNK[1], shape[1])),
            slice(0, shape[2]),
        )
        for first, row in product(*starts)
    ]


def _mean(values: NDArray[Any], step: tuple[int, ...]) -> NDArray[Any]:
    """Mean of `step` values along each axis; the last of an odd number counts twice."""
    dtype = values.dtype
    values = values.astype(np.result_type(dtype, np.float32), copy=False)
    for axis, by in enumerate(step):
        if by == 1:
            continue
        even = np.take(values, range(0, values.shape[axis], 2), axis)
        odd = np.take(values, range(1, values.shape[axis], 2), axis)
        if odd.shape[axis] < even.shape[axis]:
            odd = np.concatenate([odd, np.take(even, [-1], axis)], axis)
        values = (even + odd) / 2
    return np.rint(values).astype(dtype) if dtype.kind in "iu" else values.astype(dtype)


def _metadata(
    name: str, info: ResultInfo, scales: list[tuple[int, ...]], middle: NDArray[Any]
) -> dict[str, Any]:
    """Metadata of OME-Zarr 0.5 (https://ngff.openmicroscopy.org/0.5/)."""
    axes: list[dict[str, str]] = []
    sizes: list[float] = []
    for axis in info.axes:
        is_space = axis not in ("frame", "rotation_angle")
        size = info.pixel_um(axis)
        entry = {"name": axis} | ({"type": "space"} if is_space else {})
        axes.append(entry | ({} if size is None else {"unit": "micrometer"}))
        sizes.append(1.0 if size is None else size)
    datasets = []
    for level, factors in enumerate(scales):
        scale = [size * f for size, f in zip(sizes, factors, strict=True)]
        shift = [size * (f - 1) / 2 for size, f in zip(sizes, factors, strict=True)]
        transforms: list[dict[str, Any]] = [{"type": "scale", "scale": scale}]
        if any(shift):
            transforms.append({"type": "translation", "translation": shift})
        datasets.append({"path": str(level), "coordinateTransformations": transforms})
    multiscales = [{"name": name, "type": "mean", "axes": axes, "datasets": datasets}]
    return {"version": "0.5", "multiscales": multiscales, "omero": _contrast(middle)}


def _contrast(image: NDArray[Any]) -> dict[str, Any]:
    """Contrast for viewers: percentiles of the middle slice of the smallest level."""
    finite = image[np.isfinite(image)]
    finite = finite.astype(np.uint8) if finite.dtype == bool else finite  # NumPy subtracts no bools
    low, high = np.percentile(finite, (0.1, 99.9)) if finite.size else (0.0, 1.0)
    least, most = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    window = {"min": float(least), "max": float(most), "start": float(low), "end": float(high)}
    channel = {"label": "value", "color": "FFFFFF", "window": window, "active": True}
    return {"channels": [channel], "rdefs": {"model": "greyscale"}}
