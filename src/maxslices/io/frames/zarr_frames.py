"""Frames in Zarr arrays, and the groups and OME-Zarr images that they are in.

zarr-python reads the chunks of a block in parallel, by its own threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...errors import SourceError
from ..check_arrays import check_dtype, without_ones
from ..library_errors import library_errors
from ..paths import is_url
from .frames import (
    ArrayFrames,
    FrameIndices,
    Frames,
    FramesWritten,
    IndexRange,
    as_slice,
    with_axes,
)

_SHOWN = 6
"""Most arrays that a message lists."""


class ZarrFrames:
    """Frames in a Zarr array of three dims, or with further dims of length 1 before them.

    Parameters
    ----------
    name : str
        Name of the stack in messages.
    array : zarr.Array
        The array.
    files : tuple of Path
        Local files whose change shows that the array was replaced.
    """

    def __init__(self, name: str, array: Any, files: tuple[Path, ...] = ()) -> None:
        self.name = name
        self.files: Iterable[Path] = files
        self._array = array
        shape = tuple(array.shape)
        n_first = max(0, len(shape) - 3)
        if len(shape) < 3 or 0 in shape or any(n != 1 for n in shape[:n_first]):
            raise SourceError(
                f"{name}: has the shape {shape}: a scan has three dims, (angles, detector_y, "
                f"detector_x){without_ones(shape)}"
            )
        self._first = (0,) * n_first
        dtype = check_dtype(name, np.dtype(array.dtype))
        self.spec = ArraySpec((shape[n_first], shape[n_first + 1], shape[n_first + 2]), dtype)
        self._chunk_rows = array.chunks[n_first + 1]

    @property
    def reads_rows(self) -> bool:
        """True if a chunk has a part of the rows: it is read and decompressed as a whole."""
        return bool(self._chunk_rows < self.spec.shape[1])

    def written(self, *, allow_missing: bool) -> FramesWritten:
        """All frames count as written: Zarr leaves out chunks of its fill value."""
        return FramesWritten()

    def read(
        self, frames: FrameIndices, rows: IndexRange, columns: IndexRange, out: NDArray[Any]
    ) -> None:
        """Read a part straight into `out`."""
        from zarr.core.buffer import default_buffer_prototype

        chosen = as_slice(frames)
        box = (*self._first, chosen, slice(*rows), slice(*columns))
        buffer = default_buffer_prototype().nd_buffer.from_numpy_array(out)
        with library_errors(f"{self.name}: frames {frames[0]}:{frames[-1] + 1}"):
            if isinstance(chosen, slice):
                self._array.get_basic_selection(box, out=buffer)
            else:
                self._array.get_orthogonal_selection(box, out=buffer)

    def close(self) -> None:
        """No effect: chunks are opened while they are read."""


def open_zarr(scan: str | os.PathLike[str]) -> Any:
    """Open a Zarr group or array.

    Raises
    ------
    SourceError
        If there is none, it cannot be reached, or a package to read it is missing.
    """
    try:
        import zarr
    except ImportError:
        raise SourceError(
            f"{scan}: Zarr is read by zarr, which is not installed: pip install "
            "'maxslices[ome-zarr]'"
        ) from None
    address = os.fspath(scan)
    is_zip = not is_url(scan) and address.lower().endswith(".zip")
    with library_errors(str(scan)):
        try:
            if is_zip:
                return zarr.open(zarr.storage.ZipStore(address, mode="r"), mode="r")
            return zarr.open(address, mode="r")
        except FileNotFoundError as error:
            raise SourceError(f"{scan}: there is no Zarr group or array ({error})") from None
        except (ImportError, ValueError) as error:  # a protocol without its package, or unknown
            raise SourceError(f"{scan}: cannot be opened: {error}") from None


def zarr_arrays(root: Any) -> dict[str, Any]:
    """All arrays by their path; one that is opened by itself has an empty path."""
    if not hasattr(root, "members"):
        return {"": root}
    return {name: item for name, item in root.members(max_depth=None) if hasattr(item, "chunks")}


def zarr_array(name: str, arrays: Mapping[str, Any], where: str, parameter: str) -> Any:
    """Array at a path.

    Raises
    ------
    SourceError
        If there is none; it lists arrays that are there.
    """
    found = arrays.get(where.strip("/"))
    if found is None:
        listed = ", ".join([*arrays][:_SHOWN])
        raise SourceError(f"{name}: {where} is not an array: give another {parameter}: {listed}")
    return found


def zarr_frames(
    name: str,
    arrays: Mapping[str, Any],
    where: str,
    parameter: str,
    files: tuple[Path, ...] = (),
) -> Frames:
    """Frames in the array at a path, by the names of its dimensions perhaps sinograms.

    An array of two dims that is not the `data_path` is one frame, such as the mean of flats.
    """
    array = zarr_array(name, arrays, where, parameter)
    title = f"{name}:/{where.strip('/')}" if where else name
    if array.ndim == 2 and parameter != "data_path":
        return ArrayFrames(title, np.asarray(array[...])[np.newaxis])
    attributes = dict(array.attrs)
    axes = attributes.get("axes", attributes.get("_ARRAY_DIMENSIONS"))
    axes = axes or getattr(array.metadata, "dimension_names", None) or ()
    if isinstance(axes, str):
        axes = axes.replace(",", ":").split(":")
    return with_axes(ZarrFrames(title, array, files), [str(axis) for axis in axes])


def ome_image(root: Any) -> Mapping[str, Any]:
    """Description of the first image of OME-Zarr 0.4 or 0.5; empty without one."""
    attributes = dict(root.attrs)
    images = attributes.get("ome", attributes).get("multiscales") or [{}]
    image: Mapping[str, Any] = images[0]
    return image


def ome_level(root: Any) -> str | None:
    """Path of the largest level of an image."""
    levels = ome_image(root).get("datasets") or []
    return str(levels[0]["path"]) if levels else None


def zarr_stack(path: Path, data_path: str) -> Frames:
    """Frames of an array in a group, or of the only stack in it.

    Raises
    ------
    SourceError
        If it has several stacks, or that array is missing.
    """
    root, name = open_zarr(path), str(path)
    with library_errors(name):
        arrays = zarr_arrays(root)
        where = data_path
        if where == "auto":
            stacks = [each for each, array in arrays.items() if array.ndim >= 3]
            level = ome_level(root)
            if level is None and len(stacks) != 1:
                raise SourceError(f"{name}: give data_path, one of {', '.join(stacks) or 'none'}")
            where = stacks[0] if level is None else level
        return zarr_frames(name, arrays, where, "flats or darks")
