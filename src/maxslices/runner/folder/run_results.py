"""The results of a run, in a folder or in memory, and their metadata."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from numpy.typing import NDArray

from ...core.arrays import ArraySpec
from ...core.method_meta import MethodMeta
from ...estimate.request_key import package_version
from ...io import Sink
from ...io.results.result_format import ResultFormat
from ...io.results.result_info import ProcessNote, ResultInfo
from ...pipeline import Pipeline, Step
from ...planner import Plan
from ..report.progress import Progress
from ..report.run_record import RunLog
from ..report.run_timeline import WallTime
from .run_folder import RunFolder
from .unfinished_run import SectionState


class ResultsInMemory:
    """Results of a run that writes nothing to disk, so that it cannot be resumed.

    Parameters
    ----------
    scratch_folder : Path, optional
        Folder for scratch files.
    """

    def __init__(self, scratch_folder: Path | None = None) -> None:
        self.scratch_folder = scratch_folder
        self.path = None
        self.unfinished = None
        self.journal = None
        self.result_formats: tuple[ResultFormat, ...] = ()
        self.is_kept = False
        self.resume_hint = ""
        self.identity: dict[str, Any] = {}
        self.origin = ResultInfo()
        self.log: RunLog | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def describe(self, identity: Callable[[], dict[str, Any]]) -> None:
        """Do nothing: there is no later run to compare with."""

    def mark(self, origin: Callable[[], ResultInfo], log: RunLog) -> None:
        """Do nothing: no metadata are written."""

    def begin(self, plan: Plan, results: Mapping[str, ArraySpec]) -> None:
        """Do nothing: there is nothing to prepare."""

    def sink(self, name: str, spec: ArraySpec, info: ResultInfo, *, has_slices: bool) -> None:
        """Do nothing: no result is written."""

    def finish(
        self, values: Mapping[str, Any] | None = None, progress: Progress | None = None
    ) -> tuple[Path, ...]:
        """Do nothing: there are no files."""
        return ()

    def records(self, with_picture: bool) -> tuple[Path, ...]:
        """Nothing: there are no files."""
        return ()

    def conclude(self, write: Callable[[RunFolder], str]) -> None:
        """Do nothing: no texts are written."""


Results = RunFolder | ResultsInMemory
"""The results of a run."""


def make_sinks(
    folder: Results,
    plan: Plan,
    pipeline: Pipeline,
    wall_time: WallTime,
    angles: NDArray[Any] | None,
) -> dict[int, Sink]:
    """Begin the run in its folder, and make the sinks of all results.

    Parameters
    ----------
    folder : RunFolder or ResultsInMemory
        The folder.
    plan : Plan
        The plan.
    pipeline : Pipeline
        Its methods.
    wall_time : WallTime
        Records the wait for disk space.
    angles : ndarray, optional
        Angle of each projection in radians.

    Returns
    -------
    dict of int to Sink
        Index of a step in the pipeline -> its sink. Empty for results in memory.
    """
    names = {
        index: "result" if index == pipeline.result_index else f"{index + 1:02d}_{step.meta.name}"
        for index, step in enumerate(pipeline.steps)
        if step.save_result
    }
    with wall_time.during("waiting for disk space"):
        outputs = {
            names[step.index]: step.output
            for section in plan.sections
            for step in section.steps
            if step.index in names
        }
        folder.begin(plan, outputs)
    notes = [_note(step) for step in pipeline.steps]
    sinks = {}
    infos = infos_of_steps(plan, pipeline, replace(folder.origin, angles=angles))
    for number, section in enumerate(plan.sections):
        state = SectionState() if folder.unfinished is None else folder.unfinished.sections[number]
        for step in section.steps:
            if step.index in names:
                info = replace(infos[step.index], steps=tuple(notes[: step.index + 1]))
                name, has_slices = names[step.index], state.has_slices
                sink = folder.sink(name, step.output, info, has_slices=has_slices)
                if sink is not None:
                    sinks[step.index] = sink
    return sinks


def infos_of_steps(plan: Plan, pipeline: Pipeline, info: ResultInfo) -> dict[int, ResultInfo]:
    """Metadata of the result of each step, given those of the scan."""
    infos, pixels = {}, plan.sections[0].input
    for step in (step for section in plan.sections for step in section.steps):
        info = _after(info, pipeline.steps[step.index].meta, pixels, step.output)
        infos[step.index], pixels = info, step.output
    return infos


def _after(info: ResultInfo, meta: MethodMeta, before: ArraySpec, after: ArraySpec) -> ResultInfo:
    """Metadata of the result of a step, given those of its input.

    A reconstruction has the rows and columns of its projections. Any other method that changes
    their number breaks the relation to the pixels of the detector.
    """
    if meta.saved_by_default:
        return replace(info, is_volume=True, angles=None)
    if info.angles is not None and len(info.angles) != after.shape[0]:
        info = replace(info, angles=None)
    first = 0 if info.is_volume else 1
    if before.shape[first:] == after.shape[first:]:
        return info
    row, column = info.first_pixel
    size = info.pixel_size if meta.keeps_pixel_size else None
    if size != info.pixel_size:
        warnings.warn(
            f"results from {meta.name} on have no pixel size: it changes the number of rows or "
            "columns",
            stacklevel=2,
        )
    return replace(
        info,
        pixel_size=size,
        first_pixel=(
            row if before.shape[1] == after.shape[1] else None,
            column if before.shape[2] == after.shape[2] else None,
        ),
    )


def _note(step: Step) -> ProcessNote:
    defaults = {name: v for name, v in step.meta.merged().items() if name not in step.meta.supplied}
    version = package_version(step.meta.function)
    return ProcessNote(step.meta.full_name, version, {**defaults, **step.parameters})
