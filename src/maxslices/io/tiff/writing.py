"""Writing of TIFFs: tags, and a file with pictures as pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import tifffile
from numpy.typing import NDArray

from ...system.disk_space import check_absent, check_free_space, store_errors

IMAGEJ_DTYPES = ("uint8", "uint16", "float32")
"""Dtypes of ImageJ's own TIFFs."""


def tiff_tags(
    dtype: np.dtype[Any], row_um: float | None, column_um: float | None, text: str = ""
) -> dict[str, Any]:
    """Arguments for tifffile, for a grey image or stack with a pixel size.

    Parameters
    ----------
    dtype : numpy.dtype
        Dtype of the image.
    row_um, column_um : float or None
        Distance of rows and of columns in micrometres; None if unknown.
    text : str
        Description in ASCII. In ImageJ's own format it is the Info.
    """
    tags: dict[str, Any] = {"photometric": "minisblack", "metadata": None}
    if text:
        tags["description"] = text
    if row_um is None or column_um is None:
        return tags
    if dtype.name in IMAGEJ_DTYPES:  # ImageJ reads micrometres only from its own description
        return {
            "photometric": "minisblack",
            "imagej": True,
            "byteorder": "<",
            "resolution": (1 / column_um, 1 / row_um),
            "metadata": {"unit": "um"} | ({"Info": text} if text else {}),
        }
    return {**tags, "resolution": (1e4 / column_um, 1e4 / row_um), "resolutionunit": "CENTIMETER"}


PAGE_BYTES = 4096
"""Disk space of a page's tags and description."""
_LARGEST_TIFF = 2**32 - 2**20
"""Largest TIFF with 32-bit offsets, which all programs read."""


class TiffStack:
    """A TIFF to which pages are added; closed on leaving ``with``.

    Parameters
    ----------
    path : Path
        Path of the file.
    n_bytes : int
        Bytes of all pages.
    n_pages : int
        Number of pages.

    Raises
    ------
    StoreError
        If the path exists, or the disk has too little free space.
    """

    def __init__(self, path: Path, n_bytes: int, n_pages: int) -> None:
        self.path = path
        self._needed_bytes = n_bytes + n_pages * PAGE_BYTES
        check_absent(path)
        with store_errors(path, self._needed_bytes):
            check_free_space(path, self._needed_bytes)
            big = self._needed_bytes > _LARGEST_TIFF
            handle = path.open("x+b")
            self._close_handle = handle.close
            self._file: tifffile.TiffWriter | None = tifffile.TiffWriter(handle, bigtiff=big)

    def add(self, picture: NDArray[Any], description: str) -> None:
        """Write the next page.

        Raises
        ------
        StoreError
            If the disk is full or cannot be reached.
        """
        assert self._file is not None
        with store_errors(self.path, self._needed_bytes):
            text = description.encode("ascii", "backslashreplace").decode("ascii")
            self._file.write(picture, photometric="minisblack", description=text, metadata=None)

    def close(self) -> None:
        """Complete the file; a second call has no effect."""
        file, self._file = self._file, None
        if file is not None:
            with store_errors(self.path, self._needed_bytes):
                file.close()
                self._close_handle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
