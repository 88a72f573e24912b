"""Checks of the paths of scans, and errors of reading them.

Exceptions that h5py, tifffile and NumPy raise for a damaged file become a `SourceError`.

These libraries check little of a file before they use it, so one flipped bit may raise any
exception. Only exceptions raised inside these libraries are converted. An exception raised by a
line of this package, including a call with wrong arguments, is a bug and is not changed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Literal

from ..errors import SourceError

_LIBRARIES = (
    *("h5py", "hdf5plugin", "tifffile", "imagecodecs", "numpy"),
    *("zarr", "numcodecs", "fsspec"),
)
"""Packages that read files."""
_NO_MEMORY = re.compile(
    "memory allocation failed|no space available for allocation|unable to allocate", re.IGNORECASE
)
_OWN_PIECE = "on disk image buffer"
"""HDF5's name for the memory of one of its own structures: a header, a heap or an index."""
_OF_FILES = (errno.EINVAL, errno.EOVERFLOW, errno.EFBIG)
"""System errors caused by wrong offsets and sizes in a damaged file."""
_OWN = __name__.partition(".")[0]


@contextmanager
def library_errors(place: str) -> Iterator[None]:
    """Turn an exception of a library for a damaged file into a `SourceError`.

    Parameters
    ----------
    place : str
        Path of the file, and place in it, for the message.
    """
    try:
        yield
    except (MemoryError, SourceError):
        raise
    except Exception as error:
        raise_if_of_system(place, error)
        if not raised_by_library(error):
            raise
        if found_no_memory(error):
            raise MemoryError(f"{place}: {cause_of(error)}") from error
        raise SourceError(f"{place}: is damaged ({cause_of(error)}): copy it again") from error


def raise_if_of_system(place: str, error: BaseException) -> None:
    """Raise a clear error if an error comes from the operating system, not from the file.

    Raises
    ------
    SourceError
        If the error number is not one that a damaged file causes.
    MemoryError
        If the system is out of memory.
    """
    if not isinstance(error, OSError):
        return
    stated = re.search(r"errno = (\d+)", str(error))  # in the messages of HDF5
    number = error.errno or (int(stated[1]) if stated else None)
    if number is None or number in _OF_FILES:
        return
    reason = os.strerror(number)
    if number == errno.ENOMEM:
        raise MemoryError(f"{place}: {reason}") from None
    if number == errno.ENOENT:
        raise SourceError(f"{place}: cannot be read any more ({reason}): it was removed") from None
    if number in (errno.EMFILE, errno.ENFILE):
        hint = "this process has too many files open: raise the limit (ulimit -n)"
    elif number in (errno.EACCES, errno.EPERM):
        hint = "check its permissions, or copy it to where you may read"
    else:
        hint = "check the disk or the network that it is on, and try again"
    raise SourceError(f"{place}: cannot be read ({reason}): {hint}") from None


def raised_by_library(error: BaseException) -> bool:
    """True if a library that reads files raised the exception, and not code of this package."""
    by_library = False
    step: TracebackType | None = error.__traceback__
    while step is not None:
        package = str(step.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if package == _OWN:
            by_library = False  # called by the library, but raised here
        elif package in _LIBRARIES:
            by_library = True
        step = step.tb_next
    return by_library


def found_no_memory(error: BaseException) -> bool:
    """True if HDF5 is out of memory, and the file is not the cause.

    HDF5's own structures take at most about 20 MB, for a group of a million names. If memory for
    one of them cannot be allocated, its size in the file is wrong.
    """
    text = str(error)
    return _OWN_PIECE not in text and _NO_MEMORY.search(text) is not None


def cause_of(error: BaseException) -> str:
    """Cause of an error in one line; HDF5 puts it in parentheses at the end of its message."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    inner = text[text.find("(") + 1 : -1] if text.endswith(")") else text
    return " ".join(inner.split()) or type(error).__name__


HDF5_SUFFIXES = (".h5", ".hdf5", ".nxs", ".hdf", ".nx", ".he5")
"""Suffixes of HDF5 and NeXus files."""
TIFF_SUFFIXES = (".tif", ".tiff")
"""Suffixes of TIFFs."""
_SHOWN = 60
"""Number of characters shown of a path that is too long."""
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
    """Check that `path` can be read, and return whether it is a file or a folder.

    Raises
    ------
    SourceError
        If it does not exist, with similar names that do, or if it cannot be read.
    """
    try:
        status = path.stat()
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            next(path.iterdir(), None)
            return "folder"
        if stat.S_ISREG(mode):
            with path.open("rb") as file:
                file.read(1)  # some system files can be opened but not read
            if not status.st_size:
                raise SourceError(
                    f"{path}: is empty, a file of no bytes: copy it again, or wait until it is "
                    "written"
                )
            return "file"
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise SourceError(
                f"{path}: is a link to {path.readlink()}, which does not exist"
            ) from None
        raise SourceError(f"{path}: there is no such file or folder{_near(path)}") from None
    except ValueError:  # a name with a zero byte
        raise SourceError(f"{str(path)!r} is not a valid file name") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            shown = str(path) if error.errno == errno.ELOOP else f"{str(path)[:_SHOWN]}..."
            raise SourceError(f"{shown}: leads to no file ({error.strerror})") from None
        raise_if_of_system(str(path), error)
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from None
    raise SourceError(f"{path}: is neither a file nor a folder")


def is_hdf5(path: Path) -> bool:
    """True if a file has a suffix or the signature of HDF5."""
    if path.suffix.lower() in HDF5_SUFFIXES:
        return True
    with library_errors(str(path)), path.open("rb") as file:
        return file.read(8) == HDF5_SIGNATURE


def _near(path: Path) -> str:
    """Names similar to a missing path, as the end of a message."""
    for parent in path.parents:
        if parent.is_dir():
            break
    else:
        return ""
    if parent != path.parent:
        return f"; {path.parent} is missing too, and {parent} exists"
    names = {entry.name.lower(): entry.name for entry in parent.iterdir()}
    close = get_close_matches(path.name.lower(), list(names), n=3, cutoff=0.6)
    if not close:
        folder = "the current folder" if parent == Path() else parent
        return f"; nothing in {folder} has a similar name"
    return f"; did you mean {' or '.join(str(parent / names[c]) for c in close)}?"
