"""Try a scan: a few slices of it by a pipeline that is made for it."""

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
"""Name of the pipeline in the folder of the results."""

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
"""How many times better the chosen axis must explain the views for no doubt to be said."""

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
    """A pipeline that suits a scan, as far as its file tells."""

    loader: dict[str, Any]
    """Parameters of the loader."""
    steps: str
    """The steps that correct the projections and remove stripes, as text of a file."""
    notes: tuple[str, ...]
    """What was assumed."""
    is_stitched: bool = False
    """Whether the views of a full turn are stitched."""

    @property
    def loader_steps(self) -> list[dict[str, Any]]:
        """The loader's step, if it is needed."""
        step = {"method": LOADER_METHOD, "parameters": self.loader}
        return [step] if self.loader else []

    def text(self, axis_row: int | str, rows: PartLike | None = None) -> str:
        """Write the pipeline file.

        Parameters
        ----------
        axis_row : int or "mid"
            The row, of those that are read, in which the axis of rotation is searched.
        rows : str, int, slice or (int, int), optional
            Detector rows that are read; all by default.
        """
        preview = dict(self.loader.get("preview", {}))
        if rows is not None:
            preview |= preview_words(with_choice(Preview(), {"rows": rows}))
        loader = {**self.loader, **({"preview": preview} if preview else {})}
        text = "".join(f"# {readable(note)}\n" for note in self.notes)
        if loader:
            step = {"method": LOADER_METHOD, "parameters": loader}
            text += yaml.safe_dump([step], sort_keys=False)
        rest = _STITCH if self.is_stitched else _RECONSTRUCT
        return text + self.steps + rest.format(row=axis_row)


def trial_pipeline(source: Source, given: Mapping[str, Any] | None = None) -> TrialPipeline:
    """Make a pipeline for a scan: correction, stripes, axis of rotation, reconstruction.

    Parameters
    ----------
    source : Source
        The scan.
    given : mapping, optional
        Parameters of the loader that the source was opened with.
    """
    layout = likely_layout(source)
    notes, loader = [], dict(given or {})
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
        notes.append(f"{_missing(source)}: slices are of -log(counts), darker in the middle")
    else:
        steps = _REMOVE_STRIPES
        notes.append(f"{_missing(source)}: the values are taken for attenuation")
        if source.spec.dtype != np.float32:
            steps = ""
            notes.append(
                f"{source.spec.dtype}: stripes are left, as they are removed from float32; save "
                "the scan as float32 to have them removed"
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
        Folder for the slices, ``slices.png`` and ``pipeline.yaml``. The pipeline is for all rows:
        with the same options its slices of the rows that were tried are the same, bit for bit.
    rows : str, int, slice or (int, int)
        Detector rows to reconstruct; by default two or three in the middle.
    flats, darks : path, optional
        Files or folders of flats and darks, where they are not in the scan.
    angle_range : str, optional
        First and last angle in degrees, such as "0:360", where none are stored.
    announce : callable
        Is called with the plan.
    note : callable
        Is called with each assumption, as a text.
    **options
        As for `maxslices.run`.

    Raises
    ------
    MaxslicesError
        If the scan cannot be read, methods are not installed, or the run fails.
    """
    check_out(out, scan)
    chosen = with_choice(Preview(), {"rows": rows})
    given = _given_parts(scan, flats, darks, angle_range)
    source = open_source(scan, parse_loader(given)[0], guess=True)
    with source:
        stored = facts_of(source)
        if stored is not None and stored.is_volume:
            raise SourceError(
                f"{scan}: is a reconstruction (axes z, y, x), not a scan: try the scan"
            )
        made = trial_pipeline(source, given)
        start, stop = chosen.bounds(1, source.spec.shape[1], source.name)
        angles, width = source.angles, source.spec.shape[2]
    path = Path(out) / PIPELINE_NAME
    check_usable(path.parent)
    check_absent(path)
    axis_row = start + (stop - start) // 2
    if (pairs := _opposite(angles, width)) is not None:
        steps = [*made.loader_steps, *(yaml.safe_load(made.steps) or []), *_FINDERS]
        limits = {name: value for name, value in options.items() if name in _LIMITS}
        with _finders_silenced():
            found = run_requested(RunRequest(scan=scan, pipeline=steps, rows=axis_row, **limits))
        is_stitched, text = _find_turn_axis(found, pairs)
        made = replace(made, notes=(*made.notes, text), is_stitched=is_stitched)
    for text in made.notes:
        note(text)
    # While it runs, the file is that of the run: if it is stopped, it resumes with this file.
    _write(path, made.text("mid", rows))
    options |= {"announce": announce, "picture": True}
    report = run_requested(RunRequest(scan=scan, pipeline=path, out=out, **options))
    _write(path, made.text(axis_row))
    return report


def _write(path: Path, text: str) -> None:
    """Write the pipeline file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, text)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None


def _missing(source: Source) -> str:
    """Which of flats and darks a scan does not have."""
    sides = {"flats": source.flats, "darks": source.darks}
    return f"no {' and '.join(name for name, side in sides.items() if side is None)}"


_FINDERS = ("find_center_vo", "find_center_360")
"""Methods that find the axis of a full turn near the middle of the detector, and near an edge."""
_LIMITS = ("device", "memory", "host_memory", "block", "estimator")
"""Options with which the axis of a full turn is looked for."""


def _given_parts(
    scan: str | os.PathLike[str],
    flats: str | os.PathLike[str] | None,
    darks: str | os.PathLike[str] | None,
    angle_range: str | None,
) -> dict[str, Any]:
    """Parameters of the loader for parts of a scan that are given.

    Raises
    ------
    UsageError
        If the range is not two numbers.
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
                f"{angle_range!r} is not a range of angles: write the first and the last in "
                "degrees, such as 0:360"
            ) from None
        source = open_source(scan, guess=True)
        with source:
            count = source.spec.shape[0]
        found = {"start_angle": first, "stop_angle": last, "angles_total": count}
        parameters["rotation_angles"] = {"user_defined": found}
    return parameters


def _opposite(angles: NDArray[np.float32] | None, width: int) -> tuple[Any, Any] | None:
    """Views of more than half a turn and, for each, the one from behind; None without any."""
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
    """Leave out warnings of the methods: those of the axis that is not chosen would mislead."""
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
        Of a run of `find_center_vo`, which looks near the middle, and of `find_center_360`, which
        looks at the overlap of both halves. That axis wins with which views half a turn apart,
        mirrored, agree better.
    pairs : tuple of ndarray
        Views, and those from behind.

    Returns
    -------
    (bool, str)
        True for a half acquisition, whose views half a turn apart are to be stitched; where the
        axis is, and how sure that is.
    """
    assert report.result is not None
    sinogram, side = report.result[:, 0], report.side_results
    width = sinogram.shape[1]
    overlap = side["find_center_360.overlap"]
    near_edge = (overlap - 1) / 2
    if side["find_center_360.side"] == "right":
        near_edge = width - 1 - near_edge
    axes = [side["find_center_vo.cor"]]
    is_whole = overlap > width - 1 - 2 * SAME_AXIS  # views that overlap whole have no edge
    if abs(axes[0] - near_edge) > SAME_AXIS and not is_whole:
        axes.append(near_edge)
    views = sinogram[pairs[0]], sinogram[pairs[1]]
    tried = sorted(((_correlation(views, axis), axis) for axis in axes), reverse=True)
    best, axis = tried[0]
    is_stitched = _reaches_beyond(sinogram, axis)
    kind = "a half acquisition" if is_stitched else "a full turn"
    note = (
        f"{kind}: the axis is at column {axis:.1f} of {width}, where views half a turn apart "
        f"correlate by {best:.3f}"
    )
    for correlation, other in tried[1:]:
        note += f" (at column {other:.1f} by {correlation:.3f})"
        if 1 - correlation < SURE * (1 - best):
            note += "; this is not certain: look at both"
    return is_stitched, note + ("; the views are stitched" if is_stitched else "")


def _correlation(views: tuple[NDArray[Any], NDArray[Any]], axis: float) -> float:
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
