"""Open HDF5 files where there is memory for it."""

from __future__ import annotations

from io import FileIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from .hdf5_write_flag import clear_write_flag

OPENING_BYTES = 2**22
"""Memory that must be free before a file is opened: HDF5 takes 2 MB for its caches, and ends the
process where it finds none (version 1.14.6, every allocation of an opening refused in turn)."""


def open_hdf5(path: Path | FileIO, mode: str, **options: Any) -> h5py.File:
    """Open an HDF5 file as `h5py.File` does, and to go on ("r+") one of a program that was killed.

    Raises
    ------
    MemoryError
        If there is none for it.
    """
    if mode == "r+" and isinstance(path, Path):
        clear_write_flag(path)
    np.empty(OPENING_BYTES, np.uint8)  # of pages that are never touched: some microseconds
    return h5py.File(path, mode, **options)
