"""The angles of a scan: in its file or another, and of a part of it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError
from ...system.files import read_small_text
from ..check_arrays import check_angles, radians_from_degrees
from ..frames.frames import IndexRange, Selection
from ..hdf5.frames import Hdf5File
from ..paths import check_readable, is_hdf5
from .facts import unit_of
from .layout import Layout, ScanFile
from .loader import AngleFile, AngleRange, LoaderOptions, Preview
from .stored_facts import StoredFacts, angles_by_steps, facts_of_file

logger = logging.getLogger(__name__)


def previewed(data: Selection, preview: Preview) -> IndexRange:
    """Range of the projections that a preview is of, which counts frames as they are stored.

    With an `angle_step` not all of them are read.

    Raises
    ------
    SourceError
        If the preview reaches beyond the frames, or none of its frames is a projection.
    """
    name = data.frames.name
    start, stop = preview.bounds(0, data.frames.spec.shape[0], name)
    first, last = data.n_before(start), data.n_before(stop)
    if first == last:
        raise SourceError(
            f"{name}: none of the frames {start}:{stop} of preview angles is a projection: it "
            f"counts frames as they are stored, flats and darks included; projections are frames "
            f"{data.indices[0]} to {data.indices[-1]}"
        )
    return first, last


def check_angle_count(name: str, n_angles: int, data: Selection, preview: Preview) -> None:
    """Check that there is an angle for each projection, each of the preview, or each frame.

    Raises
    ------
    SourceError
        If there are more or fewer.
    """
    n_projections, n_frames = data.spec.shape[0], data.frames.spec.shape[0]
    n_read = len(range(*previewed(data, preview), preview.angle_step))
    if n_angles in (n_read, n_projections, n_frames):
        return
    others = [f"{n_read} of them in the preview"] if n_read != n_projections else []
    if n_frames != n_projections:
        others.append(f"{n_frames} frames with darks and flats")
    beside = f" ({', '.join(others)})" if others else ""
    raise SourceError(
        f"{name}: {n_angles} rotation angles for {n_projections} projections{beside}: give one a "
        "projection with rotation_angles"
    )


def projections_angles(angles: NDArray[Any], data: Selection, preview: Preview) -> NDArray[Any]:
    """Angles that `check_angle_count` accepts, without those of flats and darks."""
    n_read = len(range(*previewed(data, preview), preview.angle_step))
    if angles.size in (n_read, data.spec.shape[0]):
        return angles
    of_projections: NDArray[Any] = angles[data.indices]
    return of_projections


_MAX_TEXT_BYTES = 2**24
"""Largest text file: a million angles have some 10 MB."""


def stored_angles(
    file: ScanFile, where: str, options: LoaderOptions, data: Selection
) -> NDArray[np.float32]:
    """Read angles in radians from a data set, as many as `projections_angles` returns.

    Raises
    ------
    SourceError
        If they cannot be read or are not angles, or there are more or fewer.
    """
    stored, name = file.array(where, "rotation_angles"), f"{file.name}: {where}"
    if stored.ndim != 1:
        raise SourceError(
            f"{name}: has {stored.ndim} dims, not one angle a projection: give others with "
            "rotation_angles"
        )
    check_angle_count(name, stored.shape[0], data, options.preview)  # before they are read
    values = file.column(where, "rotation_angles")
    convert = check_angles if _in_radians(name, unit_of(stored)) else radians_from_degrees
    # Some beamlines write NaN for flats and darks.
    return convert(name, projections_angles(values, data, options.preview))


def find_angles(
    file: ScanFile, layout: Layout, options: LoaderOptions, data: Selection
) -> tuple[NDArray[np.float32] | None, StoredFacts]:
    """Find the angles of a scan in a file, and what it stores next to the frames.

    Angles that are given come before those of the layout, these before a data set with their name,
    and that before start and step.

    Parameters
    ----------
    file : ScanFile
        The file.
    layout : Layout
        Paths of the scan's parts.
    options : LoaderOptions
        What is given.
    data : Selection
        All projections.

    Returns
    -------
    (ndarray or None, StoredFacts)
        Angles in radians, as many as `projections_angles` returns.
    """
    given = angles_option(file.name, options, data)
    if isinstance(given, np.ndarray):
        return given, replace(facts_of_file(file, layout, data), angle_note="")
    if given is not None:
        layout = replace(layout, angles=given)
    angles = None
    if layout.angles is not None:
        angles = stored_angles(file, layout.angles, options, data)
        if angles.size > 1 and not angles.any() and given is None:
            logger.warning(
                "%s: %s holds only zeros, which are not angles", file.name, layout.angles
            )
            layout, angles = replace(layout, angles=None), None
    stored = facts_of_file(file, layout, data)
    if angles is None and stored.layout.angles is not None:
        angles = stored_angles(file, stored.layout.angles, options, data)
    if angles is None and not stored.angle_note:
        degrees, fault = angles_by_steps(stored.values, data.spec.shape[0])
        stored = replace(stored, angle_note=fault)
        angles = None if degrees is None else radians_from_degrees(file.name, degrees)
    if stored.angle_note:
        logger.warning("%s: %s", file.name, stored.angle_note)
    return angles, stored


def angles_option(
    name: str, options: LoaderOptions, data: Selection
) -> NDArray[np.float32] | str | None:
    """Angles given by the options, in radians; a path in the file, or None for "auto".

    `data` are all projections of the scan.

    Raises
    ------
    SourceError
        If they are not finite numbers, or a range has another number of them than `data` may have.
    """
    given: Any = options.rotation_angles
    if isinstance(given, str):
        return None if given == "auto" else given
    if isinstance(given, AngleRange):
        # Before they are computed: a wrong number may be a huge one.
        check_angle_count(name, given.count, data, options.preview)
        return radians_from_degrees(name, given.degrees())
    if isinstance(given, AngleFile):
        return angles_in_file(given, options, data)
    return radians_from_degrees(name, given)


def angles_in_file(
    given: AngleFile, options: LoaderOptions, data: Selection
) -> NDArray[np.float32]:
    """Read angles in radians from a file of their own.

    Raises
    ------
    SourceError
        If they cannot be read, or there are more or fewer than the scan may have.
    """
    path = given.file
    if check_readable(path) == "folder":
        raise SourceError(f"{path}: is a folder: give the file of the rotation angles")
    if is_hdf5(path):
        if given.data_path is None:
            raise SourceError(f"{path}: give the data_path of the rotation angles in it")
        with Hdf5File(path) as file:
            return stored_angles(file, given.data_path, options, data)
    try:
        text = read_small_text(path, _MAX_TEXT_BYTES)
        degrees = np.array([float(word) for word in text.replace(",", " ").split()])
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{path}: is neither HDF5 nor a text of angles in degrees ({error})"
        ) from None
    check_angle_count(str(path), degrees.size, data, options.preview)
    return radians_from_degrees(str(path), degrees)


def _in_radians(name: str, unit: str) -> bool:
    """True if stored angles are in radians; without units they are in degrees."""
    text = unit.lower()
    if text.startswith("rad"):
        return True
    if text.startswith(("deg", "°")) or text in ("", "none", "null"):
        return False
    raise SourceError(
        f"{name}: are in {text!r}, neither degrees nor radians: give them in degrees with "
        "rotation_angles"
    )
