"""Projections of a preview, and their angles among those that are given."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import SourceError
from ..frames.frames import IndexRange
from ..frames.selection import Selection
from .loader_options import Preview


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
            f"{data.runs[0][0]} to {data.runs[-1][1] - 1}"
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


def previewed_angles(angles: NDArray[Any], data: Selection, preview: Preview) -> NDArray[Any]:
    """Angles of the projections in a preview, among those of `projections_angles`."""
    first, last = previewed(data, preview)
    if angles.size == len(range(first, last, preview.angle_step)):
        return angles
    return angles[first : last : preview.angle_step]


def projections_angles(angles: NDArray[Any], data: Selection, preview: Preview) -> NDArray[Any]:
    """Angles that `check_angle_count` accepts, without those of flats and darks."""
    n_read = len(range(*previewed(data, preview), preview.angle_step))
    if angles.size in (n_read, data.spec.shape[0]):
        return angles
    of_projections: NDArray[Any] = np.concatenate([angles[slice(*run)] for run in data.runs])
    return of_projections
