"""Reconstruct a few slices of a scan with a pipeline that suits it: `try_scan`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from ..core.angles import HALF_TURN, angle_table
from ..core.units import readable
from ..errors import SourceError, StoreError, UsageError
from ..io import Preview, Source, open_source, parse_loader
from ..io.scans.chosen_part import PartLike, preview_words, with_choice
from ..pipeline.check_steps import LOADER_METHOD
from ..planner import Plan
from ..runner import Report
from ..runner.folder.folder_place import check_usable
from ..system.disk_space import check_absent
from ..system.files import replace_text
from .run_request import RunRequest
from .run_scan import run_requested
from .scan_and_output import check_out, facts_of, likely_layout

PIPELINE_NAME = "pipeline.yaml"
"""Name of the pipeline file in the folder of the results."""

FULL_TURN = 1.25 * HALF_TURN
"""Degrees above which a scan is a full turn, as some scans of half a turn go slightly beyond it."""
LEAST_COLUMNS = 14
"""Fewest columns with which `find_center_360` works."""
SAME_AXIS = 2.0
"""Axes that differ by fewer columns are the same."""
LEAST_OVERLAP = 3
"""Fewest columns that two projections must share to be compared."""
BEYOND = 0.02
"""Part of the sum of a sinogram that lies farther from the axis than the nearer edge of the
detector, if the object extends beyond that edge. Noise and an uneven beam sum up to less."""
SURE = 2.0
"""Factor by which the chosen axis must fit better than the other, or its note says that it is not
certain."""

_CORRECT = """\
- method: dark_flat_field_correction
- method: minus_log
"""
_REMOVE_STRIPES = """\
- method: remove_stripe_based_sorting
"""
_STITCH = """\
- method: find_center_360
  parameters:
    ind: {row}
  id: centering
  side_outputs:
    cor: centre_of_rotation
    overlap: overlap
    side: side
- method: sino_360_to_180
  parameters:
    overlap: ${{{{centering.side_outputs.overlap}}}}
    side: ${{{{centering.side_outputs.side}}}}
- method: fbp
  parameters:
    center: ${{{{centering.side_outputs.centre_of_rotation}}}}
"""
"""Reconstruction of a half acquisition."""
_RECONSTRUCT = """\
- method: find_center_vo
  parameters:
    ind: {row}
  id: centering
  side_outputs:
    cor: centre_of_rotation
- method: fbp
  parameters:
    center: ${{{{centering.side_outputs.centre_of_rotation}}}}
"""


@dataclass(frozen=True, slots=True)
class TrialPipeline:
    """A pipeline that suits a scan, according to its file."""

    loader: dict[str, Any]
    """Parameters of the loader."""
    steps: str
    """Steps that correct the projections and remove stripes, as YAML."""
    notes: tuple[str, ...]
    """The assumptions made."""
    is_stitched: bool = False
    """Whether projections of a half acquisition are stitched."""

    @property
    def loader_steps(self) -> list[dict[str, Any]]:
        """The step of the loader, if it needs parameters."""
        step = {"method": LOADER_METHOD, "parameters": self.loader}
        return [step] if self.loader else []

    def text(self, axis_row: int | str, rows: PartLike | None = None) -> str:
        """Write the pipeline file.

        Parameters
        ----------
        axis_row : int or "mid"
            Row, among those that are read, in which the rotation axis is searched.
        rows : str, int, slice or (int, int), optional
            Detector rows to read. Default: all.
        """
        preview = dict(self.loader.get("preview", {}))
        if rows is not None:
            preview |= preview_words(with_choice(Preview(), {"rows": rows}))
        loader = {**self.loader, **({"preview": preview} if preview else {})}
        text = "".join(f"# {readable(note)}\n" for note in self.notes)
        if loader:
            step = {"method": LOADER_METHOD, "parameters": loader}
            text += yaml.safe_dump([step], sort_keys=False)
        last_steps = _STITCH if self.is_stitched else _RECONSTRUCT
        return text + self.steps + last_steps.format(row=axis_row)


def trial_pipeline(source: Source, parameters: Mapping[str, Any] | None = None) -> TrialPipeline:
    """Make a pipeline for a scan: correction, stripes, rotation axis, reconstruction.

    Parameters
    ----------
    source : Source
        The scan.
    parameters : mapping, optional
        Parameters of the loader with which the source was opened.
    """
    layout = likely_layout(source)
    notes, loader = [], dict(parameters or {})
    if layout is not None:
        paths = ", ".join(f"{part} {where}" for part, where in layout.parts.items())
        notes.append(f"by its shape and names: {paths.replace('data ', 'frames ', 1)}")
        loader = layout.parameters | loader
    angles, n_angles = source.angles, source.spec.shape[0]
    if angles is None:
        half = {"start_angle": 0, "stop_angle": 180, "angles_total": n_angles}
        loader["rotation_angles"] = {"user_defined": half}
        stored = facts_of(source)
        why = "" if stored is None else stored.angle_note
        notes.append(f"{why or 'no angles are stored'}: 0 to 180 degrees are assumed")
    if source.flats is not None and source.darks is not None:
        steps = _CORRECT + _REMOVE_STRIPES
    elif source.spec.dtype.kind in "iu":
        steps = "- method: minus_log\n" + _REMOVE_STRIPES
        notes.append(f"{_missing(source)}: slices show -log(counts), darker in the middle")
    else:
        steps = _REMOVE_STRIPES
        notes.append(f"{_missing(source)}: the values are assumed to be attenuation")
        if source.spec.dtype != np.float32:
            steps = ""
            notes.append(
                f"{source.spec.dtype}: stripes are not removed, as this needs float32; save the "
                "scan as float32 to remove them"
            )
    return TrialPipeline(loader, steps, tuple(notes))


def try_scan(
    scan: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    rows: PartLike = "mid",
    flats: str | os.PathLike[str] | None = None,
    darks: str | os.PathLike[str] | None = None,
    angle_range: str | None = None,
    announce: Callable[[Plan], None] = lambda plan: None,
    note: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Report:
    """Reconstruct a few slices of a scan, and draw them.

    Parameters
    ----------
    scan : path
        The scan.
    out : path-like
        Folder for the slices, ``slices.png`` and ``pipeline.yaml``. That pipeline reads all rows.
        With the same options, its slices of the rows tried are identical bit for bit.
    rows : str, int, slice or (int, int)
        Detector rows to reconstruct. Default: two or three in the middle.
    flats, darks : path, optional
        Files or folders of flats and darks that are not in the scan.
    angle_range : str, optional
        First and last angle in degrees, such as "0:360", if none are stored.
    announce : callable
        Called with the plan.
    note : callable
        Called with each assumption as text.
    **options
        Options of `maxslices.run`.

    Raises
    ------
    MaxslicesError
        If the scan cannot be read, methods are not installed, or the run fails.
    """
    check_out(out, scan)
    chosen = with_choice(Preview(), {"rows": rows})
    parameters = _loader_parameters(scan, flats, darks, angle_range)
    source = open_source(scan, parse_loader(parameters)[0], guess=True)
    with source:
        stored = facts_of(source)
        if stored is not None and stored.is_volume:
            raise SourceError(
                f"{scan}: is a reconstruction (axes z, y, x), not a scan: try the scan"
            )
        trial = trial_pipeline(source, parameters)
        start, stop = chosen.bounds(1, source.spec.shape[1], source.name)
        angles, width = source.angles, source.spec.shape[2]
    path = Path(out) / PIPELINE_NAME
    check_usable(path.parent)
    check_absent(path)
    axis_row = start + (stop - start) // 2
    if (pairs := _opposite(angles, width)) is not None:
        steps = [*trial.loader_steps, *(yaml.safe_load(trial.steps) or []), *_FINDERS]
        limits = {name: value for name, value in options.items() if name in _LIMITS}
        with _finders_silenced():
            search = run_requested(RunRequest(scan=scan, pipeline=steps, rows=axis_row, **limits))
        is_stitched, text = _find_turn_axis(search, pairs)
        trial = replace(trial, notes=(*trial.notes, text), is_stitched=is_stitched)
    for text in trial.notes:
        note(text)
    # During the run the file has its rows, so that a stopped run can be resumed with the file.
    _write(path, trial.text("mid", rows))
    options |= {"announce": announce, "picture": True}
    report = run_requested(RunRequest(scan=scan, pipeline=path, out=out, **options))
    _write(path, trial.text(axis_row))
    return report


def _write(path: Path, text: str) -> None:
    """Write the pipeline file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, text)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None


def _missing(source: Source) -> str:
    """Name the flats or darks that a scan lacks."""
    sides = {"flats": source.flats, "darks": source.darks}
    return f"no {' and '.join(name for name, side in sides.items() if side is None)}"


_FINDERS = ("find_center_vo", "find_center_360")
"""Methods that find the axis of a full turn near the middle and near an edge of the detector."""
_LIMITS = ("device", "memory", "host_memory", "block", "estimator")
"""Options for the search for the axis of a full turn."""


def _loader_parameters(
    scan: str | os.PathLike[str],
    flats: str | os.PathLike[str] | None,
    darks: str | os.PathLike[str] | None,
    angle_range: str | None,
) -> dict[str, Any]:
    """Return parameters of the loader for flats, darks and angles of the command line.

    Raises
    ------
    UsageError
        If the range of angles is not two numbers.
    """
    parameters: dict[str, Any] = {
        name: {"file": os.fspath(path)}
        for name, path in (("flats", flats), ("darks", darks))
        if path is not None
    }
    if angle_range is not None:
        try:
            first, last = (float(word) for word in angle_range.split(":"))
        except ValueError:
            raise UsageError(
                f"{angle_range!r} is not a range of angles: give the first and the last in "
                "degrees, such as 0:360"
            ) from None
        source = open_source(scan, guess=True)
        with source:
            count = source.spec.shape[0]
        angles = {"start_angle": first, "stop_angle": last, "angles_total": count}
        parameters["rotation_angles"] = {"user_defined": angles}
    return parameters


def _opposite(angles: NDArray[np.float32] | None, width: int) -> tuple[Any, Any] | None:
    """Return projections of a full turn, and those from the opposite side."""
    if angles is None or width < LEAST_COLUMNS:
        return None
    table = angle_table(angles)
    if table.turned <= FULL_TURN:
        return None
    try:
        return table.opposite(len(angles) // 2)
    except ValueError:
        return None


@contextmanager
def _finders_silenced() -> Iterator[None]:
    """Suppress warnings of the methods, as those of the rejected axis would mislead."""
    logger = logging.getLogger("maxslices_methods")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _find_turn_axis(report: Report, pairs: tuple[Any, Any]) -> tuple[bool, str]:
    """Find whether the axis of a full turn is near the middle of the detector or near an edge.

    Parameters
    ----------
    report : Report
        Report of a run of `find_center_vo`, which searches near the middle, and of
        `find_center_360`, which searches the overlap of both halves. The axis is chosen with which
        projections half a turn apart, mirrored, agree better.
    pairs : tuple of ndarray
        Projections, and those from the opposite side.

    Returns
    -------
    (bool, str)
        Whether the scan is a half acquisition, whose projections half a turn apart are stitched.
        A note on the position of the axis and its certainty.
    """
    assert report.result is not None
    sinogram, side = report.result[:, 0], report.side_results
    width = sinogram.shape[1]
    overlap = side["find_center_360.overlap"]
    near_edge = (overlap - 1) / 2
    if side["find_center_360.side"] == "right":
        near_edge = width - 1 - near_edge
    axes = [side["find_center_vo.cor"]]
    is_whole = overlap > width - 1 - 2 * SAME_AXIS  # a complete overlap has no edge
    if abs(axes[0] - near_edge) > SAME_AXIS and not is_whole:
        axes.append(near_edge)
    views = sinogram[pairs[0]], sinogram[pairs[1]]
    tried = sorted(((_correlation(views, axis), axis) for axis in axes), reverse=True)
    best, axis = tried[0]
    is_stitched = _reaches_beyond(sinogram, axis)
    kind = "a half acquisition" if is_stitched else "a full turn"
    note = (
        f"{kind}: the axis is at column {axis:.1f} of {width}, where projections half a turn apart "
        f"correlate by {best:.3f}"
    )
    for correlation, other in tried[1:]:
        note += f" (at column {other:.1f} by {correlation:.3f})"
        if 1 - correlation < SURE * (1 - best):
            note += "; this is not certain: check both"
    return is_stitched, note + ("; they are stitched" if is_stitched else "")


def _correlation(views: tuple[NDArray[Any], NDArray[Any]], axis: float) -> float:
    """Correlate projections with the mirrored opposite ones. Return 0 without an overlap."""
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
    """Whether the object extends farther from the axis than the nearer edge of the detector."""
    last = sinogram.shape[1] - 1
    away = np.abs(np.arange(last + 1) - axis)
    columns = np.nan_to_num(np.asarray(sinogram, np.float64)).sum(axis=0)
    beyond = columns[away > min(axis, last - axis) + 1].sum()
    return bool(abs(beyond) > BEYOND * abs(columns.sum()))
