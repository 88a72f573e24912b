"""Check a pipeline, alone or with a scan: `check`."""

from __future__ import annotations

import contextlib

import numpy as np

from ..core.arrays import SLICE_NAMES
from ..errors import UnknownReferenceError
from ..io.scans.chosen_part import PartLike
from ..pipeline import Pipeline, Section, cut_into_sections
from ..pipeline.pipeline import PipelineLike, as_pipeline
from ..pipeline.requirements import check_known_shapes, check_supplied
from ..planner.plan import shown_values
from .scan_and_output import Scan, chosen_part, opened, spec_of
from .values_first import DefaultValues, answered


def check(
    pipeline: PipelineLike,
    scan: Scan | None = None,
    *,
    allow_missing_frames: bool = False,
    rows: PartLike | None = None,
    columns: PartLike | None = None,
    angles: PartLike | None = None,
) -> str:
    """Check that a pipeline is well formed, and that it can run on a scan if one is given.

    Parameters
    ----------
    pipeline : Pipeline, path or iterable of steps
        A pipeline, its YAML file, or steps as `Pipeline.from_steps` takes them.
    scan : path, ndarray, ArrayScan or Source, optional
        A scan.
    allow_missing_frames : bool
        Whether frames that were never written are read as the fill value.
    rows, columns, angles : str, int, slice or tuple, optional
        Part of the scan that is read, as for `run`.

    Returns
    -------
    str
        What was checked, for people.

    Raises
    ------
    MaxslicesError
        With every fault found.
    """
    chosen = {"rows": rows, "columns": columns, "angles": angles}
    checked = chosen_part(scan, as_pipeline(pipeline), chosen)
    n_steps = len(checked.steps)
    lines = [f"{checked.name}: {n_steps} method{'s' if n_steps > 1 else ''}, well formed"]
    lines += [f"  warning: {text}".replace("\n", "\n  ") for text in checked.warnings]
    if scan is None:
        lines += _about_steps(checked, reads_rows=True)
        wanted = {name for step in checked.steps for name in step.meta.supplied}
        needs = [name for name in ("flats", "darks", "angles") if name in wanted]
        if needs:
            lines.append(f"  it uses a scan's {', '.join(needs)}")
        return "\n".join(lines)
    with opened(scan, checked, allow_missing_frames=allow_missing_frames) as source:
        spec = spec_of(source)
        check_supplied(checked, spec)
        check_known_shapes(_sections(checked, reads_rows=spec.reads_rows), spec)
        lines += _about_steps(checked, reads_rows=spec.reads_rows)
        lines.append(f"{spec.name}: {spec.projections}")
        for name, frames in (("flats", spec.flats), ("darks", spec.darks)):
            lines.append(f"  {name}: {frames.shape[0] if frames else 'none'}")
        wanted = {name for step in checked.steps for name in step.meta.supplied}
        lines += [f"  {text}" for text in spec.says_of_frames(wanted)]
        radians = source.angles
        if radians is None:
            lines.append("  angles: none")
        else:
            first, last = np.rad2deg(radians[[0, -1]])
            lines.append(f"  angles: {len(radians)}, {first:g} to {last:g} degrees")
    return "\n".join(lines)


def _sections(pipeline: Pipeline, *, reads_rows: bool) -> list[Section]:
    """Sections of a pipeline; none if they depend on what only a run can find."""
    with contextlib.suppress(UnknownReferenceError):
        return answered(
            lambda known: cut_into_sections(known, reads_rows=reads_rows), pipeline, DefaultValues()
        )[0]
    return []


def _about_steps(pipeline: Pipeline, *, reads_rows: bool) -> list[str]:
    """Lines on the sections and sweeps of a pipeline."""
    lines = []
    for number, section in enumerate(_sections(pipeline, reads_rows=reads_rows), start=1):
        names = ", ".join(step.meta.name for step in section.steps)
        lines.append(f"  section {number}, {SLICE_NAMES[section.slice_dim]}s: {names}")
    lines += [
        f"  sweeps {step.meta.name}.{name} over {len(sweep.values)} values: "
        f"{shown_values(sweep.values)}"
        for step in pipeline.steps
        for name, sweep in step.sweeps.items()
    ]
    return lines
