"""Flats and darks: in the file of a scan, or in others."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError
from ..access import SideName
from ..frames.frames import ArrayFrames, Frames, Selection
from ..hdf5.frames import dataset, hdf5_frames, read_column
from ..hdf5.open_hdf5 import open_file
from ..library_errors import library_errors
from ..paths import HDF5_SUFFIXES, TIFF_SUFFIXES, check_readable, is_hdf5, is_zarr
from .facts import one_fact, one_number
from .hdf5_layout import Layout, find_layout
from .loader import FrameChoice, LoaderOptions, SideData
from .stored_facts import StoredFacts

KIND_PROJECTION, KIND_FLAT, KIND_DARK = 0, 1, 2
"""Values of a NeXus image key (NXtomo); 3 marks an invalid frame, -1 one taken for alignment."""

_KINDS = (-1, 0, 1, 2, 3)
"""All valid values of an image key."""
_SIDE_KIND: dict[SideName, int] = {"flats": KIND_FLAT, "darks": KIND_DARK}


def hdf5_side(side: SideName, path: Path, given: SideData, *, allow_missing: bool) -> Selection:
    """Open flats or darks in an HDF5 file of their own, or at a path of their own.

    Raises
    ------
    SourceError
        If there are none at that place.
    """
    with library_errors(str(path)), ExitStack() as opened:
        file = open_file(path)
        opened.callback(file.close)
        frames: Frames
        if given.data_path == "auto":
            layout = find_layout(path, file, LoaderOptions())
            frames = hdf5_frames(path, file, layout.data)
            keys = None
            if layout.image_key is not None:
                keys = read_image_key(
                    path,
                    file,
                    layout.image_key,
                    frames.spec.shape[0],
                    allow_missing=allow_missing,
                )
            selection = side_of_layout(side, path, file, layout, frames, keys)
        else:
            frames = side_frames(path, file, given.data_path)
            if given.image_key_path is None:
                opened.pop_all()
                return Selection.of(frames)
            keys = read_image_key(
                path,
                file,
                given.image_key_path,
                frames.spec.shape[0],
                allow_missing=allow_missing,
            )
            selection = frames_of_kind(frames, keys, _SIDE_KIND[side])
        if selection is None:
            raise SourceError(
                f"{frames.name}: there are no {side} in it: give the {side}' data_path and, if "
                "other frames are with them, image_key_path"
            )
        opened.pop_all()
    return selection


def read_image_key(
    path: Path, file: h5py.File, name: str, n_frames: int, *, allow_missing: bool
) -> NDArray[Any]:
    """Read and check the kind of each frame."""
    data = dataset(path, file, name, "image_key_path")
    check_image_key(f"{path}: {name}", data, n_frames)
    keys = read_column(f"{path}: {name}", data, allow_missing)
    check_kinds(f"{path}: {name}", keys)
    return keys


def check_image_key(name: str, data: Any, n_frames: int) -> None:
    """Check that a data set has a number for each frame.

    Raises
    ------
    SourceError
        If it does not.
    """
    if data.dtype.kind not in "uif" or data.ndim != 1:
        raise SourceError(
            f"{name} is {data.ndim}-dimensional {data.dtype}, not an image key: that has "
            "a whole number for each frame"
        )
    if data.shape[0] != n_frames:
        raise SourceError(
            f"{name} has {data.shape[0]} entries for {n_frames} frames: give the image "
            "key of this scan, or null if all frames are projections (image_key_path)"
        )


def check_kinds(name: str, keys: NDArray[Any]) -> None:
    """Check that an image key has known kinds only.

    Raises
    ------
    SourceError
        If it has others.
    """
    unknown = sorted(set(np.unique(keys).tolist()) - set(_KINDS))
    if unknown:
        raise SourceError(
            f"{name} holds {', '.join(map(str, unknown[:3]))}: an image key has 0 for a "
            "projection, 1 for a flat, 2 for a dark and 3 for an invalid frame"
        )


def frames_of_kind(frames: Frames, keys: NDArray[Any] | None, kind: int) -> Selection | None:
    """Select the frames of a kind; without an image key all are projections."""
    if keys is None:
        return Selection.of(frames) if kind == KIND_PROJECTION else None
    indices = np.flatnonzero(keys == kind)
    return Selection.of(frames, indices) if indices.size else None


def side_of_kind(side: SideName, frames: Frames, keys: NDArray[Any] | None) -> Selection | None:
    """Select flats or darks by the image key; None without a key, or without such frames."""
    return frames_of_kind(frames, keys, _SIDE_KIND[side])


def side_of_layout(
    side: SideName,
    path: Path,
    file: h5py.File,
    layout: Layout,
    frames: Frames,
    keys: NDArray[Any] | None,
) -> Selection | None:
    """Select flats or darks as the layout has them."""
    separate = layout.flats if side == "flats" else layout.darks
    if separate is None:
        return side_of_kind(side, frames, keys)
    return Selection.of(side_frames(path, file, separate))


def side_frames(path: Path, file: h5py.File, data_path: str) -> Frames:
    """Frames of flats or darks; a data set of two dims is one frame, such as their mean."""
    data = dataset(path, file, data_path, "data_path")
    if data.ndim != 2:
        return hdf5_frames(path, file, data_path)
    name = f"{path}:/{data_path.strip('/')}"
    with library_errors(name):
        return ArrayFrames(name, data[()][np.newaxis])


def side_option(options: LoaderOptions, side: SideName) -> SideData | str:
    """Option for the flats or for the darks, without the frames that it selects."""
    given = options.flats if side == "flats" else options.darks
    return "auto" if isinstance(given, SideData) and given.is_auto else given


def frame_choices(options: LoaderOptions) -> dict[SideName, FrameChoice]:
    """Which of the flats, and of the darks, are read, where not all are."""
    given: dict[SideName, SideData | str] = {"flats": options.flats, "darks": options.darks}
    return {
        side: each.frames
        for side, each in given.items()
        if isinstance(each, SideData) and each.frames is not None
    }


def dummies_of(options: LoaderOptions) -> tuple[SideName, ...]:
    """Which of flats and darks are made up where a scan has none."""
    sides: tuple[SideName, ...] = ("flats", "darks")
    return tuple(s for s in sides if options.dummies or side_option(options, s) == "ignore")


def add_constant_sides(
    sides: dict[SideName, Selection | None],
    stored: StoredFacts,
    options: LoaderOptions,
    data: Selection,
) -> None:
    """Add flats and darks that are stored as one value, as tomoScan writes them."""
    subjects: dict[SideName, str] = {"flats": "flat value", "darks": "dark value"}
    for side, subject in subjects.items():
        fact, value = one_fact(stored.values, subject), one_number(stored.values, subject)
        if fact is None or value is None or side_option(options, side) != "auto":
            continue
        if sides.get(side) is None:
            dtype = data.spec.dtype
            kept = dtype if np.array(value).astype(dtype) == value else np.dtype(np.float32)
            frame = np.full((1, *data.frames.spec.shape[1:]), value, kept)
            sides[side] = Selection.of(ArrayFrames(f"{data.frames.name}: {fact.where}", frame))


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
        selection = hdf5_side(side, path, given, allow_missing=allow_missing)
    elif is_zarr(path):
        from ..frames.zarr_frames import zarr_stack

        selection = Selection.of(zarr_stack(path, given.data_path))
    elif kind == "folder" or suffix in TIFF_SUFFIXES:
        from ..tiff.frames import open_tiffs

        selection = Selection.of(open_tiffs(path))
    elif suffix == ".npy":
        from ..frames.plain_frames import NpyFrames

        selection = Selection.of(NpyFrames(path, may_be_one=True))
    else:
        raise SourceError(
            f"{path}: {side} cannot be read from {suffix or 'a file without a suffix'}: give HDF5 "
            f"({' '.join(HDF5_SUFFIXES)}), .npy, a TIFF or a folder of TIFFs"
        )
    opened.callback(selection.frames.close)
    return selection
