"""A whole result as a folder of TIFFs or as one TIFF, with pixel size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tifffile
from numpy.typing import NDArray

from ..tiff.writing import IMAGEJ_DTYPES, tiff_tags
from .tiff_sink import tiff_name
from .whole_result import GreyLevels, WholeResult

LARGEST_TIFF_BYTES = 2**32 - 2**25
"""Data up to which a stack is a TIFF of ImageJ, whose offsets have 32 bits; tifffile leaves as much
for the tags."""


def write_folder(
    whole: WholeResult,
    folder: Path,
    levels: GreyLevels | None,
    compressed: bool,
    advance: Callable[[int], None],
) -> None:
    """Write a TIFF for each slice into the new `folder`."""
    folder.mkdir()
    n_slices = whole.shape[0]
    _, rows, columns = whole.info.axes
    um = whole.info.pixel_um(rows), whole.info.pixel_um(columns)
    for number, image in enumerate(whole.slices(levels)):
        tags = tiff_tags(image.dtype, *um, whole.info.facts_text)
        compression = "zlib" if compressed else None
        path = folder / tiff_name(folder.name, number, n_slices)
        tifffile.imwrite(path, image, compression=compression, **tags)
        advance(1)


def write_stack(
    whole: WholeResult,
    path: Path,
    levels: GreyLevels | None,
    compressed: bool,
    advance: Callable[[int], None],
) -> None:
    """Write one TIFF: as ImageJ writes it up to 4 GB, else, or of other dtypes, as OME-TIFF."""
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
    """Arguments of tifffile, and metadata, for a stack of ImageJ."""
    slices, rows, columns = (whole.info.pixel_um(axis) for axis in whole.info.axes)
    metadata: dict[str, Any] = {"axes": "ZYX"}
    if whole.info.scan:
        lines = (whole.info.scan, f"{whole.info.program}, {whole.info.date}", whole.info.facts_text)
        metadata["Info"] = "\n".join(filter(None, lines))
    if levels is not None:  # as ImageJ writes a straight line of calibration
        metadata |= {"cf": 0, "c0": levels.low, "c1": levels.scale, "vunit": "value"}
    if rows is None or columns is None:
        return {}, metadata
    if slices is not None:
        metadata["spacing"] = slices
    return {"resolution": (1 / columns, 1 / rows)}, {**metadata, "unit": "um"}


def _ome(whole: WholeResult) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of tifffile, and metadata, for an OME-TIFF."""
    metadata: dict[str, Any] = {"axes": "ZYX"}
    for letter, axis in zip("ZYX", whole.info.axes, strict=True):
        um = whole.info.pixel_um(axis)
        if um is not None:
            metadata |= {f"PhysicalSize{letter}": um, f"PhysicalSize{letter}Unit": "µm"}
    if whole.info.facts_text:
        metadata["Description"] = whole.info.facts_text
    return {}, metadata
