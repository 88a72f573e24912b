"""Scans in Zarr and OME-Zarr: versions 2 and 3, sharded too, in a folder or at a URL of fsspec."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError
from ..access import SIDE_NAMES, SideName
from ..frames.frames import Selection
from ..frames.zarr_frames import (
    ome_image,
    ome_level,
    open_zarr,
    zarr_array,
    zarr_arrays,
    zarr_frames,
)
from ..library_errors import library_errors
from ..paths import is_url
from ..results.result_info import PixelSize
from .angles import angles_of_column, find_angles
from .facts import length_um, number_column, unit_of
from .frame_source import FrameSource
from .hdf5_layout import SEPARATE, Layout, likely_layout
from .loader import LoaderOptions, SideData
from .side_data import (
    KIND_PROJECTION,
    add_constant_sides,
    check_image_key,
    check_kinds,
    dummies_of,
    frame_choices,
    frames_of_kind,
    open_side,
    side_of_kind,
    side_option,
)
from .stored_facts import StoredFacts, collect_facts

_SHOWN = 6
"""Most arrays that a message lists."""


def zarr_source(scan: str | os.PathLike[str], options: LoaderOptions) -> FrameSource:
    """Open a Zarr group or array as a scan.

    The frames are `data_path`, or an array that is opened by itself, the first level of an
    OME-Zarr image, ``exchange/data``, or what is likely by shapes and names. Flats, darks, image
    key and angles are given by their paths in the group, or are found by their names.

    Raises
    ------
    SourceError
        If it is not a scan, or a part of it is missing.
    """
    name, root = str(scan), open_zarr(scan)
    with library_errors(name), ExitStack() as opened:
        arrays = zarr_arrays(root)
        layout = _layout(name, root, arrays, options)
        files = () if is_url(scan) else _metadata_files(Path(scan), layout.data)
        frames = zarr_frames(name, arrays, layout.data, "data_path", files)
        keys = None
        if layout.image_key is not None:
            stored = zarr_array(name, arrays, layout.image_key, "image_key_path")
            keys = np.asarray(stored[...])
            check_image_key(f"{name}: {layout.image_key}", keys, frames.spec.shape[0])
            check_kinds(f"{name}: {layout.image_key}", keys)
        data = frames_of_kind(frames, keys, KIND_PROJECTION)
        if data is None:
            raise SourceError(f"{name}: {layout.image_key} marks no frame as a projection (0)")
        sides: dict[SideName, Selection | None] = {}
        for side in SIDE_NAMES:
            given, own = side_option(options, side), getattr(layout, side)
            if isinstance(given, SideData) and given.file is not None:
                sides[side] = open_side(
                    side,
                    given.file,
                    given,
                    opened,
                    allow_missing=options.allow_missing_frames,
                )
            elif given != "ignore" and own is not None:
                sides[side] = Selection.of(zarr_frames(name, arrays, own, f"{side} data_path"))
            elif given == "auto":
                sides[side] = side_of_kind(side, frames, keys)

        def angles_at(where: str) -> NDArray[np.float32]:
            stored = zarr_array(name, arrays, where, "rotation_angles")
            values = number_column(where, stored)
            if values is None:
                raise SourceError(f"{name}: {where} has not one angle a projection")
            return angles_of_column(f"{name}: {where}", values, unit_of(stored), options, data)

        def facts_of_group(layout: Layout) -> StoredFacts:
            used = [layout.data, layout.flats, layout.darks]
            parts = [arrays[each.strip("/")] for each in used if each is not None]
            members = ((f"/{where}", array) for where, array in arrays.items())
            return collect_facts(members, layout, data, lambda item: item in parts)

        currents = None
        if options.beam_current is not None:
            stored = zarr_array(name, arrays, options.beam_current, "beam_current")
            currents = number_column(options.beam_current, stored)
            if currents is None:
                raise SourceError(f"{name}: {options.beam_current} has not one current a frame")
        after = layout.flats_after if side_option(options, "flats") == "auto" else None
        angles, facts = find_angles(name, layout, options, data, angles_at, facts_of_group)
        if not options.dummies:
            add_constant_sides(sides, facts, options, data)
        source = FrameSource(
            frames.name,
            data,
            flats=sides.get("flats"),
            darks=sides.get("darks"),
            angles=angles,
            preview=options.preview,
            flats_after=None
            if after is None
            else Selection.of(zarr_frames(name, arrays, after, "flats")),
            dummies=dummies_of(options),
            currents=None if currents is None else currents.astype(np.float64),
            stored=facts,
            frames=frame_choices(options),
        )
        source.pixel_size = facts.pixel_size or _ome_pixel_size(root)
        opened.pop_all()
    return source


def _layout(name: str, root: Any, arrays: Mapping[str, Any], options: LoaderOptions) -> Layout:
    """Paths of the parts of a scan, those that are given first."""
    level = ome_level(root)
    layout: Layout | None = None
    if options.data_path != "auto":
        key = f"{options.data_path.strip('/').rpartition('/')[0]}/image_key".strip("/")
        layout = Layout(options.data_path, key if key in arrays else None)
    elif "" in arrays:
        layout = Layout("")
    elif level is not None:
        layout = Layout(level)
    else:
        for data, *parts in SEPARATE:
            if data in arrays:
                angles, flats, darks = (
                    next((each for each in names if each in arrays), None) for names in parts
                )
                is_before = flats is not None and flats.endswith("data_white_pre")
                after = parts[1][-1] if is_before and parts[1][-1] in arrays else None
                layout = Layout(data, angles=angles, flats=flats, flats_after=after, darks=darks)
    numbers = {f"/{n}": a for n, a in arrays.items() if np.dtype(a.dtype).kind in "iuf"}
    layout = layout or likely_layout(numbers, lambda entry: "")
    if layout is None:
        stacks = [f"{where} {array.shape}" for where, array in numbers.items() if array.ndim >= 3]
        listed = ", ".join(stacks[:_SHOWN]) or "none"
        raise SourceError(f"{name}: no scan is found in it: give data_path; 3D arrays: {listed}")
    if options.image_key_path != "auto":
        layout = replace(layout, image_key=options.image_key_path)
    for side in SIDE_NAMES:
        given = side_option(options, side)
        if isinstance(given, SideData) and given.file is None and given.data_path != "auto":
            layout = replace(layout, **{side: given.data_path})
    return layout


def _metadata_files(root: Path, data: str) -> tuple[Path, ...]:
    """Metadata of the frames' array in a folder: whoever replaces the array writes it anew."""
    if root.is_file():
        return (root,)
    places = (root / data.strip("/") / name for name in ("zarr.json", ".zarray"))
    return tuple(place for place in places if place.is_file())


def _ome_pixel_size(root: Any) -> PixelSize | None:
    """Distance of rows and columns by the scale of an image, where its axes have a unit."""
    image = ome_image(root)
    axes = image.get("axes") or []
    for transform in (image.get("datasets") or [{}])[0].get("coordinateTransformations") or []:
        sizes = transform.get("scale") or []
        if len(sizes) == len(axes) >= 2 and all(isinstance(axis, Mapping) for axis in axes):
            row, column = (
                length_um(f"{size} {axis.get('unit', '')}")
                for size, axis in zip(sizes[-2:], axes[-2:], strict=True)
            )
            if row and column:
                return PixelSize(row, column, "coordinateTransformations")
    return None
