"""Scans in Zarr and OME-Zarr: versions 2 and 3, sharded too, in a folder or at a URL of fsspec.

zarr-python reads the chunks of a block in parallel, by its own threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...errors import SourceError
from ..access import SIDE_NAMES, SideName
from ..check_arrays import check_dtype, without_ones
from ..frames.frames import (
    ArrayFrames,
    FrameIndices,
    Frames,
    FramesWritten,
    IndexRange,
    Selection,
    as_slice,
    with_axes,
)
from ..library_errors import library_errors
from ..paths import is_url
from ..results.result_info import PixelSize
from .angles import angles_of_column, find_angles
from .facts import length_um, number_column, unit_of
from .frame_source import FrameSource
from .hdf5_layout import SEPARATE, Layout
from .likely_parts import likely_layout
from .loader import LoaderOptions, SideData
from .side_data import (
    KIND_PROJECTION,
    add_constant_sides,
    check_image_key,
    check_kinds,
    dummies_of,
    frames_of_kind,
    open_side,
    side_of_kind,
    side_option,
)
from .stored_facts import StoredFacts, collect_facts

_SHOWN = 6
"""Most arrays that a message lists."""


class ZarrFrames:
    """Frames in a Zarr array of three dims, or with further dims of length 1 before them.

    Parameters
    ----------
    name : str
        Name of the stack in messages.
    array : zarr.Array
        The array.
    files : tuple of Path
        Local files whose change shows that the array was replaced.
    """

    def __init__(self, name: str, array: Any, files: tuple[Path, ...] = ()) -> None:
        self.name = name
        self.files: Iterable[Path] = files
        self._array = array
        shape = tuple(array.shape)
        n_first = max(0, len(shape) - 3)
        if len(shape) < 3 or 0 in shape or any(n != 1 for n in shape[:n_first]):
            raise SourceError(
                f"{name}: has the shape {shape}: a scan has three dims, (angles, detector_y, "
                f"detector_x){without_ones(shape)}"
            )
        self._first = (0,) * n_first
        dtype = check_dtype(name, np.dtype(array.dtype))
        self.spec = ArraySpec((shape[n_first], shape[n_first + 1], shape[n_first + 2]), dtype)
        self._chunk_rows = array.chunks[n_first + 1]

    @property
    def reads_rows(self) -> bool:
        """True if a chunk has a part of the rows: it is read and decompressed as a whole."""
        return bool(self._chunk_rows < self.spec.shape[1])

    def written(self, *, allow_missing: bool) -> FramesWritten:
        """All frames count as written: Zarr leaves out chunks of its fill value."""
        return FramesWritten()

    def read(
        self, frames: FrameIndices, rows: IndexRange, columns: IndexRange, out: NDArray[Any]
    ) -> None:
        """Read a part straight into `out`."""
        from zarr.core.buffer import default_buffer_prototype

        chosen = as_slice(frames)
        box = (*self._first, chosen, slice(*rows), slice(*columns))
        buffer = default_buffer_prototype().nd_buffer.from_numpy_array(out)
        with library_errors(f"{self.name}: frames {frames[0]}:{frames[-1] + 1}"):
            if isinstance(chosen, slice):
                self._array.get_basic_selection(box, out=buffer)
            else:
                self._array.get_orthogonal_selection(box, out=buffer)

    def close(self) -> None:
        """No effect: chunks are opened while they are read."""


def open_zarr(scan: str | os.PathLike[str]) -> Any:
    """Open a Zarr group or array.

    Raises
    ------
    SourceError
        If there is none, it cannot be reached, or a package to read it is missing.
    """
    try:
        import zarr
    except ImportError:
        raise SourceError(
            f"{scan}: Zarr is read by zarr, which is not installed: pip install "
            "'maxslices[ome-zarr]'"
        ) from None
    address = os.fspath(scan)
    is_zip = not is_url(scan) and address.lower().endswith(".zip")
    with library_errors(str(scan)):
        try:
            if is_zip:
                return zarr.open(zarr.storage.ZipStore(address, mode="r"), mode="r")
            return zarr.open(address, mode="r")
        except FileNotFoundError as error:
            raise SourceError(f"{scan}: there is no Zarr group or array ({error})") from None
        except (ImportError, ValueError) as error:  # a protocol without its package, or unknown
            raise SourceError(f"{scan}: cannot be opened: {error}") from None


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
        arrays = _arrays(root)
        layout = _layout(name, root, arrays, options)
        files = () if is_url(scan) else _metadata_files(Path(scan), layout.data)
        frames = _frames(name, arrays, layout.data, "data_path", files)
        keys = None
        if layout.image_key is not None:
            stored = _array(name, arrays, layout.image_key, "image_key_path")
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
                sides[side] = Selection.of(_frames(name, arrays, own, f"{side} data_path"))
            elif given == "auto":
                sides[side] = side_of_kind(side, frames, keys)

        def angles_at(where: str) -> NDArray[np.float32]:
            stored = _array(name, arrays, where, "rotation_angles")
            values = number_column(where, stored)
            if values is None:
                raise SourceError(f"{name}: {where} has not one angle a projection")
            return angles_of_column(f"{name}: {where}", values, unit_of(stored), options, data)

        def facts_of_group(layout: Layout) -> StoredFacts:
            used = [layout.data, layout.flats, layout.darks]
            parts = [arrays[each.strip("/")] for each in used if each is not None]
            members = ((f"/{where}", array) for where, array in arrays.items())
            return collect_facts(members, layout, data, lambda item: item in parts)

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
            dummies=dummies_of(options),
            stored=facts,
        )
        source.pixel_size = facts.pixel_size or _ome_pixel_size(root)
        opened.pop_all()
    return source


def zarr_side(side: SideName, path: Path, given: SideData) -> Selection:
    """Open flats or darks in a Zarr group or array of their own."""
    root, name = open_zarr(path), str(path)
    with library_errors(name):
        arrays = _arrays(root)
        options = LoaderOptions(data_path=given.data_path, image_key_path=None)
        where = _layout(name, root, arrays, options).data
        return Selection.of(_frames(name, arrays, where, f"{side} data_path"))


def _arrays(root: Any) -> dict[str, Any]:
    """All arrays by their path; one that is opened by itself has an empty path."""
    if not hasattr(root, "members"):
        return {"": root}
    return {name: item for name, item in root.members(max_depth=None) if hasattr(item, "chunks")}


def _layout(name: str, root: Any, arrays: Mapping[str, Any], options: LoaderOptions) -> Layout:
    """Paths of the parts of a scan, those that are given first."""
    level = _ome_level(root)
    layout: Layout | None = None
    if options.data_path != "auto":
        layout = Layout(options.data_path)
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
                layout = Layout(data, angles=angles, flats=flats, darks=darks)
    numbers = {f"/{n}": a for n, a in arrays.items() if np.dtype(a.dtype).kind in "iuf"}
    layout = layout or likely_layout(numbers, lambda entry: "")
    if layout is None:
        stacks = [f"{where} {array.shape}" for where, array in numbers.items() if array.ndim >= 3]
        listed = ", ".join(stacks[:_SHOWN]) or "none"
        raise SourceError(f"{name}: no scan is found in it: give data_path; 3D arrays: {listed}")
    if options.image_key_path != "auto":
        layout = Layout(layout.data, options.image_key_path, None, layout.angles)
    given = {side: side_option(options, side) for side in SIDE_NAMES}
    own = {
        side: each.data_path
        for side, each in given.items()
        if isinstance(each, SideData) and each.file is None and each.data_path != "auto"
    }
    return Layout(
        layout.data,
        layout.image_key,
        None,
        layout.angles,
        own.get("flats", layout.flats),
        own.get("darks", layout.darks),
    )


def _array(name: str, arrays: Mapping[str, Any], where: str, parameter: str) -> Any:
    found = arrays.get(where.strip("/"))
    if found is None:
        listed = ", ".join([*arrays][:_SHOWN])
        raise SourceError(f"{name}: {where} is not an array: give another {parameter}: {listed}")
    return found


def _frames(
    name: str,
    arrays: Mapping[str, Any],
    where: str,
    parameter: str,
    files: tuple[Path, ...] = (),
) -> Frames:
    array = _array(name, arrays, where, parameter)
    title = f"{name}:/{where.strip('/')}" if where else name
    if array.ndim == 2 and parameter != "data_path":  # one frame, such as the mean of flats
        return ArrayFrames(title, np.asarray(array[...])[np.newaxis])
    attributes = dict(array.attrs)
    axes = attributes.get("axes", attributes.get("_ARRAY_DIMENSIONS"))
    axes = axes or getattr(array.metadata, "dimension_names", None) or ()
    if isinstance(axes, str):
        axes = axes.replace(",", ":").split(":")
    return with_axes(ZarrFrames(title, array, files), [str(axis) for axis in axes])


def _metadata_files(root: Path, data: str) -> tuple[Path, ...]:
    """Metadata of the frames' array in a folder: whoever replaces the array writes it anew."""
    if root.is_file():
        return (root,)
    places = (root / data.strip("/") / name for name in ("zarr.json", ".zarray"))
    return tuple(place for place in places if place.is_file())


def _ome(root: Any) -> Mapping[str, Any]:
    """Description of the first image of OME-Zarr 0.4 or 0.5; empty without one."""
    attributes = dict(root.attrs)
    images = attributes.get("ome", attributes).get("multiscales") or [{}]
    image: Mapping[str, Any] = images[0]
    return image


def _ome_level(root: Any) -> str | None:
    """Path of the largest level of an image."""
    levels = _ome(root).get("datasets") or []
    return str(levels[0]["path"]) if levels else None


def _ome_pixel_size(root: Any) -> PixelSize | None:
    """Distance of rows and columns by the scale of an image, where its axes have a unit."""
    image = _ome(root)
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
