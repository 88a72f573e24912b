"""Try a scan: a few slices of it by a pipeline that is made for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

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
from .full_turn import LEAST_COLUMNS, find_turn_axis, is_full_turn
from .run_request import RunRequest
from .run_scan import run_requested
from .scan_and_output import check_out, facts_of, likely_layout

PIPELINE_NAME = "pipeline.yaml"
"""Name of the pipeline in the folder of the results."""

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
    if angles is not None and is_full_turn(angles) and width >= LEAST_COLUMNS:
        steps = [*made.loader_steps, *(yaml.safe_load(made.steps) or [])]
        limits = {name: value for name, value in options.items() if name in _LIMITS}
        axis = find_turn_axis(scan, steps, angles, axis_row, limits)
        notes = *made.notes, axis.note
        made = replace(made, notes=notes, is_stitched=axis.is_stitched)
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
