"""Checksum of a scan's structure: what is in its files, without the data."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import h5py

from ...errors import SourceError
from ..library_errors import raised_by_library
from ..paths import is_hdf5


def structure_checksum(path: Path) -> str | None:
    """SHA-256 of the structure of a scan.

    Parameters
    ----------
    path : Path
        An HDF5 file: the path, shape and dtype of each data set in it. A folder: name and size of
        each file. Any other file: its name and size.

    Returns
    -------
    str or None
        Hexadecimal; None where the file cannot be read any more.
    """
    try:
        lines = sorted(_lines(path))
    except (OSError, SourceError):
        return None
    except Exception as error:
        if not raised_by_library(error):
            raise
        return None
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def _lines(path: Path) -> Iterator[str]:
    if path.is_dir():
        with os.scandir(path) as entries:
            yield from (f"{each.name} {each.stat().st_size}" for each in entries)
    elif is_hdf5(path):
        found: list[str] = []

        def visit(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset):
                found.append(f"{name} {item.shape} {item.dtype}")
            else:
                found.append(name)

        with h5py.File(path, "r") as file:
            file.visititems(visit)
        yield from found
    else:
        yield f"{path.name} {path.stat().st_size}"
