"""Planning a sweep: the steps that run once, and those that run for each value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import DoesNotFitError, ParameterError
from ..estimate import Chooser
from ..estimate.declared import check_planned
from ..estimate.section_models import section_models
from ..model.arrays import ArraySpec
from ..model.section_model import SectionModel
from ..model.units import format_bytes
from ..pipeline import Pipeline, ScanSpec, cut_into_sections
from ..pipeline.sweep import SweptPipeline
from ..pipeline.sweep_rows import SweepRows, reach_after, rows_of_sweep
from ..planner import Budgets, Plan, make_plan
from ..planner.block_size import BlockChoice
from ..planner.sweep_plan import SweepPlan, shown_values, value_text
from ..planner.tile_and_offload import FitChoice
from ..registry.parameters import matches
from ..runner.contact_sheet import ContactSheet
from ..runner.sharpness import sharpness_bytes
from .made_for import made_for
from .sweep_source import spec_with_rows


@dataclass(frozen=True, slots=True)
class PreparedSweep:
    """A sweep that can run: its plans, and where the data of each are."""

    cut: SweptPipeline
    """The pipeline, cut before the swept step; without steps that look at other rows."""
    whole: SweepPlan
    """All of it, for people."""
    rows: SweepRows
    """The rows that are read."""
    before: Plan | None
    """Plan of the steps that run once; None if there are none that make data."""
    window: tuple[int, int]
    """Rows of what these make, or of the rows that are read, that the swept step is given."""
    plans: dict[Any, Plan]
    """Structure of a value's sections -> their plan; see `structure`."""
    data: ArraySpec
    """What the swept step is given."""

    def plan_of(self, pipeline: Pipeline) -> Plan:
        """Plan of the steps for one value."""
        return self.plans[structure(pipeline, self.data)]


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


def prepare_sweep(
    cut: SweptPipeline,
    scan: ScanSpec,
    budgets: Budgets,
    chooser: Chooser,
    *,
    block: BlockChoice,
    fit: FitChoice,
    to_folder: bool,
    content: Pipeline,
    notes: Sequence[str] = (),
) -> PreparedSweep:
    """Plan a sweep.

    Parameters
    ----------
    cut : SweptPipeline
        The pipeline.
    scan : ScanSpec
        The whole scan.
    budgets : Budgets
        Device and budgets.
    chooser : Chooser
        Finds the memory models.
    block, fit
        As for `plan`.
    to_folder : bool
        Whether the pictures are written; if not, they are kept in memory.
    content : Pipeline
        The pipeline as given.
    notes : sequence of str
        Assumptions to print with the plan.

    Raises
    ------
    MaxslicesError
        If the scan lacks what a method needs, an estimator fails, values give pictures of
        different shapes, or it does not fit.
    """
    rows = rows_of_sweep(cut, scan.projections.shape[1])
    extra = [f"left out in a sweep: {', '.join(cut.left_out)}"] if cut.left_out else []
    if cut.before is not None and rows.elsewhere:
        names = [cut.before.steps[index].meta.name for index in rows.elsewhere]
        extra.append(f"other rows are read for {', '.join(names)}, as in a run without a sweep")
        kept = [s for i, s in enumerate(cut.before.steps) if i not in rows.elsewhere]
        cut = replace(cut, before=replace(cut.before, steps=tuple(kept)) if kept else None)
    read = spec_with_rows(scan, rows.n_rows)
    models: tuple[SectionModel, ...] = ()
    made = read.projections
    if cut.before is not None:
        models = section_models(cut.before, read, chooser)
        made = models[-1].output
    window = _window(cut, made, rows, budgets)
    data = made.with_slices(1, window[1] - window[0])
    # The whole output of the steps before, and then the rows of it that the swept step is given.
    held = made.nbytes + (data.nbytes if data != made else 0)
    before = None
    if cut.before is not None:
        before = make_plan(
            models,
            _less(budgets, held),
            scan=f"{scan.name}: {read.projections}",
            in_memory=read.in_memory,
            block=block,
            fit=fit,
            result_in_memory=True,
            result_is_direct=False,
        )
        check_planned(models, before.sections)
    side = sum(spec.nbytes for spec in read.frames({"flats", "darks"}))
    given = spec_with_rows(scan, data.shape[1], data)
    plans, picture, n_bytes = _plan_values(
        cut, given, budgets, held + side, chooser, block, fit, to_folder
    )
    each = max(plans.values(), key=lambda plan: plan.estimated_bytes)
    earlier = () if before is None else before.sections
    whole = SweepPlan(
        scan=f"{scan.name}: {scan.projections}",
        device=budgets.device,
        budget_bytes=budgets.budget_bytes,
        reserved_bytes=budgets.reserved_bytes,
        host_budget_bytes=budgets.host_budget_bytes,
        sections=(*earlier, *each.sections),
        scratch_bytes=max(plan.scratch_bytes for plan in (each, before or each)),
        result_bytes=picture.nbytes if to_folder else 0,
        notes=(*notes, *(() if before is None else before.notes), *each.notes, *extra),
        made_for=made_for(content, scan, budgets.kind),
        parameter=cut.name,
        values=cut.sweep.values,
        rows=(rows.start, rows.stop),
        why_rows=rows.why,
        n_before=len(earlier),
        picture=picture,
        held_bytes=held + side,
        pictures_bytes=n_bytes,
    )
    return PreparedSweep(cut, whole, rows, before, window, plans, data)


def _window(
    cut: SweptPipeline, made: ArraySpec, rows: SweepRows, budgets: Budgets
) -> tuple[int, int]:
    """Rows that the swept step is given.

    On a CPU those that the pictures depend on. On a GPU all: a call takes as long for five rows as
    for one, and is then the same as httomo's, bit for bit.
    """
    n_rows = made.shape[1]
    if budgets.kind == "cuda" or n_rows != rows.n_rows:
        return 0, n_rows
    reach = sum(reach_after(cut).values())
    middle = rows.middle - rows.start
    return max(0, middle - reach), min(n_rows, middle + reach + 1)


def _plan_values(
    cut: SweptPipeline,
    given: ScanSpec,
    budgets: Budgets,
    held: int,
    chooser: Chooser,
    block: BlockChoice,
    fit: FitChoice,
    to_folder: bool,
) -> tuple[dict[Any, Plan], ArraySpec, int]:
    """Make the plans of all values; these, the pictures, and the host memory that they take.

    Values whose sections have the same form share the plan of that which takes most.
    """
    alike: dict[Any, list[Any]] = {}
    for value in cut.sweep.values:
        alike.setdefault(structure(cut.with_value(value, {}), given.projections), []).append(value)
    models = {
        key: [section_models(cut.with_value(v, {}), given, chooser) for v in _extremes(values)]
        for key, values in alike.items()
    }
    outputs = {key: found[0][-1].output for key, found in models.items()}
    _check_alike(cut, alike, outputs)
    result = next(iter(outputs.values()))
    n_values = len(cut.sweep.values)
    shape = (n_values, result.shape[0], result.shape[2])
    picture = ArraySpec(shape, result.dtype)
    sheet = ContactSheet(n_values, shape[1:], "").n_bytes if to_folder else 0
    # The result of one value; its middle row, which is a copy; and as numbers for the measure.
    one = result.with_slices(1, 1).nbytes
    pictures = result.nbytes + 2 * one + sharpness_bytes(shape[1:]) + sheet
    if not to_folder:
        pictures += picture.nbytes
    left = _less(budgets, held + pictures)
    chosen = {}
    for key, found in models.items():
        plans = []
        for each in found:
            made = make_plan(
                each,
                left,
                scan=f"{given.name}: {given.projections}",
                in_memory=True,
                block=block,
                fit=fit,
                result_in_memory=True,
            )
            check_planned(each, made.sections)
            plans.append(made)
        chosen[key] = max(plans, key=lambda plan: plan.estimated_bytes)
    return chosen, picture, pictures


def _extremes(values: list[Any]) -> list[Any]:
    """Smallest and largest of numbers, which take least and most memory; else the first value."""
    numbers = [v for v in values if matches(float, v)]
    if len(numbers) < len(values):
        return values[:1]
    return sorted({min(numbers), max(numbers)})


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
                cut.sweep.place,
            )


def _less(budgets: Budgets, held: int) -> Budgets:
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
