"""Where the axis of a full turn is: near the middle of the detector, or near an edge of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.angles import HALF_TURN, angle_table
from ..io import ArrayScan
from ..runner import Report
from ..runner.sweep_pictures import sharpness
from .run_request import RunRequest
from .run_scan import run_requested
from .scan_and_output import Scan

FULL_TURN = 1.25 * HALF_TURN
"""Degrees above which a scan is of a full turn: some scans of half a turn go a little beyond it."""
LEAST_COLUMNS = 14
"""Fewest columns in which `find_center_360` compares windows."""
SAME_AXIS = 2.0
"""Columns within which two axes are one."""
LEAST_OVERLAP = 3
"""Fewest columns that two views must share to be compared."""
BEYOND = 0.02
"""Part of what a sinogram sums up to that shows that the object reaches beyond the columns that are
as far from the axis as the nearer edge: noise and an uneven beam sum up to less."""
SURE = 2.0
"""How many times better the chosen axis must be for no doubt to be said."""
SINOGRAM = tuple[NDArray[Any], NDArray[Any]]
"""Views from the front and, for each, the one from behind: (angles, columns)."""


@dataclass(frozen=True, slots=True)
class TurnAxis:
    """The axis of a full turn."""

    is_stitched: bool
    """True for a half acquisition: the views half a turn apart are to be stitched."""
    note: str
    """Where the axis is, and how sure that is."""


@dataclass(frozen=True, slots=True)
class _Tried:
    """An axis, and how well it explains the data."""

    axis: float
    """Column on which it projects."""
    correlation: float
    """Of views half a turn apart, mirrored about it."""
    sharpness: float
    """Of the slice around it."""

    @property
    def misfit(self) -> float:
        """Less for an axis with which views agree better and slices are sharper."""
        return (1 - self.correlation) / max(self.sharpness, 1e-9)


def is_full_turn(angles: NDArray[np.float32]) -> bool:
    """True if a scan is of more than half a turn, and views have others from behind."""
    table = angle_table(angles)
    if table.turned <= FULL_TURN:
        return False
    try:
        table.opposite(len(angles) // 2)
    except ValueError:
        return False
    return True


def find_turn_axis(
    scan: Scan,
    steps: Sequence[Mapping[str, Any]],
    angles: NDArray[np.float32],
    row: int,
    options: Mapping[str, Any],
) -> TurnAxis:
    """Find whether the axis of a full turn is near the middle of the detector or near an edge.

    Both are tried on one sinogram: `find_center_vo` near the middle, and `find_center_360` from the
    overlap of both halves. The axis wins with which views half a turn apart agree better and the
    slice is sharper.

    Parameters
    ----------
    scan : path or Source
        The scan.
    steps : sequence of mapping
        Loader and methods that make line integrals, as in a pipeline file.
    angles : ndarray
        Its angles in radians.
    row : int
        Row of the detector that is looked at.
    options : mapping
        Options of `maxslices.run`: device and budgets.
    """
    found = _run(scan, [*steps, "find_center_vo", "find_center_360"], {**options, "rows": row})
    assert found.result is not None
    data, side = found.result, found.side_results
    width = data.shape[2]
    overlap, name = side["find_center_360.overlap"], side["find_center_360.side"]
    near_edge = (overlap - 1) / 2
    stitch = ("sino_360_to_180", {"overlap": overlap, "side": name})
    axes = {
        "middle": (side["find_center_vo.cor"], [], None),
        "edge": (width - 1 - near_edge if name == "right" else near_edge, [stitch], width - 0.5),
    }
    is_one = abs(axes["middle"][0] - axes["edge"][0]) <= SAME_AXIS
    if is_one or overlap > width - 1 - 2 * SAME_AXIS:  # views that overlap whole have no edge
        del axes["edge"]
    pairs = angle_table(angles).opposite(len(angles) // 2)
    views = data[pairs[0], 0], data[pairs[1], 0]
    tried = []
    for axis, before, center in axes.values():
        fbp = ("fbp", {"center": axis if center is None else center, "recon_size": width})
        # The angles are those of the sinogram, whose frames are all there.
        slices = _run(ArrayScan(data, angles=angles), [*before, fbp], options)
        assert slices.result is not None
        tried.append(_Tried(axis, _correlation(views, axis), sharpness(slices.result[:, 0])))
    best, *others = sorted(tried, key=lambda each: each.misfit)
    is_stitched = _reaches_beyond(data[:, 0], best.axis)
    kind = "a half acquisition" if is_stitched else "a full turn"
    note = (
        f"{kind}: the axis is at column {best.axis:.1f} of {width}, where views half a turn apart "
        f"correlate by {best.correlation:.3f}"
    )
    for other in others:
        note += f" (at column {other.axis:.1f} by {other.correlation:.3f}) and the slice is "
        note += f"{best.sharpness / max(other.sharpness, 1e-9):.2g} times as sharp"
        if other.misfit < SURE * best.misfit:
            note += "; this is not certain: look at both"
    if is_stitched:
        note += "; the views are stitched"
    return TurnAxis(is_stitched, note)


def _run(scan: Scan, steps: Sequence[Any], options: Mapping[str, Any]) -> Report:
    """Run steps without warnings: those of the axis that is not chosen would mislead."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        return run_requested(RunRequest(scan=scan, pipeline=list(steps), **options))
    finally:
        logging.disable(disabled)


def _correlation(views: SINOGRAM, axis: float) -> float:
    """Correlation of views with those from behind, mirrored about an axis; 0 without an overlap."""
    front, behind = (np.asarray(view, np.float64) for view in views)
    last = front.shape[1] - 1
    columns = np.arange(np.ceil(max(0, 2 * axis - last)), np.floor(min(last, 2 * axis)) + 1)
    if len(columns) < LEAST_OVERLAP:
        return 0.0
    below = np.minimum(np.floor(2 * axis - columns).astype(int), last - 1)
    part = 2 * axis - columns - below
    mirrored = behind[:, below] * (1 - part) + behind[:, below + 1] * part
    seen = front[:, columns.astype(int)]
    seen, mirrored = seen - seen.mean(), mirrored - mirrored.mean()
    size = np.sqrt((seen**2).sum() * (mirrored**2).sum())
    return float((seen * mirrored).sum() / size) if size > 0 else 0.0


def _reaches_beyond(sinogram: NDArray[Any], axis: float) -> bool:
    """True if the object is seen farther from the axis than the detector's nearer edge."""
    last = sinogram.shape[1] - 1
    away = np.abs(np.arange(last + 1) - axis)
    columns = np.nan_to_num(np.asarray(sinogram, np.float64)).sum(axis=0)
    beyond = columns[away > min(axis, last - axis) + 1].sum()
    return bool(abs(beyond) > BEYOND * abs(columns.sum()))
