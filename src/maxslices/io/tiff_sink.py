"""Results as a folder of TIFFs, one a slice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import tifffile
from numpy.typing import NDArray

from ..arrays import ArraySpec
from ..errors import StoreError, UsageError
from .checks import check_block
from .room import check_room, check_vacant, part_of, store_errors

_HEADER_BYTES = 4096
"""Room that a small file takes on a disk beside its data."""


class TiffSink:
    """A `Sink` that writes TIFFs; see `create_sink` for the parameters.

    They are called ``<folder>_00000.tif`` and so on, with zeros in front so that they sort.
    """

    def __init__(self, path: Path, spec: ArraySpec, slice_dim: int) -> None:
        self._path = path
        self._spec = spec
        self._slice_dim = slice_dim
        self._part = part_of(path)
        self._open = False
        n_slices = spec.shape[slice_dim]
        self._digits = max(5, len(str(n_slices - 1)))
        self._needed_bytes = spec.nbytes + n_slices * _HEADER_BYTES
        check_vacant(path)
        with store_errors(path, self._needed_bytes):
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self._part, ignore_errors=True)  # what a killed run left behind
            check_room(path, self._needed_bytes)
            self._part.mkdir()
        self._open = True

    @property
    def path(self) -> Path:
        """Where the finished folder will be."""
        return self._path

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the whole result."""
        return self._spec

    def write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write the slices of a block, which must be along the sink's own slice dim."""
        check_block(self._spec, slice_dim, start, start + block.shape[slice_dim], block)
        if slice_dim != self._slice_dim:
            raise UsageError(
                f"{self._path}: has a TIFF for each slice along dim {self._slice_dim}, a block "
                f"along dim {slice_dim} would be parts of all of them: write HDF5"
            )
        if not self._open:
            raise StoreError(f"{self._path}: is finished or abandoned, and takes no more blocks")
        with store_errors(self._path, self._needed_bytes):
            for i in range(block.shape[slice_dim]):
                image = np.ascontiguousarray(block.take(i, axis=slice_dim))
                name = f"{self._path.name}_{start + i:0{self._digits}d}.tif"
                tifffile.imwrite(self._part / name, image, photometric="minisblack", metadata=None)

    def finish(self) -> Path:
        """Give the folder its name."""
        self._open = False
        if os.path.lexists(self._path):
            raise StoreError(
                f"{self._path}: something else took this name meanwhile: the result is whole, in "
                f"{self._part}"
            )
        with store_errors(self._path, self._needed_bytes):
            self._part.rename(self._path)
        return self._path

    def abandon(self) -> None:
        """Remove what was written."""
        self._open = False
        shutil.rmtree(self._part, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._open:
            self.abandon()
