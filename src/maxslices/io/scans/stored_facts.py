"""What is stored in a scan's file next to the frames, and the search for its rotation angles.

Where a layout has no place for the angles, they may be a column with a value for each frame, or be
stored as start, step, end and number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..frames.frames import Selection
from ..results.result_info import VOLUME_AXES, PixelSize, ScanFact
from .facts import (
    FactSearch,
    UnusedFact,
    n_shared_groups,
    number_column,
    one_fact,
    one_number,
    own_name,
    stored_pixel_size,
    unit_of,
)
from .layout import Layout, ScanFile

_ANGLE_NAME = re.compile(
    r"angle|theta|omega|(?<![a-z])rot|rot(?![a-z])|rotation|rz(?![a-z])", re.IGNORECASE
)
"""What names of data sets of angles have in them; srot, hrsrot and diffrz are motors of BLISS."""
_SET = re.compile(
    r"(.*_)?(set|set_?point|val|demand(ed)?|target(_value)?|request(ed)?|command(ed)?)",
    re.IGNORECASE,
)
"""Names of positions that were set and not measured: of GDA, EPICS, NXpositioner and Bluesky."""
_NOT_ANGLES = re.compile("time|velo|speed|accel|current|error|delta|trig|epoch", re.IGNORECASE)
"""What names of other columns of a rotation stage have in them."""
_WHOLE_SCAN = 170.0
"""Degrees that a scan covers at least; another stage that is recorded moves little or not."""


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


@dataclass(frozen=True, slots=True)
class AngleColumn:
    """A data set that may be the angles of a scan's projections."""

    where: str
    """Path in the file."""
    degrees: NDArray[np.float64]
    """Its values for the projections."""

    @classmethod
    def of(cls, where: str, values: NDArray[Any], unit: str) -> AngleColumn:
        """Column of values in degrees, or in radians if their unit says so."""
        numbers = values.astype(np.float64)
        in_radians = unit.lower().startswith("rad")
        return cls(where, np.rad2deg(numbers) if in_radians else numbers)

    @property
    def range(self) -> float:
        """Largest less smallest angle; 0 if any is not a number."""
        extent = float(np.ptp(self.degrees))
        return extent if np.isfinite(extent) else 0.0

    def agrees_with(self, other: AngleColumn) -> bool:
        """True if both are within a step of each other: set and measured, start and middle."""
        if self.degrees.shape != other.degrees.shape:
            return False
        step = float(np.median(np.abs(np.diff(self.degrees)))) if self.degrees.size > 1 else 0.0
        return float(np.abs(self.degrees - other.degrees).max()) <= max(step, 1e-3)

    def __str__(self) -> str:
        return f"{self.where} ({self.degrees[0]:g} to {self.degrees[-1]:g} degrees)"


def choose_column(columns: list[AngleColumn], data: str) -> tuple[AngleColumn | None, str]:
    """Choose the angles among data sets that may be.

    Those that agree within a step are one: of these, measured ones come before those that were
    set, then the one nearest to the frames. Of others, the only one that covers a whole scan.

    Parameters
    ----------
    columns : list of AngleColumn
        Data sets with a value for each projection.
    data : str
        Path of the frames.

    Returns
    -------
    (AngleColumn or None, str)
        The angles, if they can be told; and a list of data sets that differ.
    """
    near = data.strip("/").split("/")[:-1]

    def was_set(column: AngleColumn) -> bool:
        names = column.where.rpartition("/")[2], own_name(column.where)
        return any(_SET.fullmatch(name) for name in names)

    def order(column: AngleColumn) -> tuple[bool, int, int, str]:
        path = column.where.strip("/").split("/")
        return was_set(column), -n_shared_groups(near, path), len(column.where), column.where

    different: list[AngleColumn] = []
    for column in sorted((each for each in columns if each.range), key=order):
        if not any(column.agrees_with(each) for each in different):
            different.append(column)
    # Set positions may have another zero than the measured ones.
    different = [each for each in different if not was_set(each)] or different
    if len(different) < 2:
        return (different[0] if different else None), ""
    text = f"several data sets may be the angles: {', '.join(map(str, different))}"
    whole = [each for each in different if each.range >= _WHOLE_SCAN]
    if len(whole) == 1:
        return whole[0], f"{text}; {whole[0].where} is used, the only one of a whole scan"
    return None, f"{text}; choose one with rotation_angles"


def angles_by_steps(
    facts: tuple[ScanFact, ...], n_projections: int
) -> tuple[NDArray[np.float64] | None, str]:
    """Compute angles in degrees from start, step, end and number.

    A step is used with the start; else the angles go from start to end, or over the range, both
    ends included, as Data Exchange defines them.

    Returns
    -------
    (ndarray or None, str)
        The angles, one a projection, or None; and what does not fit, with the paths.
    """
    subjects = ("start", "step", "end", "range")
    found = {each: fact for each in subjects if (fact := one_fact(facts, f"rotation {each}"))}
    degrees = {name: _degrees(fact) for name, fact in found.items()}
    listed = ", ".join(
        f"{fact.where} = {fact}"
        for fact in facts
        if fact.subject.startswith("rotation ") or fact.subject == "number of angles"
    )
    count = one_number(facts, "number of angles")
    n = n_projections if count is None else round(count)
    start, step = degrees.get("start") or 0.0, degrees.get("step")
    extent = degrees.get("range")
    if extent is None and degrees.get("end") is not None and "start" in degrees:
        extent = (degrees["end"] or 0.0) - start
    fault = ""
    if n != n_projections:
        fault = f"{n} angles for {n_projections} projections ({listed}): the first ones are used"
    if step:
        if extent is not None and abs(abs(step) * n - abs(extent)) > 1.5 * abs(step):
            fault = f"{n} steps of {step:g} are not {extent:g} degrees ({listed})"
        return start + step * np.arange(n_projections, dtype=np.float64), fault
    if extent and n >= n_projections:
        return np.linspace(start, start + extent, n)[:n_projections].astype(np.float64), fault
    return None, f"the angles cannot be computed from {listed}" if listed else ""


def _degrees(fact: ScanFact) -> float | None:
    if isinstance(fact.value, str) or not np.isfinite(fact.value):
        return None
    value = float(fact.value)
    return float(np.rad2deg(value)) if fact.unit.lower().startswith("rad") else value


def is_angle_unit(unit: str) -> bool:
    """True for degrees and radians, and for columns without a unit."""
    return re.fullmatch(r"(deg(ree)?s?|rad(ian)?s?|°|none|null)?", unit, re.IGNORECASE) is not None


def may_be_angles(where: str, shape: tuple[int, ...]) -> bool:
    """True if a data set is a column with the name of angles."""
    name = own_name(where)
    is_named = _ANGLE_NAME.search(name) is not None and _NOT_ANGLES.search(name) is None
    return len(shape) == 1 and shape[0] > 1 and is_named
