"""Plans of sweeps: which rows are read, what runs once, and what runs for each value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..core.arrays import ArraySpec
from ..core.units import format_bytes
from ..errors import DoesNotFitError
from ..io import LoaderOptions
from ..pipeline import Pipeline, ScanSpec
from ..pipeline.sweep import (
    USUAL_ROWS,
    SweepRows,
    SweptPipeline,
    cut_at_sweep,
    reach_after,
    rows_of_sweep,
)
from ..planner import Budgets, Plan
from ..planner.plan import SweepPlan
from ..runner.sweep_pictures import ContactSheet, sharpness_bytes
from .check_run import made_for
from .values_first import ValuesOfWhole, ValueSource, answered

PlanOf = Callable[..., Plan]
"""Plans a pipeline, given its scan, budgets, and what `plan_pipeline` takes more."""


@dataclass(frozen=True, slots=True)
class SweepLayout:
    """The rows that each run of a sweep reads."""

    cut: SweptPipeline
    """The pipeline, cut before the swept step; without steps that look at other rows."""
    rows: SweepRows
    """Rows of the scan that the first run reads."""
    alone: tuple[Pipeline, ...]
    """Runs on the whole scan that find the side results of steps that look at other rows."""
    is_cuda: bool
    """True on a GPU, where a call takes as long for five rows as for one."""

    def given_rows(self, n_rows: int) -> tuple[int, int]:
        """Rows that the swept step is given, of the `n_rows` that the first run made.

        On a CPU those that the pictures depend on. On a GPU all: the call is then the same as
        httomo's, bit for bit.
        """
        if self.is_cuda or n_rows != self.rows.n_rows:
            return 0, n_rows
        return _around(
            self.rows.middle - self.rows.start, sum(reach_after(self.cut).values()), n_rows
        )

    def rows_after(self, n_rows: int, middle: int) -> tuple[int, int] | None:
        """Rows that the steps after the swept one are given, of the `n_rows` that it made.

        None if they are run with the swept step: if they need as many rows as that.
        """
        swept, *after = self.cut.swept.steps
        if all(step.meta.side_results for step in after):
            return None
        reach = sum(step.meta.rows_reached(**step.known_parameters()) for step in after)
        rows = _around(middle, max(reach, USUAL_ROWS // 2 * self.is_cuda), n_rows)
        same_rows = swept.meta.output_dims is None or swept.meta.pattern == "sinogram"
        return rows if same_rows and rows != (0, n_rows) else None

    def parts(self, pipeline: Pipeline, *, is_split: bool) -> list[Pipeline]:
        """Pipelines that are run for a value: the swept step alone and the others, or one."""
        if not is_split:
            return [pipeline]
        swept, *after = pipeline.steps
        return [
            replace(pipeline, steps=(replace(swept, save_result=True),)),
            replace(pipeline, steps=tuple(after)),
        ]


def sweep_layout(cut: SweptPipeline, n_rows: int, *, is_cuda: bool) -> SweepLayout:
    """Choose the rows of a sweep of a scan of `n_rows`."""
    rows, before = rows_of_sweep(cut, n_rows), cut.before
    # What is read is a part of the scan already.
    cut = replace(cut, swept=replace(cut.swept, loader=LoaderOptions()))
    if before is None:
        return SweepLayout(cut, rows, (), is_cuda)
    before = replace(before, loader=LoaderOptions())
    alone = tuple(
        replace(before, steps=tuple(replace(s, save_result=False) for s in before.steps[: i + 1]))
        for i in rows.elsewhere
    )
    kept = tuple(step for i, step in enumerate(before.steps) if i not in rows.elsewhere)
    cut = replace(cut, before=replace(before, steps=kept) if kept else None)
    return SweepLayout(cut, rows, alone, is_cuda)


def plan_sweep(
    pipeline: Pipeline,
    scan: ScanSpec,
    budgets: Budgets,
    plan_of: PlanOf,
    values: ValueSource,
    *,
    to_folder: bool,
    notes: Sequence[str] = (),
) -> tuple[SweepLayout, SweepPlan]:
    """Plan the first run of a sweep, and that of its first value.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline, with a sweep.
    scan : ScanSpec
        The whole scan.
    budgets : Budgets
        Device and budgets.
    plan_of : callable
        Plans a run: `plan_pipeline` with the options of the user.
    values : ValueSource
        Finds values of references that the plan depends on.
    to_folder : bool
        Whether the pictures are written; if not, they are kept in memory.
    notes : sequence of str
        Assumptions to print with the plan.

    Raises
    ------
    MaxslicesError
        If the scan lacks what a method needs, an estimator fails, or it does not fit.
    """

    def planned(known: Pipeline) -> tuple[SweepLayout, SweepPlan]:
        cut = cut_at_sweep(known)
        assert cut is not None  # it has a sweep
        n_rows = scan.projections.shape[1]
        layout = sweep_layout(cut, n_rows, is_cuda=budgets.kind == "cuda")
        plan = _plan_layout(layout, scan, budgets, plan_of, to_folder=to_folder)
        return layout, plan

    layout, plan = answered(planned, pipeline, values)[0]
    all_notes = dict.fromkeys([*notes, *values.notes, *plan.notes])
    content = made_for(pipeline, scan, budgets.kind)
    return layout, replace(plan, notes=tuple(all_notes), made_for=content)


def _plan_layout(
    layout: SweepLayout, scan: ScanSpec, budgets: Budgets, plan_of: PlanOf, *, to_folder: bool
) -> SweepPlan:
    """Plan the runs of a sweep whose rows are chosen."""
    cut, rows = layout.cut, layout.rows
    planned = partial(plan_of, result_in_memory=True, values=ValuesOfWhole())
    given = _with_rows(scan, rows.n_rows)
    sides_bytes = sum(spec.nbytes for spec in given.frames({"flats", "darks"}))
    once: list[Plan] = []
    if cut.before is not None:
        once.append(planned(cut.before, given, budgets))
    made = once[-1].sections[-1].output if once else given.projections
    first, last = layout.given_rows(made.shape[1])
    data = made.with_slices(1, last - first)
    held_bytes = sides_bytes + made.nbytes + (data.nbytes if data != made else 0)
    pipeline = cut.with_value(cut.sweep.values[0], {})
    after = layout.rows_after(data.shape[1], rows.middle - rows.start - first)

    def each_planned(held: int) -> list[Plan]:
        left, plans = less_held(budgets, held), list[Plan]()
        given = _with_rows(scan, data.shape[1], data)
        for part in layout.parts(pipeline, is_split=after is not None):
            if plans and after is not None:
                n_rows = after[1] - after[0]
                output = plans[0].sections[-1].output.with_slices(1, n_rows)
                given = _with_rows(scan, n_rows, output)
            plans.append(planned(part, given, left))
        return plans

    # What the pictures take is known when their shape is; the runs are planned without it.
    each = each_planned(held_bytes)
    result = each[-1].sections[-1].output
    picture = ArraySpec((len(cut.sweep.values), result.shape[0], result.shape[2]), result.dtype)
    pictures_bytes = _pictures_bytes(picture, to_folder=to_folder)
    pictures_bytes += sum(plan.sections[-1].output.nbytes for plan in each)
    try:
        each = each_planned(held_bytes + pictures_bytes)
    except DoesNotFitError as error:
        held = format_bytes(held_bytes + pictures_bytes)
        raise DoesNotFitError(
            f"{error}; with it the sweep holds {held} of data and pictures"
        ) from None
    # Their data, held in memory, take the place of the scan.
    later = [s for plan in each for s in plan.sections]
    if once:
        later = [replace(s, origin="memory") if s.origin == "scan" else s for s in later]
    extra = [f"left out in a sweep: {', '.join(cut.left_out)}"] if cut.left_out else []
    if layout.alone:
        names = ", ".join(each.steps[-1].meta.name for each in layout.alone)
        extra.append(f"other rows are read for {names}, as in a run without a sweep")
    return SweepPlan(
        scan=f"{scan.name}: {scan.projections}",
        device=budgets.device,
        budget_bytes=budgets.budget_bytes,
        reserved_bytes=budgets.reserved_bytes,
        host_budget_bytes=budgets.host_budget_bytes,
        sections=(*(s for plan in once for s in plan.sections), *later),
        scratch_bytes=max(plan.scratch_bytes for plan in (*once, *each)),
        result_bytes=picture.nbytes if to_folder else 0,
        notes=(*(note for plan in (*once, *each) for note in plan.notes), *extra),
        parameter=cut.name,
        values=cut.sweep.values,
        rows=(rows.start, rows.stop),
        why_rows=rows.why,
        n_before=sum(len(plan.sections) for plan in once),
        picture=picture,
        held_bytes=held_bytes,
        pictures_bytes=pictures_bytes,
    )


def less_held(budgets: Budgets, held_bytes: int) -> Budgets:
    """Budgets without the data and pictures that a sweep holds in host memory."""
    if held_bytes >= budgets.host_budget_bytes:
        raise DoesNotFitError(
            f"the sweep holds {format_bytes(held_bytes)} in host memory for data and pictures, and "
            f"{format_bytes(budgets.host_budget_bytes)} are allowed: allow more, or sweep fewer "
            "values"
        )
    host = budgets.host_budget_bytes - held_bytes
    if budgets.kind == "cpu":
        return replace(
            budgets, budget_bytes=budgets.budget_bytes - held_bytes, host_budget_bytes=host
        )
    return replace(budgets, host_budget_bytes=host)


def _with_rows(scan: ScanSpec, n_rows: int, data: ArraySpec | None = None) -> ScanSpec:
    """Scan with fewer rows, or data of as many rows in memory with its flats and darks."""

    def cut(spec: ArraySpec | None) -> ArraySpec | None:
        if spec is None:
            return None
        if data is not None and (data.shape[2] != spec.shape[2] or data.shape[1] != n_rows):
            return None
        return ArraySpec((spec.shape[0], n_rows, spec.shape[2]), spec.dtype)

    return ScanSpec(
        scan.projections.with_slices(1, n_rows) if data is None else data,
        cut(scan.flats),
        cut(scan.darks),
        scan.has_angles and (data is None or data.shape[0] <= scan.projections.shape[0]),
        in_memory=scan.in_memory if data is None else True,
        name=scan.name,
    )


def _around(middle: int, reach: int, n_rows: int) -> tuple[int, int]:
    return max(0, middle - reach), min(n_rows, middle + reach + 1)


def _pictures_bytes(picture: ArraySpec, *, to_folder: bool) -> int:
    """Host memory for pictures: copies of one, its sharpness, and what is kept of all."""
    n_values, *shape = picture.shape
    one = picture.nbytes // n_values
    sheet = ContactSheet(n_values, (shape[0], shape[1]), "")
    kept = sheet.n_bytes if to_folder else picture.nbytes
    return 2 * one + sharpness_bytes(tuple(shape)) + kept
