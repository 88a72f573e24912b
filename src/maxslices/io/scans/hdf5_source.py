"""Scans in HDF5 and NeXus files."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError
from ..access import SIDE_NAMES, SideName
from ..frames.frames import Selection
from ..hdf5.frames import dataset, hdf5_frames, read_column
from ..hdf5.links import LISTED, look_up
from ..hdf5.open_hdf5 import open_file
from ..library_errors import library_errors
from .angles import find_angles, stored_angles
from .frame_source import FrameSource
from .hdf5_layout import Layout, find_layout, other_entries
from .loader import LoaderOptions, SideData
from .side_data import (
    KIND_PROJECTION,
    add_constant_sides,
    dummies_of,
    frame_choices,
    frames_of_kind,
    hdf5_side,
    open_side,
    read_image_key,
    side_frames,
    side_of_layout,
    side_option,
)
from .stored_facts import facts_of_file

logger = logging.getLogger(__name__)


def hdf5_source(path: Path, options: LoaderOptions) -> FrameSource:
    """Open an HDF5 or NeXus file as a scan.

    Known layouts: NXtomo as Diamond (``entry1/tomo_entry``) and the ESRF (``entry0000``)
    write it, or under any other entry, and APS Data Exchange (``/exchange``). Angles are in
    degrees unless their ``units`` are radians.

    Raises
    ------
    SourceError
        If it is not a scan, or a part of it is missing.
    """
    with library_errors(str(path)), ExitStack() as opened:
        file = open_file(path)
        opened.callback(file.close)
        layout = find_layout(path, file, options)
        if options.data_path == "auto":
            _say_other_entries(path, file, layout)
        allow_missing = options.allow_missing_frames
        frames = hdf5_frames(path, file, layout.data)
        frames.written(allow_missing=allow_missing)  # before arrays of its length are made
        keys = None
        if layout.image_key is not None:
            n_frames = frames.spec.shape[0]
            keys = read_image_key(
                path, file, layout.image_key, n_frames, allow_missing=allow_missing
            )
            if layout.alignment_key is not None:
                control = read_image_key(
                    path, file, layout.alignment_key, n_frames, allow_missing=allow_missing
                )
                keys = np.where(control == -1, -1, keys)
        elif options.dummies and options.image_key_path is None:
            _say_unused_key(path, file, options)
        data = frames_of_kind(frames, keys, KIND_PROJECTION)
        if data is None:
            raise SourceError(
                f"{path}: {layout.image_key} marks none of the {frames.spec.shape[0]} frames as "
                "a projection (0): give another image_key_path, or null if all are projections"
            )
        currents = None
        if options.beam_current is not None:
            where = layout.current if options.beam_current == "auto" else options.beam_current
            currents = _read_currents(path, file, where, allow_missing)
        sides: dict[SideName, Selection | None] = {}
        for side in ("flats", "darks"):
            given = side_option(options, side)
            if isinstance(given, SideData):
                if given.file is None and _is_whole_scan(file, given, layout.data):
                    if not options.dummies:
                        raise SourceError(
                            f"{path}: {layout.data} holds the projections: give the {side} "
                            "another data_path, or an image_key_path"
                        )
                elif given.file is None:
                    own = hdf5_side(side, path, given, allow_missing=allow_missing)
                    opened.callback(own.frames.close)
                    sides[side] = own
                else:
                    sides[side] = open_side(
                        side, given.file, given, opened, allow_missing=allow_missing
                    )
            elif given == "auto":
                sides[side] = side_of_layout(side, path, file, layout, frames, keys)
        for side in SIDE_NAMES:
            option = side_option(options, side)
            if isinstance(option, SideData) and option.file is None and option.data_path != "auto":
                layout = replace(layout, **{side: option.data_path})
        angles, stored = find_angles(
            str(path),
            layout,
            options,
            data,
            lambda where: stored_angles(path, file, where, options, data),
            lambda layout: facts_of_file(file, layout, data),
        )
        if not options.dummies:
            add_constant_sides(sides, stored, options, data)
        flats_after, after = None, layout.flats_after
        if after is not None and side_option(options, "flats") == "auto":
            has_frames = 0 not in dataset(path, file, after, "flats").shape
            flats_after = Selection.of(side_frames(path, file, after)) if has_frames else None
        source = FrameSource(
            frames.name,
            data,
            flats=sides.get("flats"),
            darks=sides.get("darks"),
            flats_after=flats_after,
            angles=angles,
            preview=options.preview,
            dummies=dummies_of(options),
            allow_missing_frames=allow_missing,
            stored=stored,
            frames=frame_choices(options),
            currents=currents,
        )
        opened.pop_all()
    return source


def _read_currents(
    path: Path, file: h5py.File, where: str | None, allow_missing: bool
) -> NDArray[np.float64]:
    """Read the current of the beam for each frame."""
    if where is None:
        raise SourceError(
            f"{path}: no beam current is found (control/data of an NXtomo entry): give its path as "
            "beam_current, or leave it out"
        )
    data = dataset(path, file, where, "beam_current")
    if data.dtype.kind not in "uif" or data.ndim != 1:
        raise SourceError(
            f"{path}: {where} is {data.ndim}-dimensional {data.dtype}, not one beam current a frame"
        )
    return np.asarray(read_column(f"{path}: {where}", data, allow_missing), np.float64)


def _is_whole_scan(file: h5py.File, given: SideData, data: str) -> bool:
    """True if all frames of the scan itself would be its flats or darks."""
    if given.data_path == "auto" or given.image_key_path is not None:
        return False
    stored = look_up(file, given.data_path)
    return isinstance(stored, h5py.Dataset) and stored == look_up(file, data)


def _say_other_entries(path: Path, file: h5py.File, layout: Layout) -> None:
    """Log a warning if a file has more than one scan, of which one is read."""
    others = other_entries(file, layout)
    if others:
        more = f" and {len(others) - LISTED} more" if len(others) > LISTED else ""
        logger.warning(
            "%s: %s is read; the file has further scans, %s%s: give data_path for one of them",
            path,
            layout.data,
            ", ".join(others[:LISTED]),
            more,
        )


def _say_unused_key(path: Path, file: h5py.File, options: LoaderOptions) -> None:
    """Log a warning if a file marks flats or darks among frames that all count as projections."""
    key = find_layout(path, file, replace(options, image_key_path="auto")).image_key
    stored = None if key is None else look_up(file, key)
    if isinstance(stored, h5py.Dataset) and stored.ndim == 1:
        others = int(np.count_nonzero(stored[()]))
        if others:
            logger.warning(
                "%s: without image_key_path all frames are projections, as in httomo, but %s marks "
                "%d of them as flats, darks or others: give image_key_path: auto",
                path,
                key,
                others,
            )
