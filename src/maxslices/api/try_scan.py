"""Try a scan: a few slices of it by a pipeline that is made for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ..core.units import readable
from ..errors import SourceError, StoreError
from ..io import Preview, Source
from ..io.scans.chosen_part import PartLike, preview_words, with_choice
from ..io.scans.frame_source import FrameSource
from ..io.scans.likely_parts import LikelyParts, open_likely
from ..pipeline.check_steps import LOADER_METHOD
from ..planner import Plan
from ..runner import Report
from ..runner.folder.folder_place import check_usable
from ..system.disk_space import check_absent
from ..system.files import replace_text
from .run_request import RunRequest
from .run_scan import run_requested
from .scan_and_output import check_out, facts_of

MORE_THAN_HALF = 1.25 * np.pi
"""Range of angles in radians above which a scan is of a full turn: some go a little beyond 180
degrees."""
PIPELINE_NAME = "pipeline.yaml"
"""Name of the pipeline in the folder of the results."""

_CORRECT = """\
- method: dark_flat_field_correction
- method: minus_log
"""
_REMOVE_STRIPES = """\
- method: remove_stripe_based_sorting
"""
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
        return text + self.steps + _RECONSTRUCT.format(row=axis_row)


def trial_pipeline(source: Source, parts: LikelyParts | None = None) -> TrialPipeline:
    """Make a pipeline for a scan: correction, stripes, axis of rotation, reconstruction.

    Parameters
    ----------
    source : Source
        The scan.
    parts : LikelyParts, optional
        Where its parts were found, if its layout is not known.
    """
    notes = [] if parts is None else [str(parts)]
    loader = {} if parts is None else dict(parts.parameters)
    angles, n_angles = source.angles, source.spec.shape[0]
    if angles is None:
        half = {"start_angle": 0, "stop_angle": 180, "angles_total": n_angles}
        loader["rotation_angles"] = {"user_defined": half}
        stored = facts_of(source)
        why = "" if stored is None else stored.angle_note
        notes.append(f"{why or 'no angles are stored'}: 0 to 180 degrees are assumed")
    elif abs(float(angles[-1] - angles[0])) > MORE_THAN_HALF:
        n_half = int(np.count_nonzero(np.abs(angles - angles[0]) <= np.pi))
        if isinstance(source, FrameSource):
            stop = _stored_frame(source, n_half - 1) + 1
            loader["preview"] = preview_words(with_choice(Preview(), {"angles": (0, stop)}))
            notes.append(
                "a full turn: its first half is read, as for an axis in the middle; to stitch both "
                "halves, remove the preview and put sino_360_to_180 before find_center_vo"
            )
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
    source, parts = open_likely(scan)
    with source:
        stored = facts_of(source)
        if stored is not None and stored.is_volume:
            raise SourceError(
                f"{scan}: is a reconstruction (axes z, y, x), not a scan: try the scan"
            )
        made = trial_pipeline(source, parts)
        start, stop = chosen.bounds(1, source.spec.shape[1], source.name)
    for text in made.notes:
        note(text)
    path = Path(out) / PIPELINE_NAME
    check_usable(path.parent)
    check_absent(path)
    # While it runs, the file is that of the run: if it is stopped, it resumes with this file.
    _write(path, made.text("mid", rows))
    options |= {"announce": announce, "picture": True}
    report = run_requested(RunRequest(scan=scan, pipeline=path, out=out, **options))
    _write(path, made.text(start + (stop - start) // 2))
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


def _stored_frame(source: FrameSource, projection: int) -> int:
    """Index of a projection among the frames as they are stored."""
    for start, stop in source.frame_runs:
        if projection < stop - start:
            return start + projection
        projection -= stop - start
    raise IndexError(projection)
