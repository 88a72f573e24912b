"""Planning the steps of a sweep that run for each value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.arrays import ArraySpec
from ..core.parameters import matches
from ..core.units import format_bytes
from ..errors import DoesNotFitError, ParameterError
from ..estimate import Chooser
from ..estimate.section_model import SectionModel
from ..estimate.section_models import section_models
from ..pipeline import Pipeline, ScanSpec, cut_into_sections
from ..pipeline.sweep import SweptPipeline
from ..pipeline.sweep_rows import USUAL_ROWS
from ..planner import Budgets, Plan, make_plan
from ..planner.block_size import BlockChoice
from ..planner.check_planned import check_planned
from ..planner.sweep_plan import shown_values, value_text
from ..planner.tile_and_offload import FitChoice
from ..runner.sweep.contact_sheet import ContactSheet
from ..runner.sweep.sharpness import sharpness_bytes
from .sweep_source import spec_with_rows

Stages = tuple[Plan, ...]
"""Plans of the steps for a value: of the swept step, and of those after it where they need fewer
rows; else one of them all."""


@dataclass(frozen=True, slots=True)
class ValuePlans:
    """Plans of the steps that run for each value."""

    plans: dict[Any, Stages]
    """Structure of a value's sections -> their plans; see `structure`."""
    data: ArraySpec
    """What the swept step is given."""
    middle: int
    """The row of it whose picture is made."""
    window: tuple[int, int] | None
    """Rows of the swept step's result that the steps after it are given, in a stage of their own;
    None if there is one stage."""
    picture: ArraySpec
    """The pictures: (values, rows, columns)."""
    pictures_bytes: int
    """Host memory for the results of one value, and for pictures."""

    @property
    def largest(self) -> Stages:
        """Plans of the values that take most memory on the device."""
        return max(self.plans.values(), key=_peak)

    def stages(self, pipeline: Pipeline) -> list[tuple[Plan, Pipeline]]:
        """Plan and pipeline of each stage of the steps for one value."""
        plans = self.plans[structure(pipeline, self.data)]
        return list(zip(plans, stages_of(pipeline, self.window), strict=True))


def _peak(stages: Stages) -> int:
    return max(plan.estimated_bytes for plan in stages)


def stages_of(pipeline: Pipeline, window: tuple[int, int] | None) -> list[Pipeline]:
    """Cut the steps for one value after the swept step, if fewer rows of it go on."""
    if window is None:
        return [pipeline]
    first, *others = pipeline.steps
    return [
        replace(pipeline, steps=(replace(first, save_result=True),)),
        replace(pipeline, steps=tuple(others)),
    ]


def structure(pipeline: Pipeline, data: ArraySpec) -> tuple[Any, ...]:
    """What of the steps for a value decides on the form of its plan: halos and dims."""
    found: list[Any] = []
    dims = data.shape
    for section in cut_into_sections(pipeline):
        for step in section.steps:
            if not step.meta.side_results:
                spec = ArraySpec(dims, data.dtype)
                other = step.meta.output_other_dims(
                    section.slice_dim, spec.other_dims(section.slice_dim), **step.known_parameters()
                )
                n = dims[section.slice_dim]
                dims = (n, *other) if section.slice_dim == 0 else (other[0], n, other[1])
        found.append((section.slice_dim, section.halo, len(section.steps), dims))
    return tuple(found)


def plan_values(
    cut: SweptPipeline,
    given: ScanSpec,
    middle: int,
    budgets: Budgets,
    held: int,
    chooser: Chooser,
    *,
    block: BlockChoice,
    fit: FitChoice,
    to_folder: bool,
) -> ValuePlans:
    """Plan the steps that run for each value.

    Values whose sections have the same form share the plans of those that take most.

    Parameters
    ----------
    cut : SweptPipeline
        The pipeline.
    given : ScanSpec
        What the swept step is given.
    middle : int
        The row of it whose picture is made.
    budgets : Budgets
        Device and budgets.
    held : int
        Bytes of host memory that are taken already.
    chooser : Chooser
        Finds the memory models.
    block, fit, to_folder
        As for `prepare_sweep`.
    """
    data = given.projections
    window = _window_after(cut, data, middle, budgets)
    alike: dict[Any, list[Any]] = {}
    for value in cut.sweep.values:
        alike.setdefault(structure(cut.with_value(value, {}), data), []).append(value)
    models = {
        key: [
            _stage_models(cut.with_value(v, {}), given, window, chooser) for v in _extremes(values)
        ]
        for key, values in alike.items()
    }
    outputs = {key: found[0][-1][1][-1].output for key, found in models.items()}
    _check_alike(cut, alike, outputs)
    result = next(iter(outputs.values()))
    n_values = len(cut.sweep.values)
    shape = (n_values, result.shape[0], result.shape[2])
    picture = ArraySpec(shape, result.dtype)
    sheet = ContactSheet(n_values, shape[1:], "").n_bytes if to_folder else 0
    # The results of one value; its middle row, which is a copy; and as numbers for the measure.
    results = max(
        sum(part[-1].output.nbytes for _, part in each)
        for found in models.values()
        for each in found
    )
    one = result.with_slices(1, 1).nbytes
    pictures = results + 2 * one + sharpness_bytes(shape[1:]) + sheet
    if not to_folder:
        pictures += picture.nbytes
    left = less_held(budgets, held + pictures)
    chosen: dict[Any, Stages] = {}
    for key, found in models.items():
        plans = []
        for each in found:
            stages = []
            for spec, part in each:
                made = make_plan(
                    part,
                    left,
                    scan=f"{spec.name}: {spec.projections}",
                    in_memory=True,
                    block=block,
                    fit=fit,
                    result_in_memory=True,
                )
                check_planned(part, made.sections)
                stages.append(made)
            plans.append(tuple(stages))
        chosen[key] = max(plans, key=_peak)
    return ValuePlans(chosen, data, middle, window, picture, pictures)


def _window_after(
    cut: SweptPipeline, data: ArraySpec, middle: int, budgets: Budgets
) -> tuple[int, int] | None:
    """Rows of the swept step's result that the steps after it need, if these are fewer."""
    swept, *after = cut.swept.steps
    if all(step.meta.side_results for step in after):
        return None
    reach = sum(step.meta.rows_reached(**step.known_parameters()) for step in after)
    if budgets.kind == "cuda":  # where a few rows take no longer than one
        reach = max(reach, USUAL_ROWS // 2)
    window = max(0, middle - reach), min(data.shape[1], middle + reach + 1)
    same_rows = swept.meta.output_dims is None or swept.meta.pattern == "sinogram"
    return window if same_rows and window != (0, data.shape[1]) else None


def _stage_models(
    pipeline: Pipeline, given: ScanSpec, window: tuple[int, int] | None, chooser: Chooser
) -> list[tuple[ScanSpec, Sequence[SectionModel]]]:
    """What each stage is given, and its memory models."""
    found: list[tuple[ScanSpec, Sequence[SectionModel]]] = []
    for part in stages_of(pipeline, window):
        if found and window is not None:
            n_rows = window[1] - window[0]
            made = found[0][1][-1].output.with_slices(1, n_rows)
            given = spec_with_rows(given, n_rows, made)
        found.append((given, section_models(part, given, chooser)))
    return found


def _extremes(values: list[Any]) -> list[Any]:
    """Smallest and largest of numbers, which take least and most memory, and all other values."""
    numbers = [v for v in values if matches(float, v)]
    others = {repr(v): v for v in values if not matches(float, v)}
    ends = sorted({min(numbers), max(numbers)}) if numbers else []
    return [*ends, *others.values()]


def _check_alike(
    cut: SweptPipeline, alike: dict[Any, list[Any]], outputs: dict[Any, ArraySpec]
) -> None:
    """Check that the pictures of all values have one shape."""
    first = next(iter(outputs))
    for key, output in outputs.items():
        if output != outputs[first]:
            raise ParameterError(
                f"{cut.name} = {value_text(alike[first][0])} gives {outputs[first]}, and "
                f"{shown_values(tuple(alike[key][:1]))} gives {output}: the pictures of a sweep "
                "have one shape",
                cut.sweep.place.where,
                cut.sweep.place.pointer,
            )


def less_held(budgets: Budgets, held: int) -> Budgets:
    """Budgets without what a sweep holds in host memory."""
    if held >= budgets.host_budget_bytes:
        raise DoesNotFitError(
            f"the sweep holds {format_bytes(held)} in host memory for data and pictures, and "
            f"{format_bytes(budgets.host_budget_bytes)} are allowed: allow more, or sweep fewer "
            "values"
        )
    host = budgets.host_budget_bytes - held
    if budgets.kind == "cpu":
        return replace(budgets, budget_bytes=budgets.budget_bytes - held, host_budget_bytes=host)
    return replace(budgets, host_budget_bytes=host)
