"""Open HDF5 files where there is memory for it."""

from __future__ import annotations

from io import FileIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ...errors import SourceError
from ..library_errors import cause_of, raise_if_of_system

OPENING_BYTES = 2**22
"""Memory that must be free before a file is opened: HDF5 takes 2 MB for its caches, and ends the
process where it finds none (version 1.14.6, every allocation of an opening refused in turn)."""


def open_hdf5(path: Path | FileIO, mode: str, **options: Any) -> h5py.File:
    """Open an HDF5 file as `h5py.File` does.

    Raises
    ------
    MemoryError
        If there is none for it.
    """
    np.empty(OPENING_BYTES, np.uint8)  # of pages that are never touched: some microseconds
    return h5py.File(path, mode, **options)


def open_file(path: Path) -> h5py.File:
    """Open an HDF5 file for reading.

    Raises
    ------
    SourceError
        If it is not an HDF5 file, is cut off or is being written.
    """
    try:
        # Without a cache HDF5 reads the wanted part of a chunk, not all of it, and keeps none.
        return open_hdf5(path, "r", rdcc_nbytes=0)
    except BlockingIOError:
        raise SourceError(
            f"{path}: is locked, so some program is writing it: wait until it is done"
        ) from None
    except OSError as error:
        raise_if_of_system(str(path), error)
        if not h5py.is_hdf5(path):
            raise SourceError(f"{path}: is not an HDF5 file, whatever its name says") from None
        raise SourceError(
            f"{path}: cannot be opened as HDF5 ({cause_of(error)}): copy it again, or wait until "
            "it is written"
        ) from None
