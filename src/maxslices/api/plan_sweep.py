"""Planning a sweep: the steps that run once, and those that run for each value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..core.arrays import ArraySpec
from ..estimate import Chooser
from ..estimate.section_model import SectionModel
from ..estimate.section_models import section_models
from ..pipeline import Pipeline, ScanSpec
from ..pipeline.sweep import SweptPipeline, cut_at_sweep
from ..pipeline.sweep_rows import SweepRows, reach_after, rows_of_sweep
from ..planner import Budgets, Plan, make_plan
from ..planner.block_size import BlockChoice
from ..planner.check_planned import check_planned
from ..planner.sweep_plan import SweepPlan
from ..planner.tile_and_offload import FitChoice
from .made_for import made_for
from .plan_values import ValuePlans, less_held, plan_values
from .sweep_source import spec_with_rows
from .values_first import ValueSource, answered

ChooserOf = Callable[[ScanSpec], Chooser]
"""Makes a chooser of memory models for a scan."""


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
    plans: ValuePlans
    """Plans of the steps that run for each value."""


def prepare_sweep(
    pipeline: Pipeline,
    scan: ScanSpec,
    budgets: Budgets,
    chooser_of: ChooserOf,
    *,
    block: BlockChoice,
    fit: FitChoice,
    to_folder: bool,
    notes: Sequence[str] = (),
    values: ValueSource,
) -> PreparedSweep:
    """Plan a sweep.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline, with a sweep.
    scan : ScanSpec
        The whole scan.
    budgets : Budgets
        Device and budgets.
    chooser_of : callable
        Makes what finds the memory models, for a part of the scan.
    block, fit
        As for `plan`.
    to_folder : bool
        Whether the pictures are written; if not, they are kept in memory.
    notes : sequence of str
        Assumptions to print with the plan.
    values : ValueSource
        Finds values of references that the plan depends on.

    Raises
    ------
    MaxslicesError
        If the scan lacks what a method needs, an estimator fails, values give pictures of
        different shapes, or it does not fit.
    """

    def prepared(known: Pipeline) -> PreparedSweep:
        cut = cut_at_sweep(known)
        assert cut is not None  # it has a sweep
        return _prepared(
            cut,
            scan,
            budgets,
            chooser_of,
            block=block,
            fit=fit,
            to_folder=to_folder,
            content=pipeline,
            notes=(*notes, *values.notes),
        )

    return answered(prepared, pipeline, values)[0]


def _prepared(
    cut: SweptPipeline,
    scan: ScanSpec,
    budgets: Budgets,
    chooser_of: ChooserOf,
    *,
    block: BlockChoice,
    fit: FitChoice,
    to_folder: bool,
    content: Pipeline,
    notes: Sequence[str],
) -> PreparedSweep:
    """Plan a sweep of a pipeline that is cut before its swept step."""
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
        models = section_models(cut.before, read, chooser_of(read))
        made = models[-1].output
    window = _window(cut, made, rows, budgets)
    data = made.with_slices(1, window[1] - window[0])
    # The whole output of the steps before, and then the rows of it that the swept step is given.
    held = made.nbytes + (data.nbytes if data != made else 0)
    before = None
    if cut.before is not None:
        before = make_plan(
            models,
            less_held(budgets, held),
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
    plans = plan_values(
        cut,
        given,
        rows.middle - rows.start - window[0],
        budgets,
        held + side,
        chooser_of(given),
        block=block,
        fit=fit,
        to_folder=to_folder,
    )
    each = plans.largest
    earlier = () if before is None else before.sections
    later = tuple(section for plan in each for section in plan.sections)
    if earlier:  # their results, held in memory, stand in place of the scan
        later = tuple(replace(s, origin="memory") if s.origin == "scan" else s for s in later)
    whole = SweepPlan(
        scan=f"{scan.name}: {scan.projections}",
        device=budgets.device,
        budget_bytes=budgets.budget_bytes,
        reserved_bytes=budgets.reserved_bytes,
        host_budget_bytes=budgets.host_budget_bytes,
        sections=(*earlier, *later),
        scratch_bytes=max(plan.scratch_bytes for plan in (*each, before or each[0])),
        result_bytes=plans.picture.nbytes if to_folder else 0,
        notes=(
            *notes,
            *(() if before is None else before.notes),
            *(note for plan in each for note in plan.notes),
            *extra,
        ),
        made_for=made_for(content, scan, budgets.kind),
        parameter=cut.name,
        values=cut.sweep.values,
        rows=(rows.start, rows.stop),
        why_rows=rows.why,
        n_before=len(earlier),
        picture=plans.picture,
        held_bytes=held + side,
        pictures_bytes=plans.pictures_bytes,
    )
    return PreparedSweep(cut, whole, rows, before, window, plans)


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
