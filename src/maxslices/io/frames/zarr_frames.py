"""Frames in Zarr arrays, groups and OME-Zarr images.

zarr-python reads the chunks of a block in parallel with its own threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...errors import SourceError
from ..check_arrays import check_dtype, without_ones
from ..files import is_url, library_errors
from .frames import (
    ArrayFrames,
    FrameIndices,
    Frames,
    IndexRange,
    as_slice,
    with_axes,
)

_SHOWN = 6
"""Largest number of arrays listed in a message."""


class ZarrFrames(Frames):
    """Frames in a Zarr array with three dims, or with leading dims of length 1.

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
        self._files, self._array = files, array
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
    def files(self) -> Iterable[Path]:
        """Local files whose change shows that the array was replaced."""
        return self._files

    @property
    def reads_rows(self) -> bool:
        """True if chunks have a part of the rows: a chunk is decompressed as a whole."""
        return bool(self._chunk_rows < self.spec.shape[1])

    def read(
        self, frames: FrameIndices, rows: IndexRange, columns: IndexRange, out: NDArray[Any]
    ) -> None:
        """Read a part directly into `out`."""
        from zarr.core.buffer import default_buffer_prototype

        chosen = as_slice(frames)
        box = (*self._first, chosen, slice(*rows), slice(*columns))
        buffer = default_buffer_prototype().nd_buffer.from_numpy_array(out)
        with library_errors(f"{self.name}: frames {frames[0]}:{frames[-1] + 1}"):
            if isinstance(chosen, slice):
                self._array.get_basic_selection(box, out=buffer)
            else:
                self._array.get_orthogonal_selection(box, out=buffer)


def open_zarr(scan: str | os.PathLike[str]) -> Any:
    """Open a Zarr group or array.

    Raises
    ------
    SourceError
        If it does not exist, cannot be reached, or a package to read it is missing.
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


class ZarrFile:
    """A Zarr group or array that is open for reading, as a file of a scan.

    Parameters
    ----------
    scan : path-like or str
        A folder, a ZIP file or an address of fsspec.

    Raises
    ------
    SourceError
        If it does not exist, cannot be reached, or a package to read it is missing.
    """

    is_guessed = True

    def __init__(self, scan: str | os.PathLike[str]) -> None:
        self.name = os.fspath(scan)
        self._root = open_zarr(scan)
        self._folder = None if is_url(scan) else Path(scan)
        with library_errors(self.name):
            self._arrays: dict[str, Any] = {"": self._root}
            if hasattr(self._root, "members"):
                members = self._root.members(max_depth=None)
                self._arrays = {name: item for name, item in members if hasattr(item, "chunks")}
            attributes = dict(self._root.attrs)
        images = attributes.get("ome", attributes).get("multiscales") or [{}]
        self.image: Mapping[str, Any] = images[0]
        """Description of the first image of OME-Zarr 0.4 or 0.5; empty without one."""

    @property
    def default(self) -> str | None:
        """Path of the only array, or of the largest level of an image."""
        levels = self.image.get("datasets") or []
        return "" if "" in self._arrays else str(levels[0]["path"]) if levels else None

    @property
    def only_stack(self) -> str:
        """Path of the only stack in a group of flats or darks."""
        stacks = [where for where, array in self._arrays.items() if array.ndim >= 3]
        if self.default is None and len(stacks) != 1:
            listed = ", ".join(stacks) or "(nothing)"
            raise SourceError(f"{self.name}: give data_path, one of {listed}")
        return stacks[0] if self.default is None else self.default

    def find(self, where: str) -> Any:
        """Array at a path; None without one."""
        return self._arrays.get(where.strip("/"))

    def array(self, where: str, parameter: str) -> Any:
        """Array at a path; see `Hdf5File.array`."""
        array = self.find(where)
        if array is None:
            listed = ", ".join([*self._arrays][:_SHOWN])
            raise SourceError(
                f"{self.name}: {where} is not an array: give another {parameter}: {listed}"
            )
        return array

    def frames(self, where: str, parameter: str = "data_path") -> Frames:
        """Frames, stored as frames or sinograms by the names of dims; see `Hdf5File.frames`."""
        array = self.array(where, parameter)
        title = f"{self.name}:/{where.strip('/')}" if where else self.name
        if array.ndim == 2 and parameter != "data_path":
            return ArrayFrames(title, np.asarray(array[...])[np.newaxis])
        attributes = dict(array.attrs)
        axes = attributes.get("axes", attributes.get("_ARRAY_DIMENSIONS"))
        axes = axes or getattr(array.metadata, "dimension_names", None) or ()
        if isinstance(axes, str):
            axes = axes.replace(",", ":").split(":")
        frames = ZarrFrames(title, array, self._metadata_files(where))
        return with_axes(frames, [str(axis) for axis in axes])

    def _metadata_files(self, where: str) -> tuple[Path, ...]:
        """Local metadata files of an array, which are rewritten if the array is replaced."""
        if self._folder is None or self._folder.is_file():
            return () if self._folder is None else (self._folder,)
        places = (self._folder / where.strip("/") / name for name in ("zarr.json", ".zarray"))
        return tuple(place for place in places if place.is_file())

    def column(self, where: str, parameter: str) -> NDArray[Any]:
        """All values of an array; chunks of the fill value are not stored."""
        return np.asarray(self.array(where, parameter)[...])

    def entries(self, *, at_top: bool = False) -> Iterator[str]:
        """No paths: NXtomo is defined for HDF5."""
        return iter(())

    def arrays(self, *, follows_links: bool = False) -> Iterator[tuple[str, Any]]:
        """Iterate over all arrays with their paths."""
        return ((f"/{where}", array) for where, array in self._arrays.items())

    def stacks(self) -> str:
        """List of 3D arrays, as the end of a message."""
        stacks = [f"{where} {item.shape}" for where, item in self.arrays() if item.ndim >= 3]
        return f"; 3D arrays: {', '.join(stacks[:_SHOWN]) or 'none'}"

    def storage(self, where: str, key: str | None) -> dict[str, Any]:
        """Empty: storage of Zarr is not described."""
        return {}

    def close(self) -> None:
        """No effect: chunks are opened while they are read."""
