"""Paths of data sets that a loader gives: those that lead nowhere, all at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...errors import SourceError
from ..paths import check_readable, is_hdf5, path_of
from .loader import AngleFile, LoaderFault, LoaderOptions, SideData


def path_faults(scan: object, options: LoaderOptions) -> list[LoaderFault]:
    """Find the paths that are given for parts of a scan and lead to no data set.

    Files that cannot be opened are left out: opening the scan says why.
    """
    path = path_of(scan)
    faults = []
    for file, keys, name in _given(path, options):
        if file is not None and name not in (None, "auto"):
            text = _fault(file, name, keys)
            if text is not None:
                faults.append(LoaderFault(keys, text))
    return faults


def _given(
    scan: Path | None, options: LoaderOptions
) -> Iterator[tuple[Path | None, tuple[str, ...], str | None]]:
    """File, keys of the parameter, and path in the file."""
    yield scan, ("data_path",), options.data_path
    yield scan, ("image_key_path",), options.image_key_path
    angles = options.rotation_angles
    if isinstance(angles, str):
        yield scan, ("rotation_angles", "data_path"), angles
    elif isinstance(angles, AngleFile):
        yield angles.file, ("rotation_angles", "data_path"), angles.data_path
    for side, given in (("flats", options.flats), ("darks", options.darks)):
        if isinstance(given, SideData) and given.data_path != "auto":
            yield given.file or scan, (side, "data_path"), given.data_path
            yield given.file or scan, (side, "image_key_path"), given.image_key_path


def _fault(path: Path, name: str, keys: tuple[str, ...]) -> str | None:
    """Say why a path leads to no data set; None if it leads to one."""
    try:
        if check_readable(path) != "file" or not is_hdf5(path):
            return None
        from ..hdf5.frames import dataset  # and with it h5py
        from ..hdf5.open_hdf5 import open_file
        from ..library_errors import library_errors

        with library_errors(str(path)):
            file = open_file(path)
    except SourceError:
        return None
    with file:
        try:
            with library_errors(str(path)):
                dataset(path, file, name, keys[0] if keys[0] == "rotation_angles" else keys[-1])
        except SourceError as error:
            return str(error)
    return None
