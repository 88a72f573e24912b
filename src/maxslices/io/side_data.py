"""What a scan's options add, whatever kind of file it is: angles, flats and darks."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SourceError
from .check_arrays import radians_of
from .frame_source import FrameSource, Selection
from .loader_options import AngleRange, LoaderOptions, SideData
from .paths import HDF5_SUFFIXES, TIFF_SUFFIXES, holds_hdf5, look_at
from .side_name import SideName


def plain_source(
    name: str,
    data: Selection,
    options: LoaderOptions,
    *,
    angles: NDArray[np.float32] | None = None,
    flats: Selection | None = None,
    darks: Selection | None = None,
) -> FrameSource:
    """Return the source of a file without a layout, which holds frames and nothing else.

    Parameters
    ----------
    name : str
        What messages call the scan.
    data : Selection
        The projections; closed here if anything is wrong.
    options : LoaderOptions
        Must not name paths within an HDF5 file.
    angles, flats, darks : optional
        What is there unless `options` say otherwise.
    """
    with ExitStack() as opened:
        opened.callback(data.frames.close)
        if options.data_path != "auto" or options.image_key_path not in ("auto", None):
            raise SourceError(
                f"{name}: is not an HDF5 file, so it has no data_path and no image_key_path: "
                "leave them out"
            )
        found: dict[SideName, Selection | None] = {"flats": flats, "darks": darks}
        for side, selection in found.items():
            given = flats_or_darks(options, side)
            if isinstance(given, SideData):
                if given.file is None:
                    raise SourceError(
                        f"{name}: holds projections alone, so {side} cannot be in it: give "
                        "their file"
                    )
                found[side] = open_side(side, given.file, given, opened)
            elif given == "ignore":
                found[side] = None
            elif selection is not None:
                opened.callback(selection.frames.close)
        given_angles = angles_given(name, options)
        if isinstance(given_angles, str):
            raise SourceError(
                f"{name}: is not an HDF5 file, so the rotation angles cannot be at "
                f"{given_angles}: give them in degrees"
            )
        source = FrameSource(
            name,
            data,
            flats=found["flats"],
            darks=found["darks"],
            angles=angles if given_angles is None else given_angles,
            preview=options.preview,
        )
        opened.pop_all()
    return source


def flats_or_darks(options: LoaderOptions, side: SideName) -> SideData | str:
    """Return what the options say of flats or of darks."""
    return options.flats if side == "flats" else options.darks


def angles_given(name: str, options: LoaderOptions) -> NDArray[np.float32] | str | None:
    """Return the options' angles in radians, the path where they are, or None for "auto"."""
    given: Any = options.rotation_angles
    if isinstance(given, str):
        return None if given == "auto" else given
    if isinstance(given, AngleRange):
        return radians_of(name, given.degrees())
    return radians_of(name, given)


def open_side(side: SideName, path: Path, given: SideData, opened: ExitStack) -> Selection:
    """Open flats or darks that are in a file of their own.

    Parameters
    ----------
    side : {"flats", "darks"}
        Which.
    path : Path
        An HDF5 or ``.npy`` file, a TIFF or a folder of TIFFs.
    given : SideData
        Where in an HDF5 file they are.
    opened : ExitStack
        Is told to close what is opened here.
    """
    kind, suffix = look_at(path), path.suffix.lower()
    if kind == "file" and (suffix in HDF5_SUFFIXES or holds_hdf5(path)):
        from .hdf5_source import hdf5_side

        selection = hdf5_side(side, path, given)
    elif kind == "folder" or suffix in TIFF_SUFFIXES:
        from .tiff_source import tiff_frames

        selection = Selection.of(tiff_frames(path))
    elif suffix == ".npy":
        from .array_source import npy_frames

        selection = Selection.of(npy_frames(path))
    else:
        raise SourceError(
            f"{path}: {side} cannot be read from {suffix or 'a file without a suffix'}: give HDF5 "
            f"({' '.join(HDF5_SUFFIXES)}), .npy, a TIFF or a folder of TIFFs"
        )
    opened.callback(selection.frames.close)
    return selection
