"""Options of a loader: the parts of a scan, where they are, and how a pipeline file says so."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...core.parameters import matches, nearest
from ...errors import SourceError
from ..access import SideName

AXES = ("angles", "detector_y", "detector_x")
"""Names of the axes of a scan in a preview."""


@dataclass(frozen=True, slots=True)
class AngleRange:
    """Equally spaced angles."""

    start: float
    """First angle in degrees."""
    stop: float
    """Last angle in degrees, included."""
    count: int
    """Number of angles; compared with the scan before they are computed."""

    def degrees(self) -> NDArray[np.float64]:
        """The angles in degrees."""
        return np.linspace(self.start, self.stop, self.count)


@dataclass(frozen=True, slots=True)
class AngleFile:
    """Angles in another file than the scan's."""

    file: Path
    """An HDF5 file, or text with angles in degrees."""
    data_path: str | None = None
    """Data set in an HDF5 file."""


@dataclass(frozen=True, slots=True)
class FrameChoice:
    """Which frames of the flats, or of the darks, are read."""

    indices: tuple[int, ...]
    """Indices among the flats or darks, from 0."""
    are_left_out: bool = False
    """Whether these are left out, and all others are read."""

    def of(self, n_frames: int, name: str) -> NDArray[np.int64]:
        """Increasing indices of the frames that are read.

        Raises
        ------
        SourceError
            If an index is beyond the frames `name`, or no frame is left.
        """
        given = np.unique(np.array(self.indices, np.int64))
        if given.size and not 0 <= given[0] <= given[-1] < n_frames:
            raise SourceError(
                f"{name}: frames has {given[0] if given[0] < 0 else given[-1]}, and there are "
                f"frames 0 to {n_frames - 1}"
            )
        if self.are_left_out:
            given = np.setdiff1d(np.arange(n_frames), given)
        if not given.size:
            raise SourceError(f"{name}: frames leaves none of {n_frames}: read one at least")
        return given


@dataclass(frozen=True, slots=True)
class SideData:
    """Flats or darks that are not searched for with the projections, or some of them."""

    file: Path | None
    """A file, or a folder of TIFFs; None for the file of the scan."""
    data_path: str = "auto"
    """Data set in an HDF5 file; ``"auto"``: what its layout marks as flats or darks."""
    image_key_path: str | None = None
    """Image key that selects the frames; None selects all frames of a `data_path`."""
    frames: FrameChoice | None = None
    """Which of these are read; None reads all."""

    @property
    def is_auto(self) -> bool:
        """Whether it only selects among the frames that are found with the projections."""
        return self == SideData(None, frames=self.frames) and self.frames is not None


@dataclass(frozen=True, slots=True)
class AxisIndex:
    """An index relative to the beginning, middle or end of an axis, clipped to the axis."""

    keyword: str
    """Origin of the offset: "begin", "mid" or "end"."""
    offset: int = 0
    """Indices after the origin; may be negative."""

    def index(self, length: int) -> int:
        """Index along an axis of `length`."""
        mid = sum(middle_bounds(length)) // 2
        place = {"begin": 0, "mid": mid, "end": length}[self.keyword]
        return min(max(0, place + self.offset), length)


def middle_bounds(length: int) -> tuple[int, int]:
    """Compute (start, stop) of the middle of an axis, as httomo's ``mid`` means it.

    Three indices if the length is even, two if it is odd; all of 2 or 3.

    Examples
    --------
    >>> middle_bounds(10), middle_bounds(11), middle_bounds(3)
    ((3, 6), (4, 6), (0, 3))
    """
    half = length // 2
    if half <= 1:
        return 0, length
    return (half - 1 if length % 2 else half - 2), half + 1


Bound = int | AxisIndex | None
"""Start or stop of a part; None for that of the axis."""
Part = tuple[Bound, Bound] | Literal["mid"]
"""Part of an axis: (start, stop), or its middle (`middle_bounds`)."""


@dataclass(frozen=True, slots=True)
class Preview:
    """A part of a scan: (start, stop) along each axis, stop excluded."""

    angles: tuple[Bound, Bound] = (None, None)
    """Frames as they are stored, darks and flats among the projections included; the projections
    among them are read."""
    detector_y: Part = (None, None)
    """Detector rows."""
    detector_x: Part = (None, None)
    """Detector columns."""
    angle_step: int = 1
    """Every how many of the projections among `angles` are read."""

    def bounds(self, axis: int, length: int, name: str) -> tuple[int, int]:
        """Compute (start, stop) along an axis of `length`.

        Raises
        ------
        SourceError
            If it is empty or reaches beyond the scan `name`.
        """
        ends: Part = (self.angles, self.detector_y, self.detector_x)[axis]
        if ends == "mid":
            return middle_bounds(length)
        start, stop = (end.index(length) if isinstance(end, AxisIndex) else end for end in ends)
        start, stop = 0 if start is None else start, length if stop is None else stop
        if not 0 <= start < stop <= length:
            raise SourceError(
                f"{name}: preview {AXES[axis]} {start}:{stop} is not within the scan's "
                f"{length}; give 0 <= start < stop <= {length}"
            )
        return start, stop


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """Parts of a scan that are not in its file, or not at a usual place.

    The fields are the parameters of httomo's ``standard_tomo`` loader.
    """

    data_path: str = "auto"
    """Data set of the frames in an HDF5 file; ``"auto"``: search for it."""
    image_key_path: str | None = "auto"
    """Data set with the kind of each frame; ``"auto"``: search for it; None: projections only."""
    rotation_angles: str | AngleRange | AngleFile | Sequence[float] | NDArray[Any] = "auto"
    """``"auto"``, the path of a data set, a file, a range, or a list in degrees. They have an angle
    for each projection, for each of the preview, or for each frame."""
    flats: SideData | Literal["auto", "ignore"] = "auto"
    """Flats; ``"auto"``: those found with the projections; ``"ignore"``: a frame of ones."""
    darks: SideData | Literal["auto", "ignore"] = "auto"
    """Darks; ``"auto"``: those found with the projections; ``"ignore"``: a frame of zeros."""
    beam_current: str | None = None
    """Current of the beam for each frame: ``"auto"``, a path, or None. Flats are scaled by it."""
    dummies: bool = False
    """Whether flats and darks that are not found are replaced as those to ignore are."""
    preview: Preview = Preview()
    """Part of the scan to read."""
    allow_missing_frames: bool = False
    """Whether frames that were never written are read as the fill value. Whoever runs a pipeline
    says so, not the pipeline's file."""

    def side(self, side: SideName) -> SideData | Literal["auto", "ignore"]:
        """Option for the flats or for the darks, without the frames that it selects."""
        given = self.flats if side == "flats" else self.darks
        return "auto" if isinstance(given, SideData) and given.is_auto else given

    def choice(self, side: SideName) -> FrameChoice | None:
        """Which of the flats, or of the darks, are read; None reads all."""
        given = self.flats if side == "flats" else self.darks
        return given.frames if isinstance(given, SideData) else None

    def makes_up(self, side: SideName) -> bool:
        """True if flats or darks are made up where a scan has none."""
        return self.dummies or self.side(side) == "ignore"


_NAMES = (
    "data_path",
    "image_key_path",
    "rotation_angles",
    "flats",
    "darks",
    "beam_current",
    "preview",
    "continuous_scan_subset",
)
"""Parameters of httomo's ``standard_tomo``, and `beam_current`."""
TO_FILL_IN = "REQUIRED"
"""What httomo's templates have in place of values that a user has to give."""
_RANGE = ("start_angle", "stop_angle", "angles_total")
_ALL_BUT = re.compile(r"all but ([0-9]{1,9}(?:\s*,\s*[0-9]{1,9})*)")
_AS_A_TIME = " (YAML reads 1:3 as minutes and seconds, which is 63)"
_PART = ("start", "stop", "start_offset", "stop_offset")
_ANGLES_PART = (*_PART, "step")


@dataclass(frozen=True, slots=True)
class LoaderFault:
    """What is wrong with one of the parameters."""

    keys: tuple[str, ...]
    """The parameter, and the keys within it."""
    text: str
    """What is wrong, and what would be right."""


def parse_loader(given: Any, *, as_httomo: bool = False) -> tuple[LoaderOptions, list[LoaderFault]]:
    """Make options from the parameters of a loader step.

    Parameters
    ----------
    given : mapping
        ``data_path``, ``image_key_path``: a path or ``auto``. ``rotation_angles``: ``auto``, a
        path, ``{data_path: ...}``, ``{file: ..., data_path: ...}``, ``{user_defined:
        {start_angle, stop_angle, angles_total}}`` or a list of degrees. ``flats``, ``darks``:
        ``auto``, ``ignore`` or ``{file, data_path, image_key_path, frames}``, where the file
        ``input_data`` is the scan itself, and `frames` selects by index: a list, or ``all but 2``.
        ``beam_current``: ``auto`` or a path. ``preview``: ``{angles, detector_y, detector_x}``,
        each ``{start, stop}``: indices, or ``begin``, ``mid`` and ``end``, with a
        ``start_offset`` and a ``stop_offset``, of the angles also a ``step``. ``mid`` alone:
        the middle rows or columns (`middle_bounds`). ``continuous_scan_subset``:
        ``{start, stop}``, in place of the preview's angles.
    as_httomo : bool
        Whether what is left out means what it means in httomo: without ``image_key_path`` all
        frames are projections, and flats or darks that are not found are ones and zeros.

    Returns
    -------
    (LoaderOptions, list of LoaderFault)
        The options, without what is faulty, and every fault.
    """
    parse = _Parse()
    options: dict[str, Any] = {"image_key_path": None, "dummies": True} if as_httomo else {}
    return LoaderOptions(**options | parse.options(given)), parse.faults


class _Parse:
    """Reads the parameters of one loader step, and collects what is wrong with them."""

    def __init__(self) -> None:
        self.faults: list[LoaderFault] = []

    def _fault(self, keys: tuple[str, ...], text: str) -> None:
        self.faults.append(LoaderFault(keys, text))

    def options(self, given: Any) -> dict[str, Any]:
        """Fields of `LoaderOptions` that are given."""
        found: dict[str, Any] = {}
        for name, value in self._named("the loader", given, _NAMES, ()).items():
            keys = (name,)
            if name == "data_path":
                found[name] = self._text(name, value, keys)
            elif name == "image_key_path":
                found[name] = None if value is None else self._text(name, value, keys)
            elif name == "rotation_angles":
                found[name] = self._angles(value, keys)
            elif value is not None and name == "beam_current":
                found[name] = self._text(name, value, keys)
            elif value is not None and name in ("flats", "darks"):
                found[name] = self._side(name, value, keys)
            elif value is not None and name == "preview":
                found[name] = self._preview(value, keys)
        subset = given.get("continuous_scan_subset") if isinstance(given, Mapping) else None
        if subset is not None:
            angles = self._subset(subset, ("continuous_scan_subset",))
            before = found.get("preview") or Preview()
            found["preview"] = replace(before, angles=angles)
        return {name: value for name, value in found.items() if value is not _FAULTY}

    def _named(
        self, what: str, given: Any, known: Sequence[str], keys: tuple[str, ...]
    ) -> dict[str, Any]:
        """Values under known names."""
        if not isinstance(given, Mapping):
            self._fault(
                keys,
                f"{what} must be given as names and values ({', '.join(known)}), not {given!r}"
                f"{_AS_A_TIME if isinstance(given, int) and given > 60 else ''}",
            )
            return {}
        for name in given:
            if name not in known:
                hint = nearest(str(name), known) or f"; it has: {', '.join(known)}"
                self._fault((*keys, str(name)), f"{what} has no parameter {name!r}{hint}")
        return {name: value for name, value in given.items() if name in known}

    def _text(self, name: str, value: Any, keys: tuple[str, ...]) -> Any:
        if _is_path(value):
            return value
        what = f"{name} of the loader must be a path or 'auto'"
        self._fault(keys, f"{what}, not {value!r}{_fill_in(value)}")
        return _FAULTY

    def _angles(self, value: Any, keys: tuple[str, ...]) -> Any:
        if isinstance(value, str):
            return self._text("rotation_angles", value, keys)
        if isinstance(value, Sequence):
            if all(_is_number(v) for v in value):
                return [float(v) for v in value]
            self._fault(keys, "rotation_angles of the loader must be numbers, in degrees")
            return _FAULTY
        if isinstance(value, Mapping) and "file" in value:
            return self._angle_file(value, keys)
        if isinstance(value, Mapping) and len(value) != 1:
            self._fault(
                keys,
                "rotation_angles of the loader must have one of data_path and user_defined, "
                f"not {len(value)}",
            )
            return _FAULTY
        what, kinds = "rotation_angles of the loader", ("data_path", "user_defined")
        named = self._named(what, value, kinds, keys)
        if "data_path" in named:
            path = named["data_path"]
            return self._text("rotation_angles data_path", path, (*keys, "data_path"))
        if "user_defined" in named:
            return self._range(named["user_defined"], (*keys, "user_defined"))
        return _FAULTY

    def _angle_file(self, value: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
        n_before = len(self.faults)
        given = self._named("rotation_angles", value, ("file", "data_path"), keys)
        file = given.get("file")
        if not _is_path(file):
            text = f"rotation_angles need the path of a file, not {file!r}{_fill_in(file)}"
            self._fault((*keys, "file"), text)
        path = given.get("data_path")
        if path is not None:
            path = self._text("rotation_angles data_path", path, (*keys, "data_path"))
        return _FAULTY if len(self.faults) > n_before else AngleFile(Path(str(file)), path)

    def _range(self, value: Any, keys: tuple[str, ...]) -> Any:
        n_before = len(self.faults)
        given = self._named("user_defined of rotation_angles", value, _RANGE, keys)
        missing = [name for name in _RANGE if name not in given]
        if missing and isinstance(value, Mapping):
            self._fault(keys, f"user_defined of rotation_angles needs {', '.join(missing)}")
        for name in _RANGE[:2]:
            if name in given and not _is_number(given[name]):
                text = f"{name} must be a number of degrees, not {given[name]!r}"
                self._fault((*keys, name), text)
        count = given.get(_RANGE[2], 1)
        if not matches(int, count) or count < 1:
            self._fault(
                (*keys, _RANGE[2]),
                f"angles_total must be a whole number of at least 1, not {count!r}",
            )
        if len(self.faults) > n_before:
            return _FAULTY
        return AngleRange(float(given["start_angle"]), float(given["stop_angle"]), count)

    def _side(self, name: str, value: Any, keys: tuple[str, ...]) -> Any:
        if value in ("auto", "ignore"):
            return value
        n_before = len(self.faults)
        names = ("file", "data_path", "image_key_path", "frames")
        given = self._named(f"{name} of the loader", value, names, keys)
        chosen = self._frames(name, given.get("frames"), (*keys, "frames"))
        file = given.get("file", "input_data" if "frames" in given else None)
        if isinstance(value, Mapping) and not _is_path(file):
            self._fault(
                (*keys, "file"),
                f"{name} of the loader need a file (input_data for the scan itself), not {file!r}"
                f"{_fill_in(file)}",
            )
        path = self._text(f"{name} data_path", given.get("data_path", "auto"), (*keys, "data_path"))
        key = given.get("image_key_path")
        if key is not None:
            key = self._text(f"{name} image_key_path", key, (*keys, "image_key_path"))
        if len(self.faults) > n_before:
            return _FAULTY
        return SideData(None if file == "input_data" else Path(str(file)), path, key, chosen)

    def _frames(self, name: str, value: Any, keys: tuple[str, ...]) -> FrameChoice | None:
        """Parse which frames are read: a list of indices, or ``all but`` some."""
        if value is None:
            return None
        rest = _ALL_BUT.fullmatch(value) if isinstance(value, str) else None
        if rest:
            return FrameChoice(tuple(map(int, rest[1].split(","))), are_left_out=True)
        if isinstance(value, Sequence) and all(matches(int, each) and each >= 0 for each in value):
            return FrameChoice(tuple(value))
        self._fault(
            keys,
            f'frames of {name} must be a list of indices from 0, or text such as "all but 2, 3", '
            f"not {value!r}",
        )
        return None

    def _preview(self, value: Any, keys: tuple[str, ...]) -> Preview:
        given: dict[str, Any] = {}
        for axis, part in self._named("preview of the loader", value, AXES, keys).items():
            if part == "mid" and axis != "angles":
                given[axis] = "mid"
            elif part is not None:
                given[axis] = self._part(axis, part, (*keys, axis))
                if axis == "angles" and isinstance(part, Mapping) and "step" in part:
                    given["angle_step"] = self._step(part["step"], (*keys, axis, "step"))
        return Preview(**given)

    def _part(self, axis: str, value: Any, keys: tuple[str, ...]) -> Part:
        known = _ANGLES_PART if axis == "angles" else _PART
        part = self._named(f"preview {axis}", value, known, keys)
        start = self._end(axis, part, "start", "begin", keys)
        return start, self._end(axis, part, "stop", "end", keys)

    def _end(
        self, axis: str, part: Mapping[str, Any], name: str, default: str, keys: tuple[str, ...]
    ) -> Bound:
        """Parse the start or stop of a part of an axis."""
        n_before = len(self.faults)
        place, offset = part.get(name), part.get(f"{name}_offset")
        if place not in (None, "begin", "mid", "end") and not matches(int, place):
            self._fault(
                (*keys, name),
                f"preview {axis}: {name} must be a whole number, begin, mid or end, not {place!r}",
            )
        if offset is not None and not matches(int, offset):
            self._fault(
                (*keys, f"{name}_offset"),
                f"preview {axis}: {name}_offset must be a whole number, not {offset!r}",
            )
        if len(self.faults) > n_before:
            return None
        if isinstance(place, str):
            return AxisIndex(place, offset or 0)
        if not offset:
            return place
        return AxisIndex(default, offset) if place is None else AxisIndex("begin", place + offset)

    def _step(self, value: Any, keys: tuple[str, ...]) -> int:
        if matches(int, value) and value >= 1:
            return int(value)
        text = f"preview angles: step must be a whole number of at least 1, not {value!r}"
        self._fault(keys, text)
        return 1

    def _subset(self, value: Any, keys: tuple[str, ...]) -> tuple[Bound, Bound]:
        names = ("start", "stop")
        given = self._named("continuous_scan_subset of the loader", value, names, keys)
        for name in names:
            if isinstance(value, Mapping) and not matches(int, given.get(name)):
                self._fault(
                    (*keys, name),
                    f"continuous_scan_subset: {name} must be the number of a frame, not "
                    f"{given.get(name)!r}",
                )
        return given.get("start"), given.get("stop")


_FAULTY = object()
"""Stands for a value that has a fault."""


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and value not in ("", TO_FILL_IN)


def _fill_in(value: Any) -> str:
    is_left = isinstance(value, str) and value == TO_FILL_IN
    return ", which stands for a value of yours" if is_left else ""


def _is_number(value: Any) -> bool:
    return matches(float, value) and math.isfinite(value)
