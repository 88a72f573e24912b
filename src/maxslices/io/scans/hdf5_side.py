"""Flats, darks and projections of an HDF5 file, by its image key or its layout."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError
from ..frames.array_frames import ArrayFrames
from ..frames.frames import Frames
from ..frames.selection import Selection
from ..hdf5.frames import Hdf5Frames, dataset, read_column
from ..hdf5.open_hdf5 import open_file
from ..library_errors import library_errors
from ..side_name import SideName
from .hdf5_layout import Layout, find_layout
from .loader_options import LoaderOptions, SideData

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
            frames = Hdf5Frames(path, file, layout.data)
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
            frames = _side_frames(path, file, given.data_path)
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
    if data.dtype.kind not in "uif" or data.ndim != 1:
        raise SourceError(
            f"{path}: {name} is {data.ndim}-dimensional {data.dtype}, not an image key: that has "
            "a whole number for each frame"
        )
    if data.shape[0] != n_frames:
        raise SourceError(
            f"{path}: {name} has {data.shape[0]} entries for {n_frames} frames: give the image "
            "key of this scan, or null if all frames are projections (image_key_path)"
        )
    keys = read_column(f"{path}: {name}", data, allow_missing)
    unknown = sorted(set(np.unique(keys).tolist()) - set(_KINDS))
    if unknown:
        raise SourceError(
            f"{path}: {name} holds {', '.join(map(str, unknown[:3]))}: an image key has 0 for a "
            "projection, 1 for a flat, 2 for a dark and 3 for an invalid frame"
        )
    return keys


def frames_of_kind(frames: Frames, keys: NDArray[Any] | None, kind: int) -> Selection | None:
    """Select the frames of a kind; without an image key all are projections."""
    if keys is None:
        return Selection.of(frames) if kind == KIND_PROJECTION else None
    indices = np.flatnonzero(keys == kind)
    return Selection.of(frames, indices) if indices.size else None


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
        return frames_of_kind(frames, keys, _SIDE_KIND[side])
    return Selection.of(_side_frames(path, file, separate))


def _side_frames(path: Path, file: h5py.File, data_path: str) -> Frames:
    """Frames of flats or darks; a data set of two dims is one frame, such as their mean."""
    data = dataset(path, file, data_path, "data_path")
    if data.ndim != 2:
        return Hdf5Frames(path, file, data_path)
    name = f"{path}:/{data_path.strip('/')}"
    with library_errors(name):
        return ArrayFrames(name, data[()][np.newaxis])
