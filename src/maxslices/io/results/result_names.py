"""Names of results in the folder of a run, and their removal."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from ...errors import StoreError

_RESULT = re.compile(
    r"(result(_8bit|_16bit)?|[0-9]{2,}_\w+)(\.h5|\.tif|\.ome\.zarr)?"
    r"|sweep\.tif|sweep\.png"
)
"""Names of the last result, of saved steps with number and method, and of pictures of a sweep."""


def is_result_name(name: str) -> bool:
    """True if a run may have written a result of that name.

    Examples
    --------
    >>> [is_result_name(name) for name in ("result.h5", "02_fbp.h5", "03_fbp_8bit")]
    [True, True, True]
    >>> [is_result_name(name) for name in ("scan.h5", "..", "result.h5.bak")]
    [False, False, False]
    """
    return _RESULT.fullmatch(name) is not None


def remove_result(path: Path) -> None:
    """Remove a finished result, if it exists.

    Parameters
    ----------
    path : Path
        A file, a folder of TIFFs or OME-Zarr, as written by runs.

    Raises
    ------
    StoreError
        If it is a folder with other files, which is not changed, or cannot be removed.
    """
    try:
        if not path.is_dir() or path.is_symlink():
            path.unlink(missing_ok=True)
            return
        check_removable(path)
        shutil.rmtree(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be removed ({error.strerror})") from None


def check_removable(path: Path) -> None:
    """Check that a result contains only files that runs write; it may be missing.

    Raises
    ------
    StoreError
        If it is a folder with other files.
    OSError
        If the folder cannot be read.
    """
    if not path.is_dir() or path.is_symlink():
        return
    is_part = _is_zarr_part if ".ome.zarr" in path.name else _is_tiff_of
    foreign = next((p for p in path.iterdir() if not is_part(path, p)), None)
    if foreign is not None:
        raise StoreError(
            f"{path}: contains {foreign.name}, which no run wrote, so it is not removed: move that "
            "file away, or choose another folder"
        )


def _is_tiff_of(folder: Path, path: Path) -> bool:
    stem, _, number = path.stem.rpartition("_")
    return stem == folder.name and number.isdigit() and path.suffix == ".tif"


def _is_zarr_part(folder: Path, path: Path) -> bool:
    """True for a level of a pyramid and for the group's own file."""
    if path.name.isdecimal():
        return path.is_dir() and not path.is_symlink()
    return path.name == "zarr.json"
