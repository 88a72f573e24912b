"""What is stored in a scan's file next to the frames."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ..frames.frames import Selection
from ..results.result_info import VOLUME_AXES, PixelSize, ScanFact
from .angle_search import AngleColumn, choose_column, is_angle_unit, may_be_angles
from .facts import FactSearch, UnusedFact, number_column, stored_pixel_size, unit_of
from .layout import Layout, ScanFile


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

    layout: Layout
    """Paths of the parts of the scan."""
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


def facts_of_file(file: ScanFile, layout: Layout, projections: Selection) -> StoredFacts:
    """Read what an open file stores next to the frames of a layout.

    Parameters
    ----------
    file : ScanFile
        The file.
    layout : Layout
        Paths of the scan's parts. If it has no angles, they are searched for.
    projections : Selection
        The projections among the frames.
    """
    parts = layout.data, layout.flats, layout.darks
    used = [file.find(where) for where in parts if where is not None]  # may have other paths too
    stacks: list[Stack] = []
    columns: list[tuple[str, Any]] = []
    search = FactSearch(layout.data)
    for where, item in file.arrays():
        if item.ndim == 3 and item not in used:
            stacks.append(Stack(where, item.shape, str(item.dtype)))
        if may_be_angles(where, item.shape):
            columns.append((where, item))
        search.add(where, item)
    values = search.facts()
    pixel_size, why_unknown = stored_pixel_size(values)
    angle_note = ""
    if layout.angles is None:
        found, angle_note = choose_column(_columns(columns, projections), layout.data)
        layout = replace(layout, angles=None if found is None else found.where)
    return StoredFacts(
        layout=layout,
        values=values,
        stacks=tuple(stacks),
        pixel_size=pixel_size,
        pixel_size_note=why_unknown,
        unused=search.unused(values, projections.indices, pixel_size),
        angle_note=angle_note,
        **file.storage(layout.data, layout.image_key),
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
