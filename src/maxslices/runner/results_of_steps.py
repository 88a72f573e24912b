"""Which results a run writes, and what they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from ..estimate.fingerprint import package_version
from ..io import Sink
from ..io.result_info import ProcessNote
from ..model.arrays import ArraySpec
from ..pipeline import Pipeline, Step
from ..planner import Plan
from .results_folder import RunFolder
from .snapshots import snapshot_names
from .unfinished_run import SectionState
from .wall_time import WallTime


def make_sinks(
    folder: RunFolder,
    plan: Plan,
    pipeline: Pipeline,
    wall_time: WallTime,
    angles: NDArray[Any] | None,
) -> dict[int, Sink]:
    """Begin the run in its folder, and make the sinks of all results.

    Parameters
    ----------
    folder : RunFolder
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
        Index of a step in the pipeline -> its sink. Results that are whole have none.
    """
    names = {
        index: "result" if index == pipeline.result_index else f"{index + 1:02d}_{step.meta.name}"
        for index, step in enumerate(pipeline.steps)
        if step.save_result
    }
    with wall_time.during("waiting for disk space"):
        wanted = snapshot_names(pipeline) if folder.saves_snapshots else None
        outputs = {
            names[step.index]: step.output
            for section in plan.sections
            for step in section.steps
            if step.index in names
        }
        folder.begin(plan, outputs, wanted)
    notes = [_note(step) for step in pipeline.steps]
    found = {}
    is_volume, pixel_size, pixels = False, folder.origin.pixel_size, plan.sections[0].input
    for number, section in enumerate(plan.sections):
        state = SectionState() if folder.unfinished is None else folder.unfinished.sections[number]
        for step in section.steps:
            if pipeline.steps[step.index].meta.saved_by_default:
                is_volume, angles = True, None  # the first axis is no longer of angles
            elif _pixels(pixels, is_volume) != _pixels(step.output, is_volume):
                pixel_size = None  # cut, binned or scaled: nothing says which
            pixels = step.output
            if step.index in names:
                has_angles = angles is not None and len(angles) == step.output.shape[0]
                info = replace(
                    folder.origin,
                    is_volume=is_volume,
                    angles=angles if has_angles else None,
                    pixel_size=pixel_size,
                    steps=tuple(notes[: step.index + 1]),
                )
                found[step.index] = folder.sink(
                    names[step.index],
                    step.output,
                    section.slice_dim,
                    has_slices=state.has_slices,
                    info=info,
                )
    return {index: sink for index, sink in found.items() if sink is not None}


def _pixels(spec: ArraySpec, is_volume: bool) -> tuple[int, ...]:
    """Numbers of pixels along the axes that have a pixel size."""
    return spec.shape if is_volume else spec.shape[1:]


def _note(step: Step) -> ProcessNote:
    defaults = {name: v for name, v in step.meta.merged().items() if name not in step.meta.supplied}
    version = package_version(step.meta.function)
    return ProcessNote(step.meta.full_name, version, {**defaults, **step.parameters})
