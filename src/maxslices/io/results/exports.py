"""Export of a whole result to another HDF5 file, a folder of TIFFs, one TIFF, or OME-Zarr."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tifffile
from numpy.typing import NDArray

from ...system import threads
from ...system.disk_space import check_free_space, store_errors
from ...system.threads import parallel_for
from ..hdf5.objects import open_hdf5
from ..tiff.writing import IMAGEJ_DTYPES, tiff_tags
from .nexus_notes import describe_data, write_notes
from .result_format import ResultFormat
from .result_info import ResultInfo
from .stored_result import GreyLevels, WholeResult

_LEVEL = 1
"""Level of deflate. Reconstructed float32 slices are reduced to 60 % at 70 MB/s on a core, at level
4 to 59 % at 61 MB/s, and at level 9 to 58 % at 5 MB/s."""


def export_result(
    whole: WholeResult, result: Path, format: ResultFormat, advance: Callable[[int], None]
) -> Path:
    """Write a result in a format, and replace a file left by a killed run.

    Parameters
    ----------
    whole : WholeResult
        The result.
    result : Path
        Its path without a suffix.
    format : ResultFormat
        Format of the export.
    advance : callable
        Called with the number of slices along the first axis that were written since the last call.

    Returns
    -------
    Path
        Path of the export.

    Raises
    ------
    StoreError
        If the disk is full or cannot be reached.
    """
    path = format.path_of(result)
    n_values = whole.shape[0] * whole.shape[1] * whole.shape[2]
    n_bytes = format.n_bytes(n_values * whole.dtype.itemsize, whole.dtype.itemsize)
    with store_errors(path, n_bytes):
        _remove(path)
        check_free_space(path, n_bytes)
        try:
            levels = whole.levels(format)
            if format.name == "hdf5":
                write_hdf5(whole, path, levels, format.compressed, advance)
            elif format.name == "ome-zarr":
                write_zarr(whole, path, levels, advance)
            elif format.name == "tiff":
                write_folder(whole, path, levels, format.compressed, advance)
            else:
                write_stack(whole, path, levels, format.compressed, advance)
        except BaseException:
            _remove(path)
            raise
    return path


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_hdf5(
    whole: WholeResult,
    path: Path,
    levels: GreyLevels | None,
    compressed: bool,
    advance: Callable[[int], None],
) -> None:
    """Write the new file `path` with the notes of the result, and its data compressed or as levels.

    The filters are shuffle and deflate, which every HDF5 library supports. Several threads compress
    slices.
    """
    with open_hdf5(path, "x", libver=("v110", "v110")) as file:
        group = write_notes(file, whole.info, whole.shape)
        dtype = whole.dtype if levels is None else levels.dtype
        filters = {"shuffle": True, "compression": "gzip", "compression_opts": _LEVEL}
        data = group.create_dataset(
            "data",
            whole.shape,
            dtype,
            chunks=(1, *whole.shape[1:]),
            **(filters if compressed else {}),
        )
        describe_data(data, whole.info)
        if levels is not None:
            group["scaling_factor"], group["offset"] = levels.scale, levels.low
        _write_slices(data, whole, levels, compressed, advance)


def _write_slices(
    data: h5py.Dataset,
    whole: WholeResult,
    levels: GreyLevels | None,
    compressed: bool,
    advance: Callable[[int], None],
) -> None:
    for first in range(0, whole.shape[0], threads.N_DECODERS):
        stop = min(first + threads.N_DECODERS, whole.shape[0])
        some = list(whole.slices(levels, range(first, stop)))
        chunks: list[bytes | memoryview] = [image.data.cast("B") for image in some]
        if compressed:

            def compress(i: int) -> None:
                chunks[i] = zlib.compress(_shuffled(some[i]), _LEVEL)  # noqa: B023

            parallel_for(len(some), compress, threads.N_DECODERS)
        for i, chunk in enumerate(chunks):
            data.id.write_direct_chunk((first + i, 0, 0), chunk)
        advance(len(some))


def _shuffled(image: NDArray[np.generic]) -> bytes:
    """Bytes of an image as shuffled by HDF5: the first byte of every value, then the second."""
    return image.reshape(-1).view(np.uint8).reshape(-1, image.itemsize).T.tobytes()


LARGEST_TIFF_BYTES = 2**32 - 2**25
"""Largest size of a stack in ImageJ's TIFF, whose offsets have 32 bits; tifffile reserves the same
space for tags."""


def write_folder(
    whole: WholeResult,
    folder: Path,
    levels: GreyLevels | None,
    compressed: bool,
    advance: Callable[[int], None],
) -> None:
    """Write a TIFF for each slice into the new `folder`, by several threads.

    File names are that of the folder and a number with leading zeros, so that they sort.
    """
    folder.mkdir()
    n_slices = whole.shape[0]
    digits = max(5, len(str(n_slices - 1)))
    row_um, column_um = (whole.info.pixel_um(axis) for axis in whole.info.axes[1:])
    dtype = whole.dtype if levels is None else levels.dtype
    for first in range(0, n_slices, threads.N_DECODERS):
        images = list(whole.slices(levels, range(first, min(first + threads.N_DECODERS, n_slices))))

        def write(i: int) -> None:
            path = folder / f"{folder.name}_{first + i:0{digits}d}.tif"  # noqa: B023
            tags = tiff_tags(dtype, row_um, column_um, whole.info.facts_text)
            tifffile.imwrite(path, images[i], compression="zlib" if compressed else None, **tags)  # noqa: B023

        parallel_for(len(images), write, threads.N_DECODERS)
        advance(len(images))


def write_stack(
    whole: WholeResult,
    path: Path,
    levels: GreyLevels | None,
    compressed: bool,
    advance: Callable[[int], None],
) -> None:
    """Write one TIFF: ImageJ's format up to 4 GB, and OME-TIFF for larger data or other dtypes."""
    dtype = whole.dtype if levels is None else levels.dtype
    n_values = whole.shape[0] * whole.shape[1] * whole.shape[2]
    is_large = n_values * dtype.itemsize > LARGEST_TIFF_BYTES
    as_imagej = dtype.name in IMAGEJ_DTYPES and not is_large
    options, metadata = _imagej(whole, levels) if as_imagej else _ome(whole)

    def images() -> Iterator[NDArray[Any]]:
        for image in whole.slices(levels):
            yield image
            advance(1)

    with (
        path.open("x+b") as file,
        tifffile.TiffWriter(
            file, bigtiff=is_large, imagej=as_imagej, ome=not as_imagej, byteorder="<"
        ) as tiff,
    ):
        tiff.write(
            images(),
            shape=whole.shape,
            dtype=dtype,
            photometric="minisblack",
            compression="zlib" if compressed else None,
            metadata=metadata,
            **options,
        )


def _imagej(whole: WholeResult, levels: GreyLevels | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments and metadata for tifffile, for a stack of ImageJ."""
    slices, rows, columns = (whole.info.pixel_um(axis) for axis in whole.info.axes)
    metadata: dict[str, Any] = {"axes": "ZYX"}
    if whole.info.scan:
        lines = (whole.info.scan, f"{whole.info.program}, {whole.info.date}", whole.info.facts_text)
        metadata["Info"] = "\n".join(filter(None, lines))
    if levels is not None:  # ImageJ's linear calibration
        metadata |= {"cf": 0, "c0": levels.low, "c1": levels.scale, "vunit": "value"}
    if rows is None or columns is None:
        return {}, metadata
    if slices is not None:
        metadata["spacing"] = slices
    return {"resolution": (1 / columns, 1 / rows)}, {**metadata, "unit": "um"}


def _ome(whole: WholeResult) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments and metadata for tifffile, for an OME-TIFF."""
    metadata: dict[str, Any] = {"axes": "ZYX"}
    for letter, axis in zip("ZYX", whole.info.axes, strict=True):
        um = whole.info.pixel_um(axis)
        if um is not None:
            metadata |= {f"PhysicalSize{letter}": um, f"PhysicalSize{letter}Unit": "µm"}
    if whole.info.facts_text:
        metadata["Description"] = whole.info.facts_text
    return {}, metadata


CHUNK = (16, 256, 256)
"""Chunk of an array, 4 MB of float32. A slice of 2048 x 2048 reads at most 256 MB, and a result of
50 GB has 12,000 files."""
TOP_PIXELS = 256
"""Largest side of the smallest level: the side of a chunk, so a viewer first reads one chunk."""


def write_zarr(
    whole: WholeResult,
    folder: Path,
    levels: GreyLevels | None,
    advance: Callable[[int], None],
) -> None:
    """Write the new `folder`, with a box of 16 slices and 256 rows in memory at a time."""
    import zarr  # needed by this format only

    group = zarr.create_group(folder, zarr_format=3)
    dtype = whole.dtype if levels is None else levels.dtype
    halved = (whole.info.is_volume, True, True)  # do not downsample the angle axis
    shape: tuple[int, ...] = whole.shape
    factor: tuple[int, ...] = (1, 1, 1)
    below = _array(group, 0, shape, dtype, whole.info)
    n_rows = -(-shape[1] // CHUNK[1])
    for number, box in enumerate(_boxes(shape), start=1):
        values = whole.read(*box)
        below[box] = values if levels is None else levels.numbers(values)
        if number % n_rows == 0:  # the last rows of these slices
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


def _array(group: Any, level: int, shape: tuple[int, ...], dtype: Any, info: ResultInfo) -> Any:
    chunk = tuple(min(n, each) for n, each in zip(shape, CHUNK, strict=True))
    return group.create_array(
        str(level), shape=shape, dtype=dtype, chunks=chunk, dimension_names=info.axes
    )


def _boxes(shape: tuple[int, ...]) -> list[tuple[slice, slice, slice]]:
    """Boxes of whole chunks along the first two axes."""
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
    """Mean of `step` values along each axis; the last value of an odd number counts twice."""
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
    """Contrast for viewers, from percentiles of the middle slice of the smallest level."""
    finite = image[np.isfinite(image)]
    finite = (
        finite.astype(np.uint8) if finite.dtype == bool else finite
    )  # NumPy cannot subtract bool
    low, high = np.percentile(finite, (0.1, 99.9)) if finite.size else (0.0, 1.0)
    least, most = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    window = {"min": float(least), "max": float(most), "start": float(low), "end": float(high)}
    channel = {"label": "value", "color": "FFFFFF", "window": window, "active": True}
    return {"channels": [channel], "rdefs": {"model": "greyscale"}}
