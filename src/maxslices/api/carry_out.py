"""Carry out what is asked of a run: plan it, execute it, and complete its results."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.units import format_bytes
from ..devices import Backend, select_backend
from ..devices.cpu import CpuBackend
from ..devices.in_place import is_direct
from ..devices.out_of_memory import is_out_of_memory
from ..errors import LostResultError, MaxslicesError, PlanError, StoreError, UsageError
from ..estimate import Chooser
from ..io import HasDetectorStart, Source, parse_loader
from ..io.results.result_format import parse_formats
from ..io.results.result_info import ResultInfo
from ..io.scans.chosen_part import preview_words
from ..measure.resident_memory import ResidentPeak
from ..pipeline import Pipeline, Reference
from ..pipeline.pipeline import as_pipeline
from ..planner import Budgets, Plan
from ..runner import Report, RunFolder, Timeline
from ..runner.blocks.side_results import SideResults
from ..runner.correct_records import correct_records
from ..runner.execute import execute
from ..runner.folder.earlier_run import LOG_NAME, PICTURE_NAME, PIPELINE_NAME, RECORD_NAMES
from ..runner.folder.results_of_steps import infos_of_steps
from ..runner.folder.run_identity import run_identity
from ..runner.folder.snapshots import snapshot_bytes
from ..runner.report.progress import progress_shown
from ..runner.report.provenance import Provenance, as_run
from ..runner.report.provenance import provenance as provenance_of
from ..runner.report.run_log import RunLog
from ..runner.report.wall_time import WallTime
from .check_run import check_host_free, check_memory, check_plan_here, check_unchanged
from .find_values import ValueFinder
from .on_workers import RunOnWorkers, check_for_workers, workers_of
from .plan_scan import plan_pipeline
from .resources import budgets_here, chooser_for
from .run_request import RunRequest
from .run_speeds import keep_speeds
from .scan_and_output import check_formats, check_result, files_read, opened, spec_of


def carry_out(request: RunRequest, pipeline: Pipeline) -> Report:
    """Run a pipeline without a sweep; see `maxslices.run` for what is asked, returned and raised.

    `pipeline` is what ``request.checked()`` returned.
    """
    wall_time = WallTime()
    check_for_workers(request)
    folder, preview = request.folder(pipeline), {}
    if folder is not None:
        preview = _preview_given(request, pipeline)
        if folder.unfinished is not None:
            pipeline = _as_before(
                request, pipeline, preview, folder.unfinished.identity, folder.path
            )
    with _said_how_to_go_on(folder), contextlib.ExitStack() as held:
        from .pictures import leave_page  # Pillow and jinja2 are missed now, or never

        log = held.enter_context(RunLog())
        for text in pipeline.warnings:
            warnings.warn(text, stacklevel=2)
        wall_time.begin("opening")
        scan = request.scan
        path = Path(scan) if isinstance(scan, str | os.PathLike) else None
        source = held.enter_context(
            opened(scan, pipeline, allow_missing_frames=request.allow_missing_frames)
        )
        wall_time.begin("starting")
        team = held.enter_context(workers_of(request, pipeline, folder))
        if team is not None:
            log.add(team.workers.text)
        backend = select_backend(request.device_for(folder) if team is None else "cpu")
        wall_time.begin("planning")
        if folder is not None:
            folder.identity = _identity(request, pipeline, preview, backend, team)
        chooser = None
        if team is not None and folder is not None:
            made = team.plan(folder, spec_of(source))
        else:
            made, chooser = _plan(request, pipeline, source, backend, folder)
        if folder is not None and folder.unfinished is None and request.plan is None:
            made = _with_formats(made, pipeline, folder)
        if request.given is not None:
            check_result(request.given, made)
        if folder is not None:
            check_formats(parse_formats(request.format), made)
        wall_time.begin("preparing")
        request.announce(made)
        log.add(str(made))
        device_name = backend.name if folder is None else folder.identity["device"]
        provenance = provenance_of(made, pipeline, path, source.name, device_name)
        bar = held.enter_context(progress_shown(request.progress))
        scratch = None if request.scratch is None else Path(request.scratch)
        if folder is not None:
            provenance = replace(provenance, input=folder.identity["input"], formats=folder.formats)
            folder.log = log
            folder.origin = _origin(request, pipeline, source, provenance)
            held.enter_context(folder)
            scratch = folder.scratch.path
        elsewhere = None
        if team is not None and folder is not None:
            elsewhere = team.begin(made, folder)
        timeline, process_peak = Timeline(), ResidentPeak()
        sections, side, result = execute(
            made,
            pipeline,
            source,
            backend,
            folder,
            bar,
            scratch,
            timeline,
            wall_time,
            request.given,
            elsewhere,
        )
        wall_time.begin("finishing")
        if chooser is not None:
            correct_records(made, sections, chooser)
        files = () if folder is None else folder.finish(_found(side), bar)
        written = None if folder is None else folder.write_timeline(timeline.to_chrome())
        wall_time.stop()
        sections_s = sum(section.duration_s for section in sections if not section.is_earlier)
        report = Report(
            plan=made,
            device=backend.name if team is None else made.device,
            sections=sections,
            side_results=side.by_method,
            by_reference=side.by_reference,
            files=files,
            duration_s=wall_time.total_s,
            phases_s=wall_time.beside_sections(sections_s),
            process_bytes=None if request.is_for_workers else process_peak.grown_bytes,
            result=result,
            result_info=_info_in_memory(made, pipeline, source),
            timeline=timeline,
            timeline_file=written,
            provenance=provenance,
            records=() if folder is None else _records(request, folder.path),
        )
        if folder is not None:
            log.add(str(report))
            folder.write_records({PIPELINE_NAME: as_run(pipeline, provenance), LOG_NAME: log.text})
            leave_page(report, folder, log.warned)
            if request.picture:
                from .pictures import draw_slices

                title = f"{path or source.name}: {pipeline}"
                draw_slices(files, folder.slice_name, folder.path / PICTURE_NAME, title)
            folder.write_report(report.to_json())  # last: with it the run is whole
        if team is None:  # later plans are told the time of one process
            keep_speeds(report)
        return report


def _plan(
    request: RunRequest,
    pipeline: Pipeline,
    source: Source,
    backend: Backend,
    folder: RunFolder | None,
) -> tuple[Plan, Chooser | None]:
    """The plan of the run that goes on, the one that is given, or a new one with its chooser."""
    if folder is not None and folder.unfinished is not None:
        now = folder.path, folder.unfinished, folder.identity
        check_unchanged(*now, pipeline, source, backend)
        return folder.unfinished.plan, None
    if request.plan is not None:
        check_plan_here(request.plan, pipeline, source, backend, in_memory=folder is None)
        return request.plan, None
    spec = spec_of(source, backend)
    if earlier := request.plans.find(spec):
        with contextlib.suppress(PlanError):  # there is less memory now
            check_memory(earlier, backend)
            return earlier, None
    budgets = budgets_here(backend, request.memory, request.host_memory)
    chooser = chooser_for(spec, budgets, backend, request.estimator)
    given = request.given
    finder = ValueFinder(source, backend, spec, budgets, chooser, request.scratch)

    def planned(within: Budgets) -> Plan:
        return plan_pipeline(
            pipeline,
            spec,
            within,
            chooser,
            block=request.block,
            result_in_memory=folder is None,
            result_is_direct=given is not None and is_direct(given, backend),
            values=finder,
        )

    made = planned(budgets)
    if request.save_snapshots:
        made = planned(budgets.without(snapshot_bytes(made)))
    if (request.memory if backend.kind == "cpu" else request.host_memory) is not None:
        check_host_free(made, backend.name, CpuBackend().free_bytes())
    request.plans.keep(spec, made)
    return made, chooser


def _with_formats(plan: Plan, pipeline: Pipeline, folder: RunFolder) -> Plan:
    """Plan with a note on the disk space of formats that are made of the results."""
    steps = [step for section in plan.sections for step in section.steps]
    more = folder.export_bytes(
        planned.output
        for planned, step in zip(steps, pipeline.steps, strict=True)
        if step.save_result
    )
    if not more:
        return plan
    text = f"other formats of the results take up to {format_bytes(more)} more on disk"
    return replace(plan, notes=(*plan.notes, text))


def _records(request: RunRequest, folder: Path) -> tuple[Path, ...]:
    """Files that tell people of the run."""
    names = (*RECORD_NAMES, PICTURE_NAME) if request.picture else RECORD_NAMES
    return tuple(folder / name for name in names)


def _preview_given(request: RunRequest, pipeline: Pipeline) -> dict[str, Any]:
    """Preview in the pipeline itself, without the part that options choose."""
    is_chosen = any(part is not None for part in request.chosen.values())
    given = as_pipeline(request.pipeline) if is_chosen else pipeline
    return preview_words(given.loader.preview)


def _identity(
    request: RunRequest,
    pipeline: Pipeline,
    preview_given: dict[str, Any],
    backend: Backend,
    team: RunOnWorkers | None,
) -> dict[str, Any]:
    """What the run is made for, and what of it a later one need not be told again."""
    has_path = isinstance(request.scan, str | os.PathLike)
    read = files_read(request.scan, pipeline) if has_path else None
    return {
        **(run_identity(pipeline, backend, read) if team is None else team.identity()),
        "scan_path": _text_of(request.scan),
        "pipeline_path": _text_of(request.pipeline),
        "preview": preview_words(pipeline.loader.preview),
        "preview_given": preview_given,
        "save_all": request.save_all,
        "options": request.choices,
    }


def _as_before(
    request: RunRequest,
    pipeline: Pipeline,
    preview_given: dict[str, Any],
    identity: dict[str, Any],
    folder: Path,
) -> Pipeline:
    """Pipeline on the part of the scan, and with the results, of the run that goes on."""
    options, faults = parse_loader({"preview": identity.get("preview") or {}})
    if faults:
        raise StoreError(f"the journal in {folder} is not readable: {faults[0].text}")
    before = identity.get("preview_given")
    if before is not None and before != preview_given:
        raise UsageError(
            f"the preview in the pipeline was {before or 'none'} when the run in {folder} began, "
            f"and is {preview_given or 'none'} now: give the one before to go on, or start anew "
            "with --overwrite"
        )
    if options.preview != pipeline.loader.preview:
        if given := [name for name, part in request.chosen.items() if part is not None]:
            raise UsageError(
                f"the run in {folder} is of another part of the scan: leave out "
                f"{' and '.join(given)} to go on with that, or start anew with --overwrite"
            )
        pipeline = pipeline.with_preview(options.preview)
    return pipeline.saving_all() if identity.get("save_all") is True else pipeline


def _origin(
    request: RunRequest, pipeline: Pipeline, source: Source, provenance: Provenance
) -> ResultInfo:
    """What all results of a run have in common."""
    return ResultInfo(
        pixel_size=request.found_pixel_size(pipeline.loader),
        first_pixel=_first_pixel(source),
        scan=provenance.scan.encode(errors="backslashreplace").decode(),
        date=provenance.date,
        program=f"maxslices {provenance.versions.get('maxslices', '')}".strip(),
    )


def _info_in_memory(plan: Plan, pipeline: Pipeline, source: Source) -> ResultInfo:
    """What a result that is kept in memory is."""
    scan = ResultInfo(angles=source.angles, first_pixel=_first_pixel(source))
    return infos_of_steps(plan, pipeline, scan)[plan.sections[-1].steps[-1].index]


def _first_pixel(source: Source) -> tuple[int, int]:
    """First row and column of the detector that are read."""
    return source.detector_start if isinstance(source, HasDetectorStart) else (0, 0)


def _found(side: SideResults) -> dict[str, Any]:
    """Values that were found during the run, by the text of the references to them."""
    return {str(Reference(*key)): value for key, value in side.by_reference.items()}


@contextlib.contextmanager
def _said_how_to_go_on(folder: RunFolder | None) -> Iterator[None]:
    """Add to an error, or to an interrupt, how a run that is kept can go on."""
    try:
        yield
    except (MaxslicesError, MemoryError, ImportError, OSError, KeyboardInterrupt) as error:
        is_kept = folder is not None and folder.is_kept and not isinstance(error, LostResultError)
        way_on = folder.way_on if folder is not None and is_kept else ""
        if isinstance(error, ImportError | OSError):
            if not is_out_of_memory(error):
                raise
        elif not way_on:
            raise
        is_memory = isinstance(error, ImportError | OSError | MemoryError)
        kind = MemoryError if is_memory else type(error)  # NumPy's own takes a shape and a dtype
        texts = [text for text in (str(error), way_on) if text]
        raise kind("; ".join(texts)) from error.__cause__


def _text_of(given: object) -> str | None:
    """Path as text; None for what is no path."""
    return os.fspath(given) if isinstance(given, str | os.PathLike) else None
