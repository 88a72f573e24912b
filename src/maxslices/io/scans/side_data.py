"""Angles, flats and darks given by the loader's options."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError
from ..check_arrays import radians_from_degrees
from ..frames.selection import Selection
from ..paths import HDF5_SUFFIXES, TIFF_SUFFIXES, check_readable, is_hdf5
from ..side_name import SideName
from .loader_options import AngleFile, AngleRange, LoaderOptions, SideData
from .preview_angles import check_angle_count


def side_option(options: LoaderOptions, side: SideName) -> SideData | str:
    """Option for the flats or for the darks."""
    return options.flats if side == "flats" else options.darks


def dummies_of(options: LoaderOptions) -> tuple[SideName, ...]:
    """Which of flats and darks are made up where a scan has none."""
    sides: tuple[SideName, ...] = ("flats", "darks")
    return tuple(s for s in sides if options.dummies or side_option(options, s) == "ignore")


def angles_option(
    name: str, options: LoaderOptions, data: Selection
) -> NDArray[np.float32] | str | None:
    """Angles given by the options, in radians; a path in the file, or None for "auto".

    `data` are all projections of the scan.

    Raises
    ------
    SourceError
        If they are not finite numbers, or a range has another number of them than `data` may have.
    """
    given: Any = options.rotation_angles
    if isinstance(given, str):
        return None if given == "auto" else given
    if isinstance(given, AngleRange):
        # Before they are computed: a wrong number may be a huge one.
        check_angle_count(name, given.count, data, options.preview)
        return radians_from_degrees(name, given.degrees())
    if isinstance(given, AngleFile):
        from .angle_file import angles_in_file  # and with it h5py

        return angles_in_file(given, options, data)
    return radians_from_degrees(name, given)


def open_side(
    side: SideName, path: Path, given: SideData, opened: ExitStack, *, allow_missing: bool
) -> Selection:
    """Open flats or darks in a file of their own.

    Parameters
    ----------
    side : {"flats", "darks"}
        Which stack.
    path : Path
        An HDF5 or ``.npy`` file, a TIFF or a folder of TIFFs.
    given : SideData
        Where they are in an HDF5 file.
    opened : ExitStack
        Closes what is opened here.
    allow_missing : bool
        Whether values that were never written are read as the fill value.
    """
    kind, suffix = check_readable(path), path.suffix.lower()
    if kind == "file" and is_hdf5(path):
        from .hdf5_side import hdf5_side

        selection = hdf5_side(side, path, given, allow_missing=allow_missing)
    elif kind == "folder" or suffix in TIFF_SUFFIXES:
        from ..tiff.frames import open_tiffs

        selection = Selection.of(open_tiffs(path))
    elif suffix == ".npy":
        from ..frames.npy_frames import NpyFrames

        selection = Selection.of(NpyFrames(path, may_be_one=True))
    else:
        raise SourceError(
            f"{path}: {side} cannot be read from {suffix or 'a file without a suffix'}: give HDF5 "
            f"({' '.join(HDF5_SUFFIXES)}), .npy, a TIFF or a folder of TIFFs"
        )
    opened.callback(selection.frames.close)
    return selection
