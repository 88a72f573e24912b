"""Rotation angles in a data set, of the scan's file or of another one, or in a text file."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError
from ...system.files import read_small_text
from ..check_arrays import check_angles, radians_from_degrees
from ..frames.selection import Selection
from ..hdf5.frames import dataset, read_column
from ..hdf5.links import read_attribute
from ..hdf5.open_hdf5 import open_file
from ..paths import check_readable, is_hdf5
from .loader_options import AngleFile, LoaderOptions
from .preview_angles import check_angle_count, projections_angles

_MAX_TEXT_BYTES = 2**24
"""Largest text file: a million angles have some 10 MB."""


def stored_angles(
    path: Path, file: h5py.File, where: str, options: LoaderOptions, data: Selection
) -> NDArray[np.float32]:
    """Read angles in radians from a data set, as many as `previewed_angles` takes.

    Raises
    ------
    SourceError
        If they cannot be read, or there are more or fewer.
    """
    stored = dataset(path, file, where, "rotation_angles")
    name = f"{path}: {where}"
    if stored.ndim != 1:
        raise SourceError(
            f"{name}: has {stored.ndim} dims, not one angle a projection: give others with "
            "rotation_angles"
        )
    check_angle_count(name, stored.shape[0], data, options.preview)
    convert = check_angles if _in_radians(name, stored) else radians_from_degrees
    read = read_column(name, stored, options.allow_missing_frames)
    # Some beamlines write NaN for flats and darks.
    return convert(name, projections_angles(read, data, options.preview))


def angles_in_file(
    given: AngleFile, options: LoaderOptions, data: Selection
) -> NDArray[np.float32]:
    """Read angles in radians from a file of their own.

    Raises
    ------
    SourceError
        If they cannot be read, or there are more or fewer than the scan may have.
    """
    path = given.file
    if check_readable(path) == "folder":
        raise SourceError(f"{path}: is a folder: give the file of the rotation angles")
    if is_hdf5(path):
        if given.data_path is None:
            raise SourceError(f"{path}: give the data_path of the rotation angles in it")
        with open_file(path) as file:
            return stored_angles(path, file, given.data_path, options, data)
    try:
        text = read_small_text(path, _MAX_TEXT_BYTES)
        degrees = np.array([float(word) for word in text.replace(",", " ").split()])
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{path}: is neither HDF5 nor a text of angles in degrees ({error})"
        ) from None
    check_angle_count(str(path), degrees.size, data, options.preview)
    return radians_from_degrees(str(path), degrees)


def _in_radians(name: str, stored: h5py.Dataset) -> bool:
    """True if stored angles are in radians; without units they are in degrees."""
    units = np.ravel(np.asarray(read_attribute(stored, "units", "")))
    unit = units[0] if units.size else ""
    text = unit.decode(errors="replace") if isinstance(unit, bytes) else str(unit)
    text = text.strip().lower()
    if text.startswith("rad"):
        return True
    if text.startswith(("deg", "°")) or text in ("", "none", "null"):
        return False
    raise SourceError(
        f"{name}: are in {text!r}, neither degrees nor radians: give them in degrees with "
        "rotation_angles"
    )
