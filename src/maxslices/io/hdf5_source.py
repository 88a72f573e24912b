"""Scans in HDF5 and NeXus files."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ..errors import SourceError
from .check_arrays import check_angles, radians_of
from .frame_source import FrameSource, Selection
from .hdf5_frames import Hdf5Frames, dataset, open_file
from .hdf5_layout import Layout, find_layout
from .loader_options import LoaderOptions, SideData
from .side_data import angles_given, flats_or_darks, open_side
from .side_name import SideName

KIND_PROJECTION, KIND_FLAT, KIND_DARK = 0, 1, 2
"""Values of a NeXus image key; 3 marks an invalid frame, and -1 one taken for alignment."""

_KINDS = (-1, 0, 1, 2, 3)
_SIDE_KIND: dict[SideName, int] = {"flats": KIND_FLAT, "darks": KIND_DARK}


def hdf5_source(path: Path, options: LoaderOptions) -> FrameSource:
    """Open an HDF5 or NeXus file as a scan.

    Layouts that are found by themselves: NXtomo as Diamond (``entry1/tomo_entry``) and the
    ESRF (``entry0000``) write it, or under any other entry, and APS Data Exchange
    (``/exchange``). Angles are in degrees unless their ``units`` say radians.

    Raises
    ------
    SourceError
        If it is not a scan, or not all of it is there.
    """
    with ExitStack() as opened:
        file = open_file(path)
        opened.callback(file.close)
        layout = find_layout(path, file, options)
        frames = Hdf5Frames(path, file, layout.data)
        keys = None
        if layout.image_key is not None:
            keys = _image_key(path, file, layout.image_key, frames.spec.shape[0])
            if layout.alignment_key is not None:
                control = _image_key(path, file, layout.alignment_key, frames.spec.shape[0])
                keys = np.where(control == -1, -1, keys)
        data = _of_kind(frames, keys, KIND_PROJECTION)
        if data is None:
            raise SourceError(
                f"{path}: {layout.image_key} marks none of the {frames.spec.shape[0]} frames as "
                "a projection (0): give another image_key_path, or null if all are projections"
            )
        sides: dict[SideName, Selection | None] = {}
        for side in _SIDE_KIND:
            given = flats_or_darks(options, side)
            if isinstance(given, SideData):
                if given.file is None:
                    own = hdf5_side(side, path, given)
                    opened.callback(own.frames.close)
                    sides[side] = own
                else:
                    sides[side] = open_side(side, given.file, given, opened)
            elif given == "auto":
                sides[side] = _side_of_layout(side, path, file, layout, frames, keys)
        source = FrameSource(
            frames.name,
            data,
            flats=sides.get("flats"),
            darks=sides.get("darks"),
            angles=_angles(path, file, layout, options, data, frames.spec.shape[0]),
            preview=options.preview,
        )
        opened.pop_all()
    return source


def hdf5_side(side: SideName, path: Path, given: SideData) -> Selection:
    """Open flats or darks that are in an HDF5 file, apart from the projections.

    Raises
    ------
    SourceError
        If there are none.
    """
    file = open_file(path)
    try:
        if given.data_path == "auto":
            layout = find_layout(path, file, LoaderOptions())
            frames = Hdf5Frames(path, file, layout.data)
            keys = None
            if layout.image_key is not None:
                keys = _image_key(path, file, layout.image_key, frames.spec.shape[0])
            selection = _side_of_layout(side, path, file, layout, frames, keys)
        else:
            frames = Hdf5Frames(path, file, given.data_path)
            if given.image_key_path is None:
                return Selection.of(frames)
            keys = _image_key(path, file, given.image_key_path, frames.spec.shape[0])
            selection = _of_kind(frames, keys, _SIDE_KIND[side])
        if selection is None:
            raise SourceError(
                f"{frames.name}: there are no {side} in it: give the {side}' data_path and, if "
                "other frames are with them, image_key_path"
            )
    except SourceError:
        file.close()
        raise
    return selection


def _image_key(path: Path, file: h5py.File, name: str, n_frames: int) -> NDArray[Any]:
    """Return the kind of each frame."""
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
    keys: NDArray[Any] = data[:]
    unknown = sorted(set(np.unique(keys).tolist()) - set(_KINDS))
    if unknown:
        raise SourceError(
            f"{path}: {name} holds {', '.join(map(str, unknown[:3]))}: an image key has 0 for a "
            "projection, 1 for a flat, 2 for a dark and 3 for an invalid frame"
        )
    return keys


def _of_kind(frames: Hdf5Frames, keys: NDArray[Any] | None, kind: int) -> Selection | None:
    """Return the frames that the image key marks as `kind`; without a key all are projections."""
    if keys is None:
        return Selection.of(frames) if kind == KIND_PROJECTION else None
    indices = np.flatnonzero(keys == kind)
    return Selection.of(frames, indices.tolist()) if indices.size else None


def _side_of_layout(
    side: SideName,
    path: Path,
    file: h5py.File,
    layout: Layout,
    frames: Hdf5Frames,
    keys: NDArray[Any] | None,
) -> Selection | None:
    """Return the flats or darks that are where the layout has them."""
    separate = layout.flats if side == "flats" else layout.darks
    if separate is None:
        return _of_kind(frames, keys, _SIDE_KIND[side])
    return Selection.of(Hdf5Frames(path, file, separate))


def _angles(
    path: Path,
    file: h5py.File,
    layout: Layout,
    options: LoaderOptions,
    data: Selection,
    n_frames: int,
) -> NDArray[np.float32] | None:
    """Return the angles of the projections in radians, or None."""
    given = angles_given(str(path), options)
    if isinstance(given, np.ndarray):
        angles, name = given, f"{path}: rotation_angles"
    else:
        where = layout.angles if given is None else given
        if where is None:
            return None
        stored = dataset(path, file, where, "rotation_angles")
        name = f"{path}: {where}"
        if stored.ndim != 1:
            raise SourceError(
                f"{name}: has {stored.ndim} dims, not one angle a projection: give others with "
                "rotation_angles"
            )
        convert = check_angles if _in_radians(name, stored) else radians_of
        angles = convert(name, stored[:])
    n_projections = data.spec.shape[0]
    if angles.size == n_projections:
        return angles
    if angles.size == n_frames:
        return np.concatenate([angles[slice(*run)] for run in data.runs])
    frames = "" if n_frames == n_projections else f" ({n_frames} frames with darks and flats)"
    raise SourceError(
        f"{name}: {angles.size} angles for {n_projections} projections{frames}: give one a "
        "projection with rotation_angles"
    )


def _in_radians(name: str, stored: h5py.Dataset) -> bool:
    """Tell whether stored angles are in radians; degrees, if nothing is said."""
    units = np.ravel(np.asarray(stored.attrs.get("units", "")))
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
