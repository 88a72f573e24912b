"""Angles of a scan, in its file or another, and of a part of it.

If the layout does not contain angles, they may be a column with a value for each frame, or be
stored as start, step, end and number.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError
from ...system.files import read_small_text
from ..check_arrays import check_angles, radians_from_degrees
from ..files import check_readable, is_hdf5
from ..frames.frames import Selection
from ..hdf5.frames import Hdf5File
from ..results.result_info import ScanFact
from .facts import (
    StoredFacts,
    facts_of_file,
    n_shared_groups,
    number_column,
    one_fact,
    one_number,
    unit_of,
)
from .layout import Layout, ScanFile, own_name
from .loader import AngleFile, AngleRange, LoaderOptions, Preview

logger = logging.getLogger(__name__)


def projection_numbers(data: Selection, preview: Preview) -> NDArray[np.int64]:
    """Indices of the projections that are read; the preview counts stored frames.

    Raises
    ------
    SourceError
        If the preview extends beyond the frames, or contains no projection.
    """
    name = data.frames.name
    start, stop = preview.bounds(0, data.frames.spec.shape[0], name)
    numbers = np.arange(data.n_before(start), data.n_before(stop), preview.angle_step)
    if not numbers.size:
        raise SourceError(
            f"{name}: none of the frames {start}:{stop} of preview angles is a projection: it "
            f"counts frames as they are stored, flats and darks included; projections are frames "
            f"{data.indices[0]} to {data.indices[-1]}"
        )
    return numbers


def angle_indices(name: str, n_angles: int, data: Selection, preview: Preview) -> NDArray[np.int64]:
    """Indices of the angles of the projections that are read, among `n_angles`.

    There may be an angle for each projection that is read, for each projection of the scan, or for
    each frame.

    Raises
    ------
    SourceError
        If the number of angles is another one.
    """
    numbers = projection_numbers(data, preview)
    n_projections, n_frames = data.spec.shape[0], data.frames.spec.shape[0]
    if n_angles == numbers.size:
        return np.arange(n_angles)
    if n_angles == n_projections:
        return numbers
    if n_angles == n_frames:
        return data.indices[numbers]
    counts = []
    if numbers.size != n_projections:
        counts.append(f"{numbers.size} of them in the preview")
    if n_frames != n_projections:
        counts.append(f"{n_frames} frames with darks and flats")
    listed = f" ({', '.join(counts)})" if counts else ""
    raise SourceError(
        f"{name}: {n_angles} rotation angles for {n_projections} projections{listed}: give one for "
        "each projection with rotation_angles"
    )


_MAX_TEXT_BYTES = 2**24
"""Largest text file; a million angles take about 10 MB."""


def stored_angles(
    file: ScanFile, where: str, options: LoaderOptions, data: Selection
) -> NDArray[np.float32]:
    """Read angles in radians of the projections that are read from a data set.

    Raises
    ------
    SourceError
        If they cannot be read, are not angles, or their number is wrong.
    """
    stored, name = file.array(where, "rotation_angles"), f"{file.name}: {where}"
    if stored.ndim != 1:
        raise SourceError(
            f"{name}: has {stored.ndim} dims, not one angle for each projection: give the angles "
            "with rotation_angles"
        )
    indices = angle_indices(name, stored.shape[0], data, options.preview)  # before they are read
    values = file.column(where, "rotation_angles")
    convert = check_angles if _in_radians(name, unit_of(stored)) else radians_from_degrees
    # After indexing, because some beamlines write NaN for flats and darks.
    return convert(name, values[indices])


def find_angles(
    file: ScanFile, layout: Layout, options: LoaderOptions, data: Selection
) -> tuple[NDArray[np.float32] | None, StoredFacts]:
    """Find the angles of a scan in a file, and the facts stored next to its frames.

    The first of these is used: angles of the options, of the layout, of a data set with a name for
    angles, and of start and step.

    Parameters
    ----------
    file : ScanFile
        The file.
    layout : Layout
        Paths of the scan's parts.
    options : LoaderOptions
        Options of the loader.
    data : Selection
        All projections.

    Returns
    -------
    (ndarray or None, StoredFacts)
        Angles in radians, in a number that `angle_indices` accepts.
    """
    stored, columns = facts_of_file(file, layout, data)
    angles_given = angles_option(file.name, options, data)
    if isinstance(angles_given, np.ndarray):
        return angles_given, stored
    where, angles, note = angles_given or layout.angles, None, ""
    if where is not None:
        angles = stored_angles(file, where, options, data)
        if angles.size > 1 and not angles.any() and angles_given is None:
            logger.warning("%s: %s holds only zeros, which are not angles", file.name, where)
            where, angles = None, None
    if where is None:
        where, note = _choose_column(_columns(columns, data), layout.data)
        if where is not None:
            angles = stored_angles(file, where, options, data)
        elif not note:
            degrees, note = _angles_by_steps(stored.values, data.spec.shape[0])
            angles = None if degrees is None else radians_from_degrees(file.name, degrees)
    if note:
        logger.warning("%s: %s", file.name, note)
    return angles, replace(stored, layout=replace(layout, angles=where), angle_note=note)


def angles_option(
    name: str, options: LoaderOptions, data: Selection
) -> NDArray[np.float32] | str | None:
    """Angles of the options in radians, a path in the file, or None for "auto".

    `data` are all projections of the scan.

    Raises
    ------
    SourceError
        If they are not finite numbers, or a range has the wrong number of angles.
    """
    option: Any = options.rotation_angles
    if isinstance(option, str):
        return None if option == "auto" else option
    if isinstance(option, AngleRange):
        # Checked before they are computed, because a wrong number may be huge.
        angle_indices(name, option.count, data, options.preview)
        return radians_from_degrees(name, option.degrees())
    if isinstance(option, AngleFile):
        return angles_in_file(option, options, data)
    return radians_from_degrees(name, option)


def angles_in_file(
    angle_file: AngleFile, options: LoaderOptions, data: Selection
) -> NDArray[np.float32]:
    """Read angles in radians from a separate file.

    Raises
    ------
    SourceError
        If they cannot be read, or their number is wrong.
    """
    path = angle_file.file
    if check_readable(path) == "folder":
        raise SourceError(f"{path}: is a folder: give the file of the rotation angles")
    if is_hdf5(path):
        if angle_file.data_path is None:
            raise SourceError(f"{path}: give the data_path of the rotation angles in it")
        with Hdf5File(path) as file:
            return stored_angles(file, angle_file.data_path, options, data)
    try:
        text = read_small_text(path, _MAX_TEXT_BYTES)
        degrees = np.array([float(word) for word in text.replace(",", " ").split()])
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{path}: is neither HDF5 nor a text of angles in degrees ({error})"
        ) from None
    angle_indices(str(path), degrees.size, data, options.preview)
    return radians_from_degrees(str(path), degrees)


_UNIT = re.compile(r"(rad\w*)\W*|(deg\w*|°|none|null)?\W*", re.IGNORECASE)
"""Units of angles: radians, or degrees, which are the default. Units of speed do not match."""


def _in_radians(name: str, unit: str) -> bool:
    """True if stored angles are in radians."""
    match = _UNIT.fullmatch(unit)
    if match is None:
        raise SourceError(
            f"{name}: the unit {unit.lower()!r} is neither degrees nor radians: give the angles "
            "in degrees with rotation_angles"
        )
    return match[1] is not None


_SET = re.compile(
    r"(.*_)?(set|set_?point|val|demand(ed)?|target(_value)?|request(ed)?|command(ed)?)",
    re.IGNORECASE,
)
"""Names of set positions, as opposed to measured ones: GDA, EPICS, NXpositioner and Bluesky."""
_WHOLE_SCAN = 170.0
"""Smallest range of a scan in degrees. Other recorded stages move little or not."""
_Columns = dict[str, NDArray[np.float64]]
"""Path of a data set that may be the angles -> its values for the projections in degrees."""


def _columns(stored: Mapping[str, Any], projections: Selection) -> _Columns:
    """Columns with a value for each projection, or for each frame."""
    n_projections, n_frames = projections.spec.shape[0], projections.frames.spec.shape[0]
    columns = {}
    for where, data in stored.items():
        unit = _UNIT.fullmatch(unit_of(data))
        if data.size not in (n_projections, n_frames) or unit is None:
            continue
        values = number_column(where, data)
        if values is not None:
            of_all = values.size != n_projections
            numbers = (values[projections.indices] if of_all else values).astype(np.float64)
            columns[where] = np.rad2deg(numbers) if unit[1] else numbers
    return columns


def _range(degrees: NDArray[np.float64]) -> float:
    """Range of angles; 0 if one is not a number."""
    extent = float(np.ptp(degrees))
    return extent if np.isfinite(extent) else 0.0


def _choose_column(columns: _Columns, data: str) -> tuple[str | None, str]:
    """Choose the angles among columns.

    Columns that agree within a step are equivalent, such as set and measured angles, or angles at
    the start and the middle of an exposure. Among them, measured angles are preferred, then those
    nearest to the frames. Among different columns, the only one that covers a whole scan is chosen.

    Parameters
    ----------
    columns : dict of str to ndarray
        Columns with a value for each projection.
    data : str
        Path of the frames.

    Returns
    -------
    (str or None, str)
        Path of the angles or None, and a note that lists different columns.
    """

    def was_set(where: str) -> bool:
        names = where.rpartition("/")[2], own_name(where)
        return any(_SET.fullmatch(name) for name in names)

    def order(where: str) -> tuple[bool, int, int, str]:
        return was_set(where), -n_shared_groups(data, where), len(where), where

    different: list[str] = []
    for where in sorted((each for each in columns if _range(columns[each])), key=order):
        degrees = columns[where]
        step = max(float(np.median(np.abs(np.diff(degrees)))), 1e-3)
        if all(np.abs(degrees - columns[each]).max() > step for each in different):
            different.append(where)
    # Set positions may have another zero than measured ones.
    different = [each for each in different if not was_set(each)] or different
    if len(different) < 2:
        return (different[0] if different else None), ""
    listed = ", ".join(
        f"{each} ({columns[each][0]:g} to {columns[each][-1]:g} degrees)" for each in different
    )
    text = f"several data sets may be the angles: {listed}"
    whole = [each for each in different if _range(columns[each]) >= _WHOLE_SCAN]
    if len(whole) == 1:
        return whole[0], f"{text}; {whole[0]} is used, the only one of a whole scan"
    return None, f"{text}; choose one with rotation_angles"


def _angles_by_steps(
    facts: tuple[ScanFact, ...], n_projections: int
) -> tuple[NDArray[np.float64] | None, str]:
    """Compute angles in degrees from start, step, end and number.

    With a step, angles begin at the start. Otherwise they are spaced from start to end, or over the
    range, with both ends included as in Data Exchange.

    Returns
    -------
    (ndarray or None, str)
        An angle for each projection or None, and a note about inconsistent values.
    """
    subjects = ("start", "step", "end", "range")
    by_subject = {each: fact for each in subjects if (fact := one_fact(facts, f"rotation {each}"))}
    degrees = {name: _degrees(fact) for name, fact in by_subject.items()}
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
