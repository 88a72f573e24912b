"""What is stored in a scan's file next to the frames."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ...errors import SourceError
from ..frames.frames import Selection
from ..hdf5.frames import stored_axes
from ..hdf5.links import FileObjects, look_up
from ..hdf5.open_hdf5 import open_file
from ..library_errors import library_errors
from ..paths import check_readable, is_hdf5
from ..results.result_info import VOLUME_AXES, PixelSize, ScanFact
from .angle_search import AngleColumn, choose_column, is_angle_unit, may_be_angles
from .facts import FactSearch, UnusedFact, number_column, stored_pixel_size, unit_of
from .hdf5_layout import Layout, find_layout
from .loader import LoaderOptions


@dataclass(frozen=True, slots=True)
class Stack:
    """A 3D data set."""

    where: str
    """Path in the file."""
    shape: tuple[int, ...]
    """Its shape."""
    dtype: str
    """Its dtype."""


@dataclass(frozen=True, slots=True)
class StoredFacts:
    """What a file says of a scan without its frames being read."""

    layout: Layout | None
    """Paths of the parts of the scan; None if no layout is recognised."""
    values: tuple[ScanFact, ...]
    """Energy, distance, sizes and the like; of several that differ, all."""
    stacks: tuple[Stack, ...]
    """Other 3D data sets."""
    pixel_size: PixelSize | None
    """Size of a pixel at the sample; None if it is not known."""
    pixel_size_note: str
    """Why it is not known, although sizes are stored; else empty."""
    unused: tuple[UnusedFact, ...]
    """What changes a reconstruction and is not applied."""
    angle_note: str
    """Which data sets may be the angles, where several differ; else empty."""
    axes: tuple[str, ...] = ()
    """Names of the axes of the frames, as NeXus has them; none if they are not stored."""
    chunks: tuple[int, ...] | None = None
    """Chunk of the frames; None if they lie in one piece, or are elsewhere."""
    compression: str = ""
    """Filters of the frames by name; empty without."""
    stored_bytes: int = 0
    """Bytes of the frames in the file; 0 if they are in others, or were not counted."""
    frame_kinds: dict[int, int] = field(default_factory=dict)
    """Number of frames of each value of the image key."""
    is_complete: bool = True
    """False if the file has more objects than are looked at."""

    @property
    def is_volume(self) -> bool:
        """True if the frames are slices of a reconstruction, as results are written."""
        return self.axes == VOLUME_AXES


def stored_facts(path: Path, layout: Layout | None = None) -> StoredFacts | None:
    """Read what an HDF5 file stores next to the frames; None for other kinds of scans.

    Without a layout it is searched for.

    Raises
    ------
    SourceError
        If the file cannot be opened, or is damaged.
    """
    if check_readable(path) == "folder" or not is_hdf5(path):
        return None
    with open_file(path) as file, library_errors(str(path)):
        if layout is None:
            with suppress(SourceError):
                layout = find_layout(path, file, LoaderOptions())
        return facts_of_file(file, layout)


def facts_of_file(
    file: h5py.File, layout: Layout | None, projections: Selection | None = None
) -> StoredFacts:
    """Read what an open file stores next to the frames of a layout.

    Parameters
    ----------
    file : h5py.File
        The file.
    layout : Layout or None
        Paths of the scan's parts. If it has no angles, they are searched for.
    projections : Selection, optional
        The projections among the frames.
    """
    used = [] if layout is None else [*_used(file, layout)]
    objects = FileObjects(file, follows_links=False)  # where they lead to, a pipe may wait
    data_sets = ((where, item) for where, item in objects if isinstance(item, h5py.Dataset))
    stored = collect_facts(data_sets, layout, projections, lambda item: item in used)
    frames = None if layout is None else _data_set(file, layout.data)
    key = None if layout is None else layout.image_key
    return replace(
        stored,
        axes=() if frames is None else stored_axes(frames),
        chunks=None if frames is None else frames.chunks,
        compression="" if frames is None else _filters(frames),
        stored_bytes=0 if frames is None else int(frames.id.get_storage_size()),
        frame_kinds={} if key is None else _kinds(_data_set(file, key)),
        is_complete=objects.is_complete,
    )


def collect_facts(
    data_sets: Iterable[tuple[str, Any]],
    layout: Layout | None,
    projections: Selection | None,
    is_used: Callable[[Any], bool],
) -> StoredFacts:
    """Collect facts, other stacks, and the angles where a layout has none.

    Parameters
    ----------
    data_sets : iterable of (str, h5py.Dataset or zarr.Array)
        Data sets of a file with their paths.
    layout : Layout or None
        Paths of the scan's parts.
    projections : Selection, optional
        The projections among the frames.
    is_used : callable
        Whether a stack is a part of the scan.
    """
    stacks: list[Stack] = []
    columns: list[tuple[str, Any]] = []
    search = FactSearch("" if layout is None else layout.data)
    for where, item in data_sets:
        if item.ndim == 3 and not is_used(item):
            stacks.append(Stack(where, item.shape, str(item.dtype)))
        if may_be_angles(where, item.shape):
            columns.append((where, item))
        search.add(where, item)
    values = search.facts()
    pixel_size, why_unknown = stored_pixel_size(values)
    angle_note = ""
    if layout is not None and layout.angles is None and projections is not None:
        found, angle_note = choose_column(_columns(columns, projections), layout.data)
        layout = replace(layout, angles=None if found is None else found.where)
    unused = () if projections is None else search.unused(values, projections.indices, pixel_size)
    return StoredFacts(
        layout=layout,
        values=values,
        stacks=tuple(stacks),
        pixel_size=pixel_size,
        pixel_size_note=why_unknown,
        unused=unused,
        angle_note=angle_note,
    )


def _columns(columns: list[tuple[str, Any]], projections: Selection) -> list[AngleColumn]:
    """Columns with a value for each projection, perhaps among those of flats and darks."""
    n_projections, n_frames = projections.spec.shape[0], projections.frames.spec.shape[0]
    found = []
    for where, stored in columns:
        if stored.size not in (n_projections, n_frames):
            continue
        values = number_column(where, stored)
        unit = unit_of(stored).lower()
        if values is not None and is_angle_unit(unit):
            of_all = values.size != n_projections
            values = values[projections.indices] if of_all else values
            found.append(AngleColumn.of(where, values, unit))
    return found


def _used(file: h5py.File, layout: Layout) -> Iterator[h5py.Dataset | None]:
    """Data sets with the frames of a scan, which may have other paths too."""
    for where in (layout.data, layout.flats, layout.darks):
        if where is not None:
            yield _data_set(file, where)


def _data_set(file: h5py.File, where: str) -> h5py.Dataset | None:
    item = look_up(file, where)
    return item if isinstance(item, h5py.Dataset) else None


def _filters(frames: h5py.Dataset) -> str:
    """Names of the filters of a data set, as its file has them."""
    settings = frames.id.get_create_plist()
    names = []
    for number in range(settings.get_nfilters()):
        code, _, _, name = settings.get_filter(number)
        names.append(name.decode(errors="replace").split(";")[0].strip() or f"filter {code}")
    return ", ".join(names)


def _kinds(key: h5py.Dataset | None) -> dict[int, int]:
    if key is None or key.ndim != 1 or not np.issubdtype(key.dtype, np.number):
        return {}
    values, counts = np.unique(key[()], return_counts=True)
    return {int(v): int(n) for v, n in zip(values, counts, strict=True) if math.isfinite(v)}
