"""Where the results of a run go, a folder or memory, and what they are."""

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
    """Keeps nothing on disk: no results, no journal, and nothing of a run that is stopped.

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
        """Nothing is compared with a later run."""

    def mark(self, origin: Callable[[], ResultInfo], log: RunLog) -> None:
        """Nothing is written that would say where it came from."""

    def begin(self, plan: Plan, results: Mapping[str, ArraySpec]) -> None:
        """There is nothing to prepare."""

    def sink(
        self, name: str, spec: ArraySpec, slice_dim: int, info: ResultInfo, *, has_slices: bool
    ) -> Sink | None:
        """No result is written."""
        return None

    def finish(
        self, found: Mapping[str, Any] | None = None, progress: Progress | None = None
    ) -> tuple[Path, ...]:
        """No files."""
        return ()

    def records(self, with_picture: bool) -> tuple[Path, ...]:
        """No files."""
        return ()

    def conclude(self, write: Callable[[RunFolder], str]) -> None:
        """Nothing is written about the run."""


Results = RunFolder | ResultsInMemory
"""Where the results of a run go."""


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
        What is run.
    pipeline : Pipeline
        Its methods.
    wall_time : WallTime
        Is told of the wait for disk space.
    angles : ndarray, optional
        Angle of each projection in radians.

    Returns
    -------
    dict of int to Sink
        Index of a step in the pipeline -> its sink. Results in memory have none.
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
    found = {}
    infos = infos_of_steps(plan, pipeline, replace(folder.origin, angles=angles))
    for number, section in enumerate(plan.sections):
        state = SectionState() if folder.unfinished is None else folder.unfinished.sections[number]
        for step in section.steps:
            if step.index in names:
                info = replace(infos[step.index], steps=tuple(notes[: step.index + 1]))
                found[step.index] = folder.sink(
                    names[step.index],
                    step.output,
                    section.slice_dim,
                    info,
                    has_slices=state.has_slices,
                )
    return {index: sink for index, sink in found.items() if sink is not None}


def infos_of_steps(plan: Plan, pipeline: Pipeline, info: ResultInfo) -> dict[int, ResultInfo]:
    """Say what the result of each step is, by what the scan is."""
    found, pixels = {}, plan.sections[0].input
    for step in (step for section in plan.sections for step in section.steps):
        info = _after(info, pipeline.steps[step.index].meta, pixels, step.output)
        found[step.index], pixels = info, step.output
    return found


def _after(info: ResultInfo, meta: MethodMeta, given: ArraySpec, made: ArraySpec) -> ResultInfo:
    """What the result of a step is, by what it was given.

    Rows and columns of a reconstruction are those of its projections. Where another method changes
    their number, they are the detector's no longer.
    """
    if meta.saved_by_default:
        return replace(info, is_volume=True, angles=None)
    if info.angles is not None and len(info.angles) != made.shape[0]:
        info = replace(info, angles=None)
    first = 0 if info.is_volume else 1
    if given.shape[first:] == made.shape[first:]:
        return info
    row, column = info.first_pixel
    size = info.pixel_size if meta.keeps_pixel_size else None
    if size != info.pixel_size:
        warnings.warn(
            f"the pixel size is left out from {meta.name} on: it changes the number of rows or "
            "columns",
            stacklevel=2,
        )
    return replace(
        info,
        pixel_size=size,
        first_pixel=(
            row if given.shape[1] == made.shape[1] else None,
            column if given.shape[2] == made.shape[2] else None,
        ),
    )


def _note(step: Step) -> ProcessNote:
    defaults = {name: v for name, v in step.meta.merged().items() if name not in step.meta.supplied}
    version = package_version(step.meta.function)
    return ProcessNote(step.meta.full_name, version, {**defaults, **step.parameters})
