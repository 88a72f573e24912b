"""Checks of the paths of scans."""

from __future__ import annotations

import errno
import os
import stat
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from ..errors import SourceError
from .library_errors import library_errors, raise_if_of_system

HDF5_SUFFIXES = (".h5", ".hdf5", ".nxs", ".hdf", ".nx", ".he5")
"""Suffixes of HDF5 and NeXus files."""
TIFF_SUFFIXES = (".tif", ".tiff")
"""Suffixes of TIFFs."""
_SHOWN = 60
"""Characters of a path that is too long for a file."""
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""First bytes of an HDF5 file (HDF5 File Format Specification)."""


def is_url(scan: object) -> bool:
    """True for an address of fsspec, such as ``s3://bucket/scan.zarr``."""
    return isinstance(scan, str) and "://" in scan


def path_of(scan: object) -> Path | None:
    """Path of a scan in the file system; None for an array, a Source or an address of fsspec."""
    if isinstance(scan, str | os.PathLike) and os.fspath(scan) and not is_url(scan):
        return Path(scan)
    return None


def is_zarr(scan: object) -> bool:
    """True for an address of fsspec, a Zarr group or array in a folder, and one in a ZIP file."""
    path = path_of(scan)
    if path is None:
        return is_url(scan)
    try:
        if path.suffix.lower() == ".zip":
            return path.is_file()
        return any((path / name).is_file() for name in ("zarr.json", ".zgroup", ".zarray"))
    except (OSError, ValueError):  # which `check_readable` reports
        return False


def check_readable(path: Path) -> Literal["file", "folder"]:
    """Check that `path` exists and can be read; tell a file from a folder.

    Raises
    ------
    SourceError
        If nothing is there, or it cannot be read. The message has similar names that are there.
    """
    try:
        found = path.stat()
        mode = found.st_mode
        if stat.S_ISDIR(mode):
            next(path.iterdir(), None)
            return "folder"
        if stat.S_ISREG(mode):
            with path.open("rb") as file:
                file.read(1)  # some files of the system can be opened, and not read
            if not found.st_size:
                raise SourceError(
                    f"{path}: is empty, a file of no bytes: copy it again, or wait until it is "
                    "written"
                )
            return "file"
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise SourceError(
                f"{path}: is a link to {path.readlink()}, which is not there"
            ) from None
        raise SourceError(f"{path}: there is no such file or folder{_near(path)}") from None
    except ValueError:  # a name with a zero byte
        raise SourceError(f"{str(path)!r} is not a name that a file can have") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            shown = str(path) if error.errno == errno.ELOOP else f"{str(path)[:_SHOWN]}..."
            raise SourceError(f"{shown}: leads to no file ({error.strerror})") from None
        raise_if_of_system(str(path), error)
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from None
    raise SourceError(f"{path}: is neither a file nor a folder, so there is no scan in it")


def is_hdf5(path: Path) -> bool:
    """True if a file is HDF5 by its name, or begins as HDF5 does, whatever its name."""
    if path.suffix.lower() in HDF5_SUFFIXES:
        return True
    with library_errors(str(path)), path.open("rb") as file:
        return file.read(8) == HDF5_SIGNATURE


def _near(path: Path) -> str:
    """Similar names beside a missing path, as the end of a message."""
    for parent in path.parents:
        if parent.is_dir():
            break
    else:
        return ""
    if parent != path.parent:
        return f"; {path.parent} is missing too, {parent} is there"
    names = {entry.name.lower(): entry.name for entry in parent.iterdir()}
    close = get_close_matches(path.name.lower(), list(names), n=3, cutoff=0.6)
    if not close:
        return f"; nothing in {parent} has a similar name"
    return f"; did you mean {' or '.join(str(parent / names[c]) for c in close)}?"
