"""Flats and darks in the file of a scan, or in other files."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError
from ..access import SIDE_NAMES, SideName
from ..files import HDF5_SUFFIXES, TIFF_SUFFIXES, check_readable, is_hdf5, is_zarr, library_errors
from ..frames.frames import ArrayFrames, Frames, NpyFrames, Selection
from ..frames.zarr_frames import ZarrFile
from ..hdf5.frames import Hdf5File
from .facts import StoredFacts, one_fact, one_number
from .layout import Layout, ScanFile, find_layout
from .loader import LoaderOptions, SideData

KIND_PROJECTION, KIND_FLAT, KIND_DARK = 0, 1, 2
"""Values of a NeXus image key (NXtomo); 3 marks an invalid frame, and -1 an alignment frame."""
_KINDS = (-1, 0, 1, 2, 3)
"""All valid values of an image key."""
_SIDE_KIND: dict[SideName, int] = {"flats": KIND_FLAT, "darks": KIND_DARK}

Sides = dict[SideName, Selection | None]
"""Flats and darks."""


def read_image_key(file: ScanFile, where: str, n_frames: int) -> NDArray[Any]:
    """Read the kind of each frame.

    Raises
    ------
    SourceError
        If there is not a valid kind for each frame.
    """
    data, name = file.array(where, "image_key_path"), f"{file.name}: {where}"
    if data.dtype.kind not in "uif" or data.ndim != 1:
        raise SourceError(
            f"{name} is {data.ndim}-dimensional {data.dtype}, not an image key, which has a "
            "whole number for each frame"
        )
    if data.shape[0] != n_frames:
        raise SourceError(
            f"{name} has {data.shape[0]} entries for {n_frames} frames: give the image "
            "key of this scan, or null if all frames are projections (image_key_path)"
        )
    keys = file.column(where, "image_key_path")
    unknown = sorted(set(np.unique(keys).tolist()) - set(_KINDS))
    if unknown:
        raise SourceError(
            f"{name} holds {', '.join(map(str, unknown[:3]))}: an image key has 0 for a "
            "projection, 1 for a flat, 2 for a dark and 3 for an invalid frame"
        )
    return keys


def frames_of_kind(frames: Frames, keys: NDArray[Any] | None, kind: int) -> Selection | None:
    """Select the frames of a kind; without an image key all frames are projections."""
    if keys is None:
        return Selection.of(frames) if kind == KIND_PROJECTION else None
    indices = np.flatnonzero(keys == kind)
    return Selection.of(frames, indices) if indices.size else None


def _side_of_layout(
    side: SideName, file: ScanFile, layout: Layout, frames: Frames, keys: NDArray[Any] | None
) -> Selection | None:
    """Select the flats or darks of a layout."""
    separate = layout.flats if side == "flats" else layout.darks
    if separate is None:
        return frames_of_kind(frames, keys, _SIDE_KIND[side])
    return Selection.of(file.frames(separate, side))


def sides_of_file(
    file: ScanFile,
    layout: Layout,
    options: LoaderOptions,
    frames: Frames,
    keys: NDArray[Any] | None,
    opened: ExitStack,
) -> Sides:
    """Open the flats and darks of a scan in an HDF5 or Zarr file.

    Parameters
    ----------
    file : ScanFile
        The file.
    layout : Layout
        Paths for options that are "auto".
    options : LoaderOptions
        Options of the loader.
    frames : Frames
        The stack of the projections.
    keys : ndarray, optional
        Kind of each frame of the stack.
    opened : ExitStack
        Closes the opened files.
    """
    sides = sides_elsewhere(options, opened)
    for side in SIDE_NAMES:
        option = options.side(side)
        if option == "auto":
            sides[side] = _side_of_layout(side, file, layout, frames, keys)
        elif isinstance(option, SideData) and option.file is None:
            is_scan = option.data_path != "auto" and option.image_key_path is None
            if not is_scan or file.find(option.data_path) != file.find(layout.data):
                sides[side] = _side_in_file(side, file, option)
            elif not options.dummies:
                raise SourceError(
                    f"{file.name}: {layout.data} holds the projections: give the {side} another "
                    "data_path, or an image_key_path"
                )
    return sides


def sides_elsewhere(options: LoaderOptions, opened: ExitStack) -> Sides:
    """Open flats and darks in separate files; None for others."""
    sides: Sides = dict.fromkeys(SIDE_NAMES)
    for side in SIDE_NAMES:
        option = options.side(side)
        if isinstance(option, SideData) and option.file is not None:
            sides[side] = selection = _open(side, option.file, option)
            opened.callback(selection.frames.close)
    return sides


def _side_in_file(side: SideName, file: ScanFile, side_data: SideData) -> Selection:
    """Select flats or darks in a file by the options of the loader.

    Raises
    ------
    SourceError
        If they are not in the file.
    """
    is_auto = side_data.data_path == "auto"
    layout = Layout(side_data.data_path, side_data.image_key_path)
    if is_auto:
        layout = find_layout(file, LoaderOptions())
    frames = file.frames(layout.data, "data_path" if is_auto else side)
    if layout.image_key is None and not is_auto:
        return Selection.of(frames)
    keys = None
    if layout.image_key is not None:
        keys = read_image_key(file, layout.image_key, frames.spec.shape[0])
    selection = _side_of_layout(side, file, layout, frames, keys)
    if selection is None:
        raise SourceError(
            f"{frames.name}: there are no {side} in it: give the {side}' data_path and, if "
            "other frames are with them, image_key_path"
        )
    return selection


def _open(side: SideName, path: Path, side_data: SideData) -> Selection:
    """Open flats or darks in a separate file."""
    kind, suffix = check_readable(path), path.suffix.lower()
    file: ScanFile | None = None
    if kind == "file" and is_hdf5(path):
        file = Hdf5File(path)
    elif is_zarr(path):
        file = stack = ZarrFile(path)
        if side_data.data_path == "auto":
            side_data = SideData(path, stack.only_stack)
    elif kind == "folder" or suffix in TIFF_SUFFIXES:
        from ..tiff.frames import open_tiffs

        return Selection.of(open_tiffs(path))
    elif suffix == ".npy":
        return Selection.of(NpyFrames(path, may_be_one=True))
    else:
        raise SourceError(
            f"{path}: {side} cannot be read from {suffix or 'a file without a suffix'}: give HDF5 "
            f"({' '.join(HDF5_SUFFIXES)}), .npy, a TIFF or a folder of TIFFs"
        )
    with library_errors(file.name), ExitStack() as opened:
        opened.callback(file.close)
        selection = _side_in_file(side, file, side_data)
        opened.pop_all()
    return selection


def add_constant_sides(
    sides: Sides, stored: StoredFacts, options: LoaderOptions, data: Selection
) -> None:
    """Add flats and darks that are stored as one value, as by tomoScan."""
    subjects: dict[SideName, str] = {"flats": "flat value", "darks": "dark value"}
    for side, subject in subjects.items():
        fact, value = one_fact(stored.values, subject), one_number(stored.values, subject)
        if fact is None or value is None or options.side(side) != "auto":
            continue
        if sides.get(side) is None:
            dtype = data.spec.dtype
            kept = dtype if np.array(value).astype(dtype) == value else np.dtype(np.float32)
            frame = np.full((1, *data.frames.spec.shape[1:]), value, kept)
            sides[side] = Selection.of(ArrayFrames(f"{data.frames.name}: {fact.where}", frame))
