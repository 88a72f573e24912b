"""Facts that are stored next to the frames of a scan: a table of their paths, and the search.

A fact is found if it has one value, or several equal ones. If several values differ, the one whose
path is nearest to the frames is used. Without a nearest one, no value is used, and all are listed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError, UsageError
from ..files import library_errors
from ..frames.frames import Selection
from ..hdf5.objects import read_attribute
from ..results.result_info import VOLUME_AXES, PixelSize, ScanFact
from .layout import Layout, ScanFile, own_name

_TABLE: Mapping[str, tuple[str, ...]] = {
    "title": ("title", "note|scan_command"),
    # In Data Exchange of APS 13-BM, measurement/instrument/sample has the name of the stages.
    "sample": ("(?<!instrument/)sample/name|sample_name",),
    "description": ("(?<!instrument/)sample/description(_1)?",),
    "started": ("start_time|start_date",),
    "ended": ("end_time|end_date",),
    "instrument": ("instrument/name",),
    "source": ("source/name",),
    "beamline": ("source/beamline|beamline",),
    # The energy of the source is the energy of its electrons.
    "energy": (
        "beam/incident_energy|monochromator/energy",
        "incident_energy|monochromatic_energy|x_eng",
        "(?<!source/)energy",
    ),
    "wavelength": ("incident_wavelength|wavelength",),
    "distance": (
        "detector/distance|sample_detector_distance|detector_distance|camera_distance",
        "(?<!source/)distance",
    ),
    "propagation distance": ("propagation_distance|effective_propagation_distance",),
    "exposure": ("count_time|exposure_time",),
    "magnification": ("(objective|detector)/magnification", "magnification"),
    "axis position": (
        "x_rotation_axis_pixel_position|estimated_cor_from_motor",
        "rotation_center|rotation_axis_position",
    ),
    "rotation start": ("rotation_start|rotation_start_angle|start_angle",),
    "rotation step": ("rotation_step|angular_step|angle_step",),
    "rotation end": ("rotation_(end|stop)(_angle)?|end_angle|stop_angle",),
    "rotation range": ("rotation/range|rotation_range|angular_range|scan_range",),
    "number of angles": (
        "num(ber_of)?_(angles|projections)|n_?(angles|projections)|n_angle|tomo_n",
    ),
    "flat value": ("flat_field_value",),
    "dark value": ("dark_field_value",),
    # Sizes at the sample: nxtomo and nxtomomill (sample,
    # x_magnified_pixel_size), tomoScan (resolution), Data Exchange (actual_pixel_size_x), BLISS
    # (sample_pixel_size), NSLS-II FXI ("Pixel Size" at the root), and results of this package.
    "row size": (
        "sample/(y_pixel_size|pixel_size_y|pixel_size)",
        "objective/(resolution|pixel_size)|actual_pixel_size_y|y_magnified_pixel_size|"
        "sample_pixel_size|effective_pixel_size(_y)?",
        r"\A((?-i:Pixel Size)|entry/y_pixel_size)",
    ),
    "column size": (
        "sample/(x_pixel_size|pixel_size_x|pixel_size)",
        "objective/(resolution|pixel_size)|actual_pixel_size_x|x_magnified_pixel_size|"
        "sample_pixel_size|effective_pixel_size(_x)?",
        r"\A((?-i:Pixel Size)|entry/x_pixel_size)",
    ),
    "detector row size": ("y_pixel_size|pixel_size_y", "pixel_size|real_y_pixel_size|pixelsize"),
    "detector column size": ("x_pixel_size|pixel_size_x", "pixel_size|real_x_pixel_size|pixelsize"),
    "row binning": ("binning_y", "binning"),
    "column binning": ("binning_x", "binning"),
    "field of view": ("field_of_view",),
    "flipped columns": ("x_flipped",),
    "flipped rows": ("y_flipped",),
    "detector rotation": ("detector/transformations/r[xyz]",),
    "tilt": ("((z_)?camera_|axis_|rotation_axis_)?tilt(_angle)?|lamino(graphy)?_angle",),
    # s_stage_x moves the sample at DESY's P05 and P07.
    "sample shift along x": ("(?<!instrument/)sample/x_translation|x_shifts?|s_stage_x(/value)?",),
    "sample shift along y": ("(?<!instrument/)sample/y_translation|y_shifts?",),
    "sample shift along z": ("(?<!instrument/)sample/z_translation",),
}
"""Subject of a fact -> regular expressions of ends of paths, the most trusted first."""
_COMPILED = {
    subject: [re.compile(rf"(?:.*/)?(?:{end})", re.IGNORECASE) for end in ends]
    for subject, ends in _TABLE.items()
}
PER_FRAME = ("sample shift along x", "sample shift along y", "sample shift along z")
"""Subjects with a value for each frame."""
_MOST_VALUES = 2**20
"""Largest array that is read to compare its values."""
_MOST_CHARACTERS = 1000
"""Longest text of a fact."""
CONFLICT = 0.01
"""Relative difference above which two values disagree; energies are rounded to three digits."""
_UM = {
    "m": 1e6, "meter": 1e6, "metre": 1e6, "cm": 1e4, "mm": 1e3, "millimeter": 1e3,
    "millimetre": 1e3, "um": 1.0, "µm": 1.0, "μm": 1.0, "micron": 1.0, "micrometer": 1.0,
    "micrometre": 1.0, "nm": 1e-3, "nanometer": 1e-3, "nanometre": 1e-3,
}  # fmt: skip
"""Unit as written by beamlines, without plural s -> micrometres."""
_TIMES = re.compile(r"\s*x?\s*([0-9]+(?:\.[0-9]*)?)\s*x?\s*", re.IGNORECASE)
"""A magnification as text: 5x, x5, 5."""
_SIZE = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*(\S+)\s*")


_EFFECTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "field of view": (
        "a half-acquisition, whose halves sino_360_to_180 stitches",
        ("sino_360_to_180",),
    ),
    "flipped columns": ("columns of the detector are flipped, so slices are mirrored", ()),
    "flipped rows": ("rows of the detector are flipped, so slices are in reverse order", ()),
    "detector rotation": ("the detector is flipped or rotated", ()),
    "tilt": ("the axis of rotation is not along the detector's columns", ()),
}
"""Subject -> its effect on a reconstruction, and methods that apply it."""


@dataclass(frozen=True, slots=True)
class UnusedFact:
    """A stored fact that affects a reconstruction and is not applied when the scan is read."""

    text: str
    """Its path, value and effect."""
    methods: tuple[str, ...] = ()
    """Names of methods that apply it."""


class FactSearch:
    """Collects facts, and columns that may be angles, from the data sets of a file.

    Parameters
    ----------
    near : str
        Path of the frames. A file may have several scans, so among equally trusted facts, the one
        that shares most groups with the frames is used.
    """

    def __init__(self, near: str) -> None:
        self._near = near
        self._found: dict[str, list[tuple[tuple[int, int, int], str, h5py.Dataset]]] = {}

    def add(self, where: str, stored: h5py.Dataset) -> None:
        """Add a data set if its path is that of a fact."""
        path = where.strip("/")
        if "/parameters/" in path:  # of a step of a result
            return
        for subject, ends in _COMPILED.items():
            for rank, end in enumerate(ends):
                if end.fullmatch(path):
                    place = rank, -n_shared_groups(self._near, path), path.count("/")
                    self._found.setdefault(subject, []).append((place, where, stored))
                    break

    def facts(self) -> tuple[ScanFact, ...]:
        """Facts in the order of the table, with all values of those that differ."""
        return tuple(
            fact for subject in _TABLE if subject not in PER_FRAME for fact in self._best(subject)
        )

    def unused(
        self, facts: tuple[ScanFact, ...], projections: NDArray[Any], pixel_size: PixelSize | None
    ) -> tuple[UnusedFact, ...]:
        """Facts that affect a reconstruction and are not applied.

        Parameters
        ----------
        facts : tuple of ScanFact
            Facts with one value.
        projections : ndarray of int
            Indices of the projections among the frames. The sample is moved out for flats.
        pixel_size : PixelSize, optional
            Motion of less than half a pixel is ignored as noise of an encoder.
        """
        unused = [
            UnusedFact(f"{fact.where} = {fact} is not applied: {effect}", methods)
            for subject, (effect, methods) in _EFFECTS.items()
            for fact in facts
            if fact.subject == subject and _has_effect(fact)
        ]
        for subject in PER_FRAME:
            for _, where, stored in sorted(self._found.get(subject, []), key=lambda each: each[0]):
                values = number_column(where, stored)
                if values is None or values.size <= projections.max(initial=0):
                    continue
                moved, unit = float(np.ptp(values[projections].astype(np.float64))), unit_of(stored)
                um = length_um(f"{moved:g} {unit}")
                least_um = 0.1 if pixel_size is None else pixel_size.column_um / 2
                if moved > 0 and (um is None or um >= least_um):
                    text = (
                        f"{where} is not applied: the sample moves by {moved:.4g} {unit}".rstrip()
                    )
                    unused.append(UnusedFact(f"{text} between projections"))
                break
        return tuple(unused)

    def _best(self, subject: str) -> list[ScanFact]:
        """The most trusted values: one, or several different ones."""
        best: list[ScanFact] = []
        place_of_best = None
        for place, where, stored in sorted(self._found.get(subject, []), key=lambda each: each[0]):
            if place_of_best is not None and place != place_of_best:
                break
            try:
                with library_errors(where):
                    value = _fact(stored)
            except SourceError:  # a damaged fact does not prevent reading the frames
                continue
            if value is None:
                continue
            fact = ScanFact(subject, *value, where.encode(errors="backslashreplace").decode())
            if subject.endswith("size") and fact.value == 0:  # EPICS stores 0 for unset values
                continue
            place_of_best = place
            if not any(_is_same(fact, each) for each in best):
                best.append(fact)
        return best


def _is_same(one: ScanFact, other: ScanFact) -> bool:
    """True if two facts have the same value, perhaps as lengths in different units."""
    um, other_um = _um(one), _um(other)
    if um is not None and other_um is not None:
        return math.isclose(um, other_um, rel_tol=1e-6)
    return one.value == other.value and one.unit == other.unit


def _has_effect(fact: ScanFact) -> bool:
    """True for a field of view of Half, a flip, and an angle or tilt other than 0."""
    if isinstance(fact.value, str):
        return fact.value.lower() in ("half", "true")
    return math.isfinite(fact.value) and fact.value != 0


def one_fact(facts: tuple[ScanFact, ...], subject: str) -> ScanFact | None:
    """The fact of a subject; None if it is missing, or several values differ."""
    of_subject = [fact for fact in facts if fact.subject == subject]
    return of_subject[0] if len(of_subject) == 1 else None


def one_number(facts: tuple[ScanFact, ...], subject: str) -> float | None:
    """Finite number of a subject; None if it is missing, text, or has several values."""
    fact = one_fact(facts, subject)
    if fact is None or isinstance(fact.value, str) or not math.isfinite(fact.value):
        return None
    return float(fact.value)


def _magnification(facts: tuple[ScanFact, ...]) -> float | None:
    """Magnification of the optics, stored as a number or as 5x; None if unknown."""
    fact = one_fact(facts, "magnification")
    match = None if fact is None else _TIMES.fullmatch(str(fact.value))
    times = 0.0 if match is None else float(match[1])
    return times if math.isfinite(times) and times > 0 else None


def stored_pixel_size(facts: tuple[ScanFact, ...]) -> tuple[PixelSize | None, str]:
    """Pixel size at the sample; None with a reason if stored sizes cannot be used.

    The size of a detector pixel is multiplied by the binning and divided by the magnification of
    the optics. Without a magnification it is not used: a parallel beam does not magnify, but a
    microscope between scintillator and camera does.
    """
    row, column = _effective(facts, "row"), _effective(facts, "column")
    row, column = row or column, column or row
    if row is not None and column is not None:
        return PixelSize(row[0], column[0], ", ".join(dict.fromkeys((row[1], column[1])))), ""
    stored = [fact for fact in facts if fact.subject.endswith(("row size", "column size"))]
    if not stored:
        return None, ""
    listed = ", ".join(dict.fromkeys(f"{fact.where} = {fact}" for fact in stored))
    why = "several values differ, or their unit is unknown"
    is_of_detector = all(f.subject.startswith("detector") and _um(f) for f in stored)
    if is_of_detector and _magnification(facts) is None:
        why = "this is the size of detector pixels, and the magnification is unknown"
    return None, f"no pixel size at the sample is known ({listed}): {why}; give it with pixel_size"


def _effective(facts: tuple[ScanFact, ...], axis: str) -> tuple[float, str] | None:
    """Pixel distance of rows or columns at the sample in micrometres, and its paths."""
    fact = one_fact(facts, f"{axis} size")
    if fact is not None and (um := _um(fact)) is not None:
        return um, fact.where
    fact, magnified = one_fact(facts, f"detector {axis} size"), one_fact(facts, "magnification")
    times = _magnification(facts)
    if fact is None or magnified is None or times is None:
        return None
    um, binning = _um(fact), one_number(facts, f"{axis} binning") or 1.0
    if um is None:
        return None
    return float(f"{um * binning / times:.9g}"), f"{fact.where} / {magnified.where}"


def parse_pixel_size(size: str | float) -> PixelSize:
    """Parse a pixel size: ``3.25um``, or a number of micrometres.

    Raises
    ------
    UsageError
        If it is not a length.

    Examples
    --------
    >>> parse_pixel_size("0.65 um").row_um, parse_pixel_size("0.00325mm").row_um
    (0.65, 3.25)
    """
    um: float | None = None
    if isinstance(size, str):
        um = length_um(size)
    elif isinstance(size, int | float | np.integer | np.floating):
        um = float(size)
    if um is None or not (math.isfinite(um) and um > 0):
        raise UsageError(
            f"the pixel size {size!r} is not a length: give a number with a unit, such as 3.25um"
        )
    return PixelSize(um, um, "given")


def ome_pixel_size(image: Mapping[str, Any]) -> PixelSize | None:
    """Pixel size from the scale of an OME image whose axes have units."""
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


def length_um(text: str) -> float | None:
    """Parse a number with a unit to micrometres; None if it is not a length."""
    match = _SIZE.fullmatch(re.sub(r"/\s*(px|pix|pixel)\s*\Z", "", text, flags=re.IGNORECASE))
    factor = None if match is None else _UM.get(match[2].lower().removesuffix("s"))
    if match is None or factor is None:
        return None
    try:
        return float(f"{float(match[1]) * factor:.9g}")  # 3.25e-06 m is 3.25 um
    except ValueError:
        return None


def _um(fact: ScanFact) -> float | None:
    """Positive length of a fact in micrometres; None for other facts."""
    um = length_um(f"{fact.value} {fact.unit}".strip())
    return um if um is not None and math.isfinite(um) and um > 0 else None


def n_shared_groups(one: str, other: str) -> int:
    """Number of groups that two paths have in common."""
    groups = (path.strip("/").split("/")[:-1] for path in (one, other))
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*groups, strict=False)))


def _fact(stored: h5py.Dataset) -> tuple[Any, str] | None:
    """Value and unit of a data set with one value or equal values; None for others."""
    if stored.size == 1:
        value = np.ravel(stored[()])[0]
    else:
        column = number_column(stored.name, stored)
        if column is None or not (column == column[0]).all():
            return None
        value = column[0]
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        text = value.strip()[:_MOST_CHARACTERS]
        return (text, unit_of(stored)) if text else None
    if not isinstance(value, np.bool_ | np.integer | np.floating):
        return None
    plain = value.item()
    if isinstance(value, np.floating) and value.itemsize < 8:
        plain = float(str(value))  # 0.65 and not 0.6499999761581421
    return plain, unit_of(stored)


def number_column(where: str, stored: h5py.Dataset) -> NDArray[Any] | None:
    """Numbers of a one-dimensional data set; None for others."""
    is_column = stored.ndim == 1 and 0 < stored.size <= _MOST_VALUES
    if not is_column or stored.dtype.kind not in "biuf":
        return None
    try:
        with library_errors(where):
            values: NDArray[Any] = stored[()]
            return values
    except SourceError:
        return None


def unit_of(stored: h5py.Dataset) -> str:
    """Stored unit of a data set; empty without one."""
    unit = np.ravel(np.asarray(read_attribute(stored, "units", "")))
    text = unit[0] if unit.size else ""
    return (text.decode(errors="replace") if isinstance(text, bytes) else str(text)).strip()


_ANGLE_NAME = re.compile(
    r"angle|theta|omega|(?<![a-z])rot|rot(?![a-z])|rotation|rz(?![a-z])", re.IGNORECASE
)
"""Pattern of names of angles; srot, hrsrot and diffrz are motors of BLISS."""
_NOT_ANGLES = re.compile("time|velo|speed|accel|current|error|delta|trig|epoch", re.IGNORECASE)
"""Pattern of names of other columns of a rotation stage."""


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
    """Facts of a scan in its file, without its frames."""

    layout: Layout
    """Paths of the parts of the scan."""
    values: tuple[ScanFact, ...]
    """Energy, distance, sizes and other facts, with all values of those that differ."""
    stacks: tuple[Stack, ...]
    """Other 3D data sets."""
    pixel_size: PixelSize | None
    """Pixel size at the sample; None if unknown."""
    pixel_size_note: str
    """Why the pixel size is unknown although sizes are stored; else empty."""
    unused: tuple[UnusedFact, ...]
    """Facts that affect a reconstruction and are not applied."""
    angle_note: str = ""
    """Data sets that may be the angles, if several differ; else empty."""
    axes: tuple[str, ...] = ()
    """Names of the axes of the frames in NeXus; empty if they are not stored."""
    chunks: tuple[int, ...] | None = None
    """Chunk of the frames; None if they are contiguous or in other files."""
    compression: str = ""
    """Names of the filters of the frames; empty without filters."""
    stored_bytes: int = 0
    """Size of the frames in the file; 0 if they are in other files, or unknown."""
    frame_kinds: dict[int, int] = field(default_factory=dict)
    """Number of frames of each value of the image key."""
    is_complete: bool = True
    """False if the file has more objects than the search covers."""

    @property
    def is_volume(self) -> bool:
        """True if the frames are slices of a reconstruction written by a run."""
        return self.axes == VOLUME_AXES


def facts_of_file(
    file: ScanFile, layout: Layout, projections: Selection
) -> tuple[StoredFacts, dict[str, Any]]:
    """Read the facts stored next to the frames of an open file, without the angles.

    Parameters
    ----------
    file : ScanFile
        The file.
    layout : Layout
        Paths of the scan's parts.
    projections : Selection
        The projections among the frames.

    Returns
    -------
    (StoredFacts, dict of str to data set)
        The facts, and the data sets that may be the angles by their names and dims.
    """
    parts = layout.data, layout.flats, layout.darks
    used = [file.find(where) for where in parts if where is not None]  # also under other paths
    stacks: list[Stack] = []
    columns: dict[str, Any] = {}
    search = FactSearch(layout.data)
    for where, item in file.arrays():
        if item.ndim == 3 and item not in used:
            stacks.append(Stack(where, item.shape, str(item.dtype)))
        name = own_name(where)
        if item.ndim == 1 and _ANGLE_NAME.search(name) and not _NOT_ANGLES.search(name):
            columns[where] = item
        search.add(where, item)
    values = search.facts()
    pixel_size, why_unknown = stored_pixel_size(values)
    stored = StoredFacts(
        layout=layout,
        values=values,
        stacks=tuple(stacks),
        pixel_size=pixel_size,
        pixel_size_note=why_unknown,
        unused=search.unused(values, projections.indices, pixel_size),
        **file.storage(layout.data, layout.image_key),
    )
    return stored, columns
