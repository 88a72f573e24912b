"""Check a pipeline or plan it on a scan: `check` and `plan`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar, Unpack

import numpy as np

from ..core.arrays import SLICE_NAMES, ArraySpec
from ..errors import UnknownReferenceError, UsageError
from ..estimate import ModelResolver
from ..io.check_arrays import check_dtype
from ..io.scans.chosen_part import PartLike
from ..pipeline import Pipeline, ScanSpec, Section, cut_into_sections
from ..pipeline.pipeline import PipelineLike, as_pipeline
from ..pipeline.requirements import check_known_shapes, check_supplied
from ..pipeline.sweep import SweepRows, SweptPipeline, cut_at_sweep, rows_of_sweep
from ..planner import Budgets, Plan, make_plan
from ..planner.block_size import BlockChoice
from ..planner.plan import shown_values
from ..planner.planning import check_planned
from ..planner.section_models import section_models
from ..system.resource_limits import memory_limits
from .check_run import made_for
from .resources import budgets_of, card_here, check_limits, chooser_for, measures
from .run_request import PlanOptions, PlanRequest
from .scan_and_output import Scan, chosen_part, opened, spec_of

ASSUMED_FRAMES = 20
"""Flats, and darks, that are assumed if only the shape of a scan is known: a usual number at
beamlines."""


def plan(scan: Scan | ArraySpec, pipeline: PipelineLike, **options: Unpack[PlanOptions]) -> Plan:
    """Plan a pipeline on a scan, without running it.

    Parameters
    ----------
    scan : path, ndarray, ArrayScan, Source or ArraySpec
        The scan. Its data are not read. An `ArraySpec` is the shape and dtype of a scan without a
        file. It is assumed to have 20 flats and 20 darks.
    pipeline : Pipeline, path or iterable of steps
        A pipeline, its YAML file, or steps as `Pipeline.from_steps` takes them.
    device : str
        "cpu", "cuda", "cuda:N" or "auto", as for `run`. With `memory`, "cuda" plans for a GPU of
        that size and does not need one. So does "auto" for an `ArraySpec`.
    memory : str or int, optional
        Budget on the device, such as ``"16GB"``, or bytes. Default: the free memory.
    host_memory : str or int, optional
        Budget in host memory. Default: most of the free memory. On the CPU it is `memory`.
    block : int, "auto" or "max"
        Slices in a block.
    estimator : {"declared", "recorded", "replayed", "probed"}, optional
        The only source of estimates to use. By default an estimate is the one that a method
        declares, or a record for this device and these versions. Otherwise a torch method is
        replayed if the device is a GPU, and other methods are probed: run on a few slices.
    rows, columns, angles : str, int, slice or tuple, optional
        Part of the scan to read, as for `run`.
    workers : int, optional
        Processes on each machine that run the blocks. They share host memory, and data between
        sections are in files. `memory` is the budget of each process.

    Returns
    -------
    Plan
        Sections, blocks and their memory. The plan of a sweep is that of its first value.

    Raises
    ------
    MaxslicesError
        If the scan or pipeline is invalid, or the work does not fit.

    Examples
    --------
    >>> from maxslices import ArraySpec, plan
    >>> whole = plan(ArraySpec((1801, 2160, 2560), "float32"), ["minus_log"],
    ...              device="cuda", memory="16GB", host_memory="64GB")
    >>> whole.sections[0].max_block
    172
    """
    request = PlanRequest(scan=scan, pipeline=pipeline, **options)
    checked = request.read_pipeline()
    swept, workers = cut_at_sweep(checked) is not None, request.workers
    is_here = not isinstance(scan, ArraySpec)
    budgets, backend = budgets_of(request.device, request.memory, request.host_memory, is_here)
    if backend is None and measures(checked, request.estimator):
        backend = card_here(request.device)
    if workers is not None:
        if workers < 1:
            raise UsageError(f"workers is {workers}: at least 1 is needed")
        if swept:
            raise UsageError("a sweep runs in one process: leave out workers")
        budgets = budgets.of_each(workers, is_given=request.memory is not None)
        if budgets.kind == "cpu" and request.memory is not None:
            check_limits(budgets.budget_bytes, memory_limits(), n_processes=workers)

    if isinstance(scan, ArraySpec):
        spec, notes = _assumed(scan, checked)
    else:
        with opened(scan, checked) as source:
            spec, notes = spec_of(source, backend), []
    if swept:
        checked, spec, more = first_of_sweep(checked, spec)
        notes = [*notes, *more]
    resolver = chooser_for(spec, budgets, backend, request.estimator)
    return plan_pipeline(
        checked,
        spec,
        budgets,
        resolver,
        block=request.block,
        result_in_memory=swept,
        notes=notes,
    )


Answer = TypeVar("Answer")


FindValue = Callable[[Pipeline, UnknownReferenceError], Pipeline]
"""Returns the pipeline with a planned value for the reference of an error."""


def answered(
    ask: Callable[[Pipeline], Answer], pipeline: Pipeline, find: FindValue
) -> tuple[Answer, Pipeline]:
    """Call a function of a pipeline, and find each value of a reference that it needs.

    Returns
    -------
    (Answer, Pipeline)
        Result of the function, and the pipeline planned with the values found.
    """
    while True:
        try:
            return ask(pipeline), pipeline
        except UnknownReferenceError as error:
            pipeline = find(pipeline, error)


def with_default(pipeline: Pipeline, error: UnknownReferenceError) -> Pipeline:
    """Plan a pipeline with a method's default for a value that only a run can find.

    Raises
    ------
    UnknownReferenceError
        If the parameter has no default.
    """
    default = next(
        step.default_of(name)
        for step in pipeline.steps
        for name, value in step.parameters.items()
        if value == error.reference and name not in step.planned_values
    )
    if default is None:
        raise error
    return pipeline.with_planned(error.reference, default)


def assumed_values(pipeline: Pipeline) -> list[str]:
    """List notes on the defaults that a pipeline is planned with. See `with_default`."""
    return [
        f"{step.meta.name}: {name} is {step.parameters[name]}, which a run finds; planned with "
        f"the default {value!r}, and a run that finds another value rejects this plan"
        for step in pipeline.steps
        for name, value in step.planned_values.items()
    ]


def plan_pipeline(
    pipeline: Pipeline,
    scan: ScanSpec,
    budgets: Budgets,
    resolver: ModelResolver | None = None,
    *,
    block: BlockChoice = "auto",
    result_in_memory: bool = False,
    result_is_direct: bool = False,
    notes: Sequence[str] = (),
    find: FindValue | None = None,
) -> Plan:
    """Find the memory models of a pipeline's methods, and plan with them.

    Parameters are those of `maxslices.planner.make_plan`, and `find`.

    Parameters
    ----------
    find : callable, optional
        Finds values of references that the plan depends on. See `answered`. By default the
        methods' defaults are used, and the plan has a note on each.

    Raises
    ------
    MaxslicesError
        If the scan lacks what a method needs, an estimator fails, or it does not fit.
    """
    resolver = resolver or ModelResolver(budgets.kind)
    models, known = answered(
        lambda known: section_models(known, scan, resolver), pipeline, find or with_default
    )
    assumed = assumed_values(known) if find is None else []
    taken = {name for step in pipeline.steps for name in step.meta.supplied}
    new_plan = make_plan(
        models,
        budgets,
        scan=f"{scan.name}: {scan.projections}",
        in_memory=scan.in_memory,
        block=block,
        result_in_memory=result_in_memory,
        result_is_direct=result_is_direct,
        notes=(*notes, *pipeline.warnings, *assumed, *scan.missing_frame_notes(taken)),
        made_for=made_for(pipeline, scan, budgets.kind),
    )
    check_planned(models, new_plan.sections)
    return new_plan


def with_rows(pipeline: Pipeline, n_rows: int, find: FindValue) -> tuple[SweptPipeline, SweepRows]:
    """Cut a pipeline before its swept step, and choose the rows that its slices depend on."""

    def cut_and_rows(known: Pipeline) -> tuple[SweptPipeline, SweepRows]:
        cut = cut_at_sweep(known)
        assert cut is not None  # it has a sweep
        return cut, rows_of_sweep(cut, n_rows)

    return answered(cut_and_rows, pipeline, find)[0]


def sweep_notes(cut: SweptPipeline, rows: SweepRows) -> tuple[str, ...]:
    """Describe the values, the rows and the omitted steps of a sweep."""
    values = cut.sweep.values
    counted = f"{len(values):,} value{'' if len(values) == 1 else 's'}"
    notes = [
        f"a sweep of {cut.name} over {counted}: {shown_values(values)}; each is planned when it "
        "runs, and the steps before it run once",
        f"{rows.n_rows} row{'' if rows.n_rows == 1 else 's'} in the middle, {rows.start} to "
        f"{rows.stop - 1}, are read: {', '.join(rows.why)}",
    ]
    if cut.left_out:
        notes.append(f"left out in a sweep: {', '.join(cut.left_out)}")
    if rows.elsewhere:
        assert cut.before is not None
        names = ", ".join(cut.before.steps[i].meta.name for i in rows.elsewhere)
        notes.append(f"other rows are read for {names}, as in a run without a sweep")
    return tuple(notes)


def first_of_sweep(
    pipeline: Pipeline, scan: ScanSpec
) -> tuple[Pipeline, ScanSpec, tuple[str, ...]]:
    """Return pipeline, scan and notes for the plan of a sweep: its first value on the rows read.

    Steps that read other rows are omitted, as they run separately.
    """
    cut, rows = with_rows(pipeline, scan.projections.shape[1], with_default)
    swept = cut.with_value(cut.sweep.values[0], {})
    before = () if cut.before is None else cut.before.steps
    steps = [replace(s, save_result=False) for i, s in enumerate(before) if i not in rows.elsewhere]
    projections, flats, darks = (
        None if spec is None else spec.with_slices(1, rows.n_rows)
        for spec in (scan.projections, scan.flats, scan.darks)
    )
    assert projections is not None
    few = replace(scan, projections=projections, flats=flats, darks=darks, in_memory=False)
    return replace(swept, steps=(*steps, *swept.steps)), few, sweep_notes(cut, rows)


def _assumed(scan: ArraySpec, pipeline: Pipeline) -> tuple[ScanSpec, list[str]]:
    """Describe a scan of which only the shape is known, in the loader's preview, with notes."""
    check_dtype("a scan", scan.dtype)
    whole, preview = scan, pipeline.loader.preview
    ends = [preview.bounds(axis, n, "a scan") for axis, n in enumerate(scan.shape)]
    steps = (preview.angle_step, 1, 1)
    shape = tuple(len(range(*end, step)) for end, step in zip(ends, steps, strict=True))
    scan = ArraySpec(shape, scan.dtype)
    needed = {name for step in pipeline.steps for name in step.meta.supplied}
    assumed = [name for name in ("flats", "darks") if name in needed]
    notes = [f"{ASSUMED_FRAMES} frames each of {' and '.join(assumed)} are assumed"] * bool(assumed)
    if scan != whole:
        notes.append(f"the preview reads {scan} of {whole}")
    frames = scan.with_slices(0, ASSUMED_FRAMES)
    return ScanSpec(scan, frames, frames, True, name="a scan"), notes


def check(
    pipeline: PipelineLike,
    scan: Scan | None = None,
    *,
    rows: PartLike | None = None,
    columns: PartLike | None = None,
    angles: PartLike | None = None,
) -> str:
    """Check that a pipeline is valid and, with a scan, that it can run on it.

    Parameters
    ----------
    pipeline : Pipeline, path or iterable of steps
        A pipeline, its YAML file, or steps as `Pipeline.from_steps` takes them.
    scan : path, ndarray, ArrayScan or Source, optional
        A scan.
    rows, columns, angles : str, int, slice or tuple, optional
        Part of the scan to read, as for `run`.

    Returns
    -------
    str
        Summary of the checks as text.

    Raises
    ------
    MaxslicesError
        If anything is invalid. The error lists every fault.
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
    with opened(scan, checked) as source:
        spec = spec_of(source)
        check_supplied(checked, spec)
        check_known_shapes(_sections_of(checked, reads_rows=spec.reads_rows), spec)
        lines += _about_steps(checked, reads_rows=spec.reads_rows)
        lines.append(f"{spec.name}: {spec.projections}")
        for name, frames in (("flats", spec.flats), ("darks", spec.darks)):
            lines.append(f"  {name}: {frames.shape[0] if frames else 'none'}")
        wanted = {name for step in checked.steps for name in step.meta.supplied}
        lines += [f"  {text}" for text in spec.missing_frame_notes(wanted)]
        radians = source.angles
        if radians is None:
            lines.append("  angles: none")
        else:
            first, last = np.rad2deg(radians[[0, -1]])
            lines.append(f"  angles: {len(radians)}, {first:g} to {last:g} degrees")
    return "\n".join(lines)


def _sections_of(pipeline: Pipeline, *, reads_rows: bool) -> list[Section]:
    """Cut a pipeline into sections, or return none if they depend on values that a run finds."""
    with contextlib.suppress(UnknownReferenceError):
        return answered(
            lambda known: cut_into_sections(known, reads_rows=reads_rows),
            pipeline,
            with_default,
        )[0]
    return []


def _about_steps(pipeline: Pipeline, *, reads_rows: bool) -> list[str]:
    """List the sections and sweeps of a pipeline."""
    lines = []
    for number, section in enumerate(_sections_of(pipeline, reads_rows=reads_rows), start=1):
        names = ", ".join(step.meta.name for step in section.steps)
        lines.append(f"  section {number}, {SLICE_NAMES[section.slice_dim]}s: {names}")
    lines += [
        f"  sweeps {step.meta.name}.{name} over {len(sweep.values)} values: "
        f"{shown_values(sweep.values)}"
        for step in pipeline.steps
        for name, sweep in step.sweeps.items()
    ]
    return lines
