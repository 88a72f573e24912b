"""Slices as image files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np

from maxslices import Ledger, from_ledger, method

from .namespaces import to_host

_SAVED = ("uint8", "uint16", "uint32", "float32", "float64")
"""Dtypes that common image programs can read."""


@from_ledger
def _images_bytes(
    m: Ledger, shape: tuple[int, int, int], dtype: np.dtype[Any], slice_dim: int
) -> None:
    m.alloc(shape, dtype)
    if m.device == "cpu":
        # A slice, its copy without gaps, and the file in memory while it is compressed.
        one = math.prod(shape) // max(1, shape[slice_dim])
        m.alloc_bytes(3 * one * dtype.itemsize + 2**14)


def _check(jpeg_quality: int, bit_depth: int) -> None:
    if not 1 <= jpeg_quality <= 100:
        raise ValueError(f"jpeg_quality must be from 1 to 100, not {jpeg_quality}")
    if bit_depth not in (8, 16, 32):
        raise ValueError(f"bit_depth must be 8, 16 or 32, not {bit_depth}")


@method(
    "all",
    calc_max_slices=_images_bytes,
    side_results=("folder",),
    combine=lambda folders: folders[-1],
    check_values=_check,
    host_only=True,
)
def save_to_images(
    data: Any,
    subfolder_name: str = "images",
    axis: int | Literal["auto"] = "auto",
    file_format: Literal["tif", "jpeg", "png"] = "tif",
    jpeg_quality: int = 95,
    asynchronous: bool = False,
    bit_depth: int = 32,
    slice_dim: int = 0,
    first_slice: int = 0,
    results_folder: Path | None = None,
) -> str | None:
    """Write each slice to an image file, and pass the data unchanged to the next step.

    Parameters
    ----------
    data : array
        Shape (angles, detector_y, detector_x). TIFFs have its dtype. JPEG and PNG need uint8, for
        instance from `rescale_to_int`.
    subfolder_name : str
        Start of the name of the subfolder in the folder of the run: ``images8bit_tif`` for "images"
        and TIFFs of uint8.
    axis : int or "auto"
        Axis along which the data are cut, or "auto".
    file_format : {"tif", "jpeg", "png"}
        File format. Files are numbered, such as ``00000.tif``.
    jpeg_quality : int
        Quality of JPEGs, 1 to 100.
    asynchronous : bool
        Ignored, and accepted for httomolib's pipelines. Images are always written while the next
        block is read and computed.
    bit_depth : int
        8 or 16: data are scaled from the minimum and maximum of their block to this number of bits,
        as in httomolib. 32: they are unchanged.
    slice_dim, first_slice, results_folder
        Supplied by the runner.

    Returns
    -------
    str or None
        Folder of the run. None if results are kept in memory, without writing images.

    Raises
    ------
    ValueError
        If the axis is not the axis of the slices, or the file format does not support the dtype.
    """
    _check(jpeg_quality, bit_depth)
    if axis not in ("auto", slice_dim):
        raise ValueError(
            f"images are saved along the axis that the data are cut along, which is {slice_dim} "
            f"here: give axis: auto, not {axis}"
        )
    if str(data.dtype) not in _SAVED:
        raise ValueError(f"images are of {', '.join(_SAVED)}, not of {data.dtype}")
    if results_folder is None:
        return None
    dtype = np.dtype(f"uint{bit_depth}") if bit_depth != 32 else np.dtype(str(data.dtype))
    if file_format != "tif" and dtype != np.uint8:
        raise ValueError(
            f"{file_format} images are of uint8, not of {dtype}: put rescale_to_int with bits: 8 "
            "before, or give file_format: tif"
        )
    folder = Path(results_folder, f"{subfolder_name}{8 * dtype.itemsize}bit_{file_format}")
    folder.mkdir(parents=True, exist_ok=True)
    limits = (float(data.min()), float(data.max())) if bit_depth != 32 else None
    for index in range(data.shape[slice_dim]):
        picture = to_host(data[index] if slice_dim == 0 else data[:, index])
        path = folder / f"{first_slice + index:05d}.{file_format}"
        _save(_scaled(picture, dtype, limits), path, jpeg_quality)
    return str(results_folder)


def _scaled(
    picture: np.ndarray, dtype: np.dtype[Any], limits: tuple[float, float] | None
) -> np.ndarray:
    if limits is None:
        finite = picture.dtype.kind != "f" or bool(np.isfinite(picture).all())
        clean = picture if finite else np.nan_to_num(picture, nan=0.0, posinf=0.0, neginf=0.0)
        return np.ascontiguousarray(clean)
    low, high = limits
    scale = np.iinfo(dtype).max / (high - low) if high > low else 1.0
    return ((picture - low) * scale).clip(0, np.iinfo(dtype).max).astype(dtype)


def _save(picture: np.ndarray, path: Path, jpeg_quality: int) -> None:
    if path.suffix == ".tif":
        import tifffile

        tifffile.imwrite(path, picture, photometric="minisblack")
        return
    from PIL import Image

    quality: dict[str, Any] = {"quality": jpeg_quality} if path.suffix == ".jpeg" else {}
    Image.fromarray(picture).save(path, **quality)
