"""Options of a loader: paths of the parts of a scan, the preview, and their YAML parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
    """Number of angles, which is checked before they are computed."""

    def degrees(self) -> NDArray[np.float64]:
        """The angles in degrees."""
        return np.linspace(self.start, self.stop, self.count)


@dataclass(frozen=True, slots=True)
class AngleFile:
    """Angles in a separate file."""

    file: Path
    """An HDF5 file, or a text file with angles in degrees."""
    data_path: str | None = None
    """Data set in an HDF5 file."""


@dataclass(frozen=True, slots=True)
class FrameChoice:
    """Selection of flats or darks by index."""

    indices: tuple[int, ...]
    """Indices among the flats or darks, from 0."""
    are_left_out: bool = False
    """Whether these frames are omitted, and all other frames are read."""

    def of(self, n_frames: int, name: str) -> NDArray[np.int64]:
        """Increasing indices of the frames that are read.

        Raises
        ------
        SourceError
            If an index is out of range, or no frame is selected.
        """
        chosen = np.unique(np.array(self.indices, np.int64))
        if chosen.size and not 0 <= chosen[0] <= chosen[-1] < n_frames:
            raise SourceError(
                f"{name}: frames contains {chosen[0] if chosen[0] < 0 else chosen[-1]}, and the "
                f"valid indices are 0 to {n_frames - 1}"
            )
        if self.are_left_out:
            chosen = np.setdiff1d(np.arange(n_frames), chosen)
        if not chosen.size:
            raise SourceError(
                f"{name}: frames selects none of {n_frames} frames. Select at least one"
            )
        return chosen


@dataclass(frozen=True, slots=True)
class SideData:
    """Place of flats or darks outside the scan's layout, or a selection of them."""

    file: Path | None
    """A file, or a folder of TIFFs; None for the file of the scan."""
    data_path: str = "auto"
    """Data set in an HDF5 file; ``"auto"`` uses the flats or darks of its layout."""
    image_key_path: str | None = None
    """Image key that selects the frames; None selects all frames of a `data_path`."""
    frames: FrameChoice | None = None
    """Selection of frames; None reads all."""

    @property
    def is_auto(self) -> bool:
        """Whether it only selects among the frames of the scan's layout."""
        return self == SideData(None, frames=self.frames) and self.frames is not None


@dataclass(frozen=True, slots=True)
class AxisIndex:
    """An index relative to the beginning, middle or end of an axis, clipped to the axis."""

    keyword: str
    """Origin of the offset: "begin", "mid" or "end"."""
    offset: int = 0
    """Offset from the origin, possibly negative."""

    def index(self, length: int) -> int:
        """Index along an axis of `length`."""
        mid = sum(middle_bounds(length)) // 2
        place = {"begin": 0, "mid": mid, "end": length}[self.keyword]
        return min(max(0, place + self.offset), length)


def middle_bounds(length: int) -> tuple[int, int]:
    """Compute (start, stop) of the middle of an axis, as httomo's ``mid``.

    The middle has three indices if the length is even, two if it is odd, and all of 2 or 3.

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
"""Start or stop of a part; None for the start or stop of the axis."""
Part = tuple[Bound, Bound] | Literal["mid"]
"""Part of an axis: (start, stop), or its middle (`middle_bounds`)."""


@dataclass(frozen=True, slots=True)
class Preview:
    """A part of a scan: (start, stop) along each axis, stop excluded."""

    angles: tuple[Bound, Bound] = (None, None)
    """Range of stored frames, which may include darks and flats. Its projections are read."""
    detector_y: Part = (None, None)
    """Detector rows."""
    detector_x: Part = (None, None)
    """Detector columns."""
    angle_step: int = 1
    """Step between the projections in `angles` that are read."""

    def bounds(self, axis: int, length: int, name: str) -> tuple[int, int]:
        """Compute (start, stop) along an axis of `length`.

        Raises
        ------
        SourceError
            If it is empty or not within the scan `name`.
        """
        ends: Part = (self.angles, self.detector_y, self.detector_x)[axis]
        if ends == "mid":
            return middle_bounds(length)
        start, stop = (end.index(length) if isinstance(end, AxisIndex) else end for end in ends)
        start, stop = 0 if start is None else start, length if stop is None else stop
        if not 0 <= start < stop <= length:
            raise SourceError(
                f"{name}: preview {AXES[axis]} {start}:{stop} is not within the scan's {length}. "
                f"Use 0 <= start < stop <= {length}"
            )
        return start, stop


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """Options for parts of a scan that are in other files, or not at a known path.

    The fields are the parameters of httomo's ``standard_tomo`` loader.
    """

    data_path: str = "auto"
    """Data set of the frames in an HDF5 file; ``"auto"``: search for it."""
    image_key_path: str | None = "auto"
    """Data set with the kind of each frame; ``"auto"``: search for it; None: projections only."""
    rotation_angles: str | AngleRange | AngleFile | Sequence[float] | NDArray[Any] = "auto"
    """``"auto"``, the path of a data set, a file, a range, or a list in degrees. There is an angle
    for each projection, for each projection in the preview, or for each frame."""
    flats: SideData | Literal["auto", "ignore"] = "auto"
    """Flats; ``"auto"`` uses those of the layout, ``"ignore"`` a frame of ones."""
    darks: SideData | Literal["auto", "ignore"] = "auto"
    """Darks; ``"auto"`` uses those of the layout, ``"ignore"`` a frame of zeros."""
    beam_current: str | None = None
    """Beam current of each frame, which scales the flats: ``"auto"``, a path, or None."""
    dummies: bool = False
    """Whether missing flats and darks are replaced by a frame of ones or zeros."""
    preview: Preview = Preview()
    """Part of the scan to read."""

    def side(self, side: SideName) -> SideData | Literal["auto", "ignore"]:
        """Option for flats or darks, without the selection of frames."""
        option = self.flats if side == "flats" else self.darks
        return "auto" if isinstance(option, SideData) and option.is_auto else option

    def choice(self, side: SideName) -> FrameChoice | None:
        """Selection of flats or darks; None reads all."""
        option = self.flats if side == "flats" else self.darks
        return option.frames if isinstance(option, SideData) else None

    def makes_up(self, side: SideName) -> bool:
        """True if missing flats or darks are replaced by a frame of ones or zeros."""
        return self.dummies or self.side(side) == "ignore"


TO_FILL_IN = "REQUIRED"
"""Placeholder in httomo's templates for values that the user must set."""
_ALL_BUT = re.compile(r"all but ([0-9]{1,9}(?:\s*,\s*[0-9]{1,9})*)")
_AS_A_TIME = " (YAML reads 1:3 as minutes and seconds, which is 63)"


@dataclass(frozen=True, slots=True)
class LoaderFault:
    """A fault of a parameter."""

    keys: tuple[str, ...]
    """The parameter and the keys within it."""
    text: str
    """What is wrong, and the valid values."""


def parse_loader(
    parameters: Any, *, as_httomo: bool = False
) -> tuple[LoaderOptions, list[LoaderFault]]:
    """Parse the parameters of a loader step.

    Parameters
    ----------
    parameters : mapping
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
        Whether defaults are those of httomo: without ``image_key_path`` all frames are projections,
        and missing flats or darks are replaced by ones and zeros.

    Returns
    -------
    (LoaderOptions, list of LoaderFault)
        The options, without faulty parameters, and all faults.
    """
    parse = _Parse()
    options: dict[str, Any] = {"image_key_path": None, "dummies": True} if as_httomo else {}
    return LoaderOptions(**options | parse.options(parameters)), parse.faults


_Keys = tuple[str, ...]
_Parser = Callable[[Any, _Keys], Any]
"""Takes a value and its keys; raises `_Wrong`, without text if its faults are already collected."""


class _Wrong(Exception):
    """An invalid value."""


class _Parse:
    """Parser of the parameters of a loader step, which collects faults."""

    def __init__(self) -> None:
        self.faults: list[LoaderFault] = []

    def _fault(self, keys: _Keys, text: str) -> None:
        self.faults.append(LoaderFault(keys, text))

    def options(self, parameters: Any) -> dict[str, Any]:
        """Parse the fields of `LoaderOptions` that are set."""
        parsers: dict[str, _Parser] = {
            "data_path": _path("data_path of the loader"),
            "image_key_path": _or_none(_path("image_key_path of the loader")),
            "rotation_angles": self._angles,
            "flats": _or_none(partial(self._side, "flats")),
            "darks": _or_none(partial(self._side, "darks")),
            "beam_current": _or_none(_path("beam_current of the loader")),
            "preview": _or_none(self._preview),
            "continuous_scan_subset": _or_none(self._subset),
        }
        try:
            values = self._fields("the loader", parameters, (), parsers)
        except _Wrong as wrong:
            self._fault((), str(wrong))
            return {}
        subset = values.pop("continuous_scan_subset", None)
        if subset is not None:
            values["preview"] = replace(values.get("preview") or Preview(), angles=subset)
        return {
            n: value for n, value in values.items() if n == "image_key_path" or value is not None
        }

    def _fields(
        self, what: str, parameters: Any, keys: _Keys, parsers: Mapping[str, _Parser]
    ) -> dict[str, Any]:
        """Parse values with known names; omit invalid ones."""
        if not isinstance(parameters, Mapping):
            is_time = isinstance(parameters, int) and parameters > 60
            raise _Wrong(
                f"{what} must be given as names and values ({', '.join(parsers)}), not "
                f"{parameters!r}{_AS_A_TIME if is_time else ''}"
            )
        parsed = {}
        for name, value in parameters.items():
            if name not in parsers:
                hint = nearest(str(name), parsers) or f"; it has: {', '.join(parsers)}"
                self._fault((*keys, str(name)), f"{what} has no parameter {name!r}{hint}")
                continue
            try:
                parsed[name] = parsers[name](value, (*keys, name))
            except _Wrong as wrong:
                if wrong.args:
                    self._fault((*keys, name), str(wrong))
        return parsed

    def _all(
        self,
        what: str,
        parameters: Any,
        keys: _Keys,
        parsers: Mapping[str, _Parser],
        required: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Parse values that must all be valid."""
        n_before = len(self.faults)
        parsed = self._fields(what, parameters, keys, parsers)
        missing = [each for each in required if each not in parameters]
        if missing:
            self._fault(keys, f"{what} needs {', '.join(missing)}")
        if len(self.faults) > n_before:
            raise _Wrong
        return parsed

    def _angles(self, value: Any, keys: _Keys) -> Any:
        """Parse ``auto``, a path in the file, a list of degrees, a separate file, or a range."""
        what, path = "rotation_angles of the loader", _path("rotation_angles data_path")
        if isinstance(value, str):
            return _path(what)(value, keys)
        if isinstance(value, Sequence):
            if not all(map(_is_number, value)):
                raise _Wrong(f"{what} must be numbers, in degrees")
            return [float(each) for each in value]
        if isinstance(value, Mapping) and "file" in value:
            return self._angle_file(value, keys)
        if isinstance(value, Mapping) and len(value) != 1:
            raise _Wrong(f"{what} must have one of data_path and user_defined, not {len(value)}")
        parsed = self._all(what, value, keys, {"data_path": path, "user_defined": self._range})
        return parsed.popitem()[1]

    def _angle_file(self, value: Any, keys: _Keys) -> AngleFile:
        parsers = {
            "file": _value("rotation_angles need the path of a file", _is_path),
            "data_path": _or_none(_path("rotation_angles data_path")),
        }
        parsed = self._all("rotation_angles", value, keys, parsers)
        return AngleFile(Path(parsed["file"]), parsed.get("data_path"))

    def _range(self, value: Any, keys: _Keys) -> AngleRange:
        parsers = {
            name: _value(f"{name} must be a number of degrees", _is_number)
            for name in ("start_angle", "stop_angle")
        }
        parsers["angles_total"] = _count("angles_total")
        what = "user_defined of rotation_angles"
        parsed = self._all(what, value, keys, parsers, list(parsers))
        first, last = float(parsed["start_angle"]), float(parsed["stop_angle"])
        return AngleRange(first, last, parsed["angles_total"])

    def _side(self, name: str, value: Any, keys: _Keys) -> Any:
        if value in ("auto", "ignore"):
            return value
        need = f"{name} of the loader need a file (input_data for the scan itself)"
        parsers: dict[str, _Parser] = {
            "file": _value(need, _is_path),
            "data_path": _path(f"{name} data_path of the loader"),
            "image_key_path": _or_none(_path(f"{name} image_key_path of the loader")),
            "frames": _or_none(partial(_frames, name)),
        }
        if isinstance(value, Mapping) and "file" not in value:
            value = {"file": "input_data" if "frames" in value else None, **value}
        parsed = self._all(f"{name} of the loader", value, keys, parsers)
        file = None if parsed["file"] == "input_data" else Path(parsed["file"])
        return SideData(file, parsed.get("data_path", "auto"), *map(parsed.get, _SIDE_MORE))

    def _preview(self, value: Any, keys: _Keys) -> Preview:
        parsers = {axis: _or_none(partial(self._part, axis)) for axis in AXES}
        parsed = self._fields("preview of the loader", value, keys, parsers)
        parts = {axis: part for axis, part in parsed.items() if part is not None}
        step = 1
        if "angles" in parts:
            parts["angles"], step = parts["angles"]
        return Preview(**parts, angle_step=step)

    def _part(self, axis: str, value: Any, keys: _Keys) -> Any:
        """Parse start and stop of a part of an axis, and the step of angles."""
        if value == "mid" and axis != "angles":
            return value
        parsers: dict[str, _Parser] = {}
        for name in ("start", "stop"):
            must = f"preview {axis}: {name} must be a whole number, begin, mid or end"
            parsers[name] = _value(must, _is_bound)
            must = f"preview {axis}: {name}_offset must be a whole number"
            parsers[f"{name}_offset"] = _or_none(_value(must, _is_int))
        if axis == "angles":
            parsers["step"] = _count("preview angles: step")
        part = self._all(f"preview {axis}", value, keys, parsers)
        ends = _end(part, "start", "begin"), _end(part, "stop", "end")
        return (ends, part.get("step", 1)) if axis == "angles" else ends

    def _subset(self, value: Any, keys: _Keys) -> tuple[Bound, Bound]:
        parsers = {
            each: _value(f"continuous_scan_subset: {each} must be the number of a frame", _is_int)
            for each in ("start", "stop")
        }
        what = "continuous_scan_subset of the loader"
        parsed = self._all(what, value, keys, parsers, list(parsers))
        return parsed["start"], parsed["stop"]


_SIDE_MORE = ("image_key_path", "frames")


def _or_none(parser: _Parser) -> _Parser:
    return lambda value, keys: None if value is None else parser(value, keys)


def _value(must: str, test: Callable[[Any], bool]) -> _Parser:
    def parse(value: Any, keys: _Keys) -> Any:
        if test(value):
            return value
        is_left = isinstance(value, str) and value == TO_FILL_IN
        hint = ", which is a placeholder: replace it" if is_left else ""
        raise _Wrong(f"{must}, not {value!r}{hint}")

    return parse


def _path(what: str) -> _Parser:
    return _value(f"{what} must be a path or 'auto'", _is_path)


def _count(what: str) -> _Parser:
    must = f"{what} must be a whole number of at least 1"
    return _value(must, lambda value: matches(int, value) and value >= 1)


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and value not in ("", TO_FILL_IN)


def _is_int(value: Any) -> bool:
    return matches(int, value)


def _is_bound(value: Any) -> bool:
    return value in (None, "begin", "mid", "end") or _is_int(value)


def _end(part: Mapping[str, Any], name: str, default: str) -> Bound:
    """Start or stop of a part of an axis."""
    place, offset = part.get(name), part.get(f"{name}_offset")
    if isinstance(place, str):
        return AxisIndex(place, offset or 0)
    if not offset:
        return place
    return AxisIndex(default, offset) if place is None else AxisIndex("begin", place + offset)


def _frames(name: str, value: Any, keys: _Keys) -> FrameChoice:
    """Parse a selection of frames: a list of indices, or ``all but`` some."""
    rest = _ALL_BUT.fullmatch(value) if isinstance(value, str) else None
    if rest:
        return FrameChoice(tuple(map(int, rest[1].split(","))), are_left_out=True)
    if isinstance(value, Sequence) and all(matches(int, each) and each >= 0 for each in value):
        return FrameChoice(tuple(value))
    raise _Wrong(
        f'frames of {name} must be a list of indices from 0, or text such as "all but 2, 3", '
        f"not {value!r}"
    )


def _is_number(value: Any) -> bool:
    return matches(float, value) and math.isfinite(value)
