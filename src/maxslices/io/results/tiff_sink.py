"""Results as a folder of TIFFs, one a slice."""

from __future__ import annotations

import os
import shutil
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from ...errors import UsageError
from ...system.disk_space import sync_file_system
from ...system.files import check_one_name, pwrite_all, write_rows
from ...system.threads import parallel_for
from ..tiff.writing import tiff_tags
from .sink import Sink

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a file is opened: a block that is tried again writes to files that are there."""
_HEADER_BYTES = 4096
"""Disk space of a file beside its pixels: at most one block of ext4 or XFS, for the header of 400
bytes and what is left of the last block."""


class TiffSink(Sink):
    """A `Sink` that writes TIFFs; see `Sink` for the parameters.

    Files are named ``<folder>_00000.tif`` and so on, with leading zeros so that they sort.
    """

    def _disk_bytes(self) -> int:
        return self.spec.nbytes + self.spec.shape[self.slice_dim] * _HEADER_BYTES

    def _create(self) -> None:
        self._make_header()
        self.path.mkdir()

    def _reopen(self) -> None:
        self._require(Path.is_dir)
        self._make_header()

    def _make_header(self) -> None:
        """Make the first bytes of a TIFF, which its pixels follow up to the end of the file."""
        shape = self.spec.with_slices(self.slice_dim, 1).shape
        image = tuple(n for dim, n in enumerate(shape) if dim != self.slice_dim)
        axes = self.info.axes
        rows = axes[1 - self.info.file_axis(self.slice_dim)]
        file = BytesIO()
        # All files have this one: an image of their shape that takes the memory of one pixel.
        pixels = np.broadcast_to(np.zeros((), self.spec.dtype), image)
        um = self.info.pixel_um(rows), self.info.pixel_um(axes[2])
        tifffile.imwrite(file, pixels, **tiff_tags(self.spec.dtype, *um, self.info.facts_text))
        self._header = file.getvalue()[: -pixels.size * self.spec.dtype.itemsize]

    def _write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None:
        """Write the slices of a block along the sink's own slice dim."""
        if slice_dim != self.slice_dim:
            raise UsageError(
                f"{self.path}: has a TIFF for each slice along dim {self.slice_dim}, a block "
                f"along dim {slice_dim} would be parts of all of them: write HDF5"
            )

        def work(i: int) -> None:
            name = self._file_name(start + i)
            image = block[i] if slice_dim == 0 else block[:, i]
            fd = os.open(self.path / name, _FLAGS, 0o666)
            try:
                check_one_name(self.path / name, os.fstat(fd))
                pwrite_all(fd, [memoryview(self._header)], 0)
                write_rows(fd, image, len(self._header))
            finally:
                os.close(fd)

        parallel_for(block.shape[slice_dim], work)

    def _file_name(self, number: int) -> str:
        return tiff_name(self.path.name, number, self.spec.shape[self.slice_dim])

    def _sync(self) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            sync_file_system(fd)
        finally:
            os.close(fd)

    def _remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def tiff_name(folder: str, number: int, n_slices: int) -> str:
    """Name of the TIFF of a slice: that of its folder, and a number that sorts."""
    digits = max(5, len(str(n_slices - 1)))
    return f"{folder}_{number:0{digits}d}.tif"
