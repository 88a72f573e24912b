"""Opening a scan: from a path or an array to a `Source`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError
from ..frames.frames import Selection
from ..paths import HDF5_SUFFIXES, TIFF_SUFFIXES, check_readable, is_hdf5, is_zarr
from .loader import LoaderOptions
from .plain_source import plain_source
from .source import Source


def open_source(
    scan: str | os.PathLike[str] | NDArray[Any] | Source,
    options: LoaderOptions | None = None,
) -> Source:
    """Open a scan of any kind.

    Parameters
    ----------
    scan : path, ndarray or Source
        An HDF5 or NeXus file, an ``.npy`` file, a folder of TIFFs (one a projection, in
        natural order of their names; flats and darks in folders named so), one TIFF of many
        pages, Zarr or OME-Zarr (a folder, a
        ZIP file, or an address of fsspec such as ``s3://bucket/scan.zarr``), a 3D array, or an
        open source, which is returned unchanged.
    options : LoaderOptions, optional
        Where the parts of the scan are; by default they are searched for.

    Returns
    -------
    Source
        The caller closes it, or uses it in a ``with`` statement.

    Raises
    ------
    SourceError
        If it does not exist, cannot be read or is not a scan.
    """
    options = options or LoaderOptions()
    if isinstance(scan, np.ndarray):
        from ..frames.frames import ArrayFrames

        return plain_source("array", Selection.of(ArrayFrames("array", scan)), options)
    if not isinstance(scan, str | os.PathLike):
        if isinstance(scan, Source):
            return scan
        raise SourceError(
            f"a {type(scan).__name__} is not a scan: give a path, a NumPy array or a Source"
        )
    if not os.fspath(scan):
        raise SourceError("the path of the scan is empty; '.' is the folder one is in")
    if is_zarr(scan):
        from .zarr_source import zarr_source

        return zarr_source(scan, options)
    path = Path(scan)
    kind = check_readable(path)
    suffix = path.suffix.lower()
    if kind == "folder" or suffix in TIFF_SUFFIXES:
        from .tiff_source import tiff_source

        return tiff_source(path, options)
    if suffix == ".npy":
        from ..frames.plain_frames import NpyFrames

        return plain_source(str(path), Selection.of(NpyFrames(path)), options)
    if is_hdf5(path):
        from .hdf5_source import hdf5_source

        return hdf5_source(path, options)
    raise SourceError(
        f"{path}: {suffix or 'a file without a suffix'} is not a kind of scan that can be read: "
        f"give HDF5 ({' '.join(HDF5_SUFFIXES)}), Zarr, .npy, a TIFF or a folder of TIFFs"
    )
