"""Carry out a run: plan it, execute it and complete its results."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..devices import select_backend
from ..devices.out_of_memory import is_out_of_memory
from ..errors import LostResultError, MaxslicesError
from ..io import Source
from ..io.files import path_of
from ..io.results.result_info import ResultInfo
from ..measure.resident_memory import ResidentPeak
from ..pipeline import Pipeline, Reference
from ..planner import Plan
from ..runner import Report, Results, RunFolder
from ..runner.blocks.side_data import SideResults
from ..runner.execute import correct_records, execute
from ..runner.folder.folder_place import LOG_NAME, PIPELINE_NAME
from ..runner.folder.run_results import infos_of_steps
from ..runner.report.progress import progress_shown
from ..runner.report.run_record import Provenance, RunLog, as_run
from ..runner.report.run_record import provenance as provenance_of
from ..runner.report.run_timeline import WallTime
from ..tuning.heap import trim_heap
from .on_workers import check_for_workers, workers_of
from .run_request import RunRequest
from .scan_and_output import (
    check_formats,
    check_result,
    facts_not_applied,
    facts_of,
    opened,
)
from .team import Team, plan_run


def carry_out(request: RunRequest, pipeline: Pipeline) -> Report:
    """Run a pipeline without a sweep. `pipeline` is the result of ``request.checked()``.

    Results and errors are those of `maxslices.run`.
    """
    wall_time = WallTime()
    check_for_workers(request)
    folder = request.results(pipeline)
    with _with_resume_hint(folder), contextlib.ExitStack() as stack:
        from . import pictures  # noqa: F401 - fails now if Pillow or jinja2 is missing

        log = stack.enter_context(RunLog())
        for text in pipeline.warnings:
            warnings.warn(text, stacklevel=2)
        wall_time.begin("opening")
        source = stack.enter_context(opened(request.scan, pipeline))
        for text in facts_not_applied(
            source, pipeline, has_pixel_size=request.pixel_size is not None
        ):
            warnings.warn(text, stacklevel=2)
        wall_time.begin("starting")
        team = stack.enter_context(_team(request, pipeline, source, folder, log))
        wall_time.begin("planning")
        folder.describe(lambda: _identity(request, team))
        plan, resolver = plan_run(team, request, folder)
        if request.out_array is not None:
            check_result(request.out_array, plan)
        check_formats(folder.result_formats, plan)
        wall_time.begin("preparing")
        request.announce(plan)
        log.add(str(plan))
        device = folder.identity.get("device", team.backend.name)
        provenance = replace(
            provenance_of(plan, pipeline, path_of(request.scan), source.name, device),
            input=folder.identity.get("input"),
            formats=tuple(map(str, folder.result_formats)),
        )
        bar = stack.enter_context(progress_shown(request.progress))
        origin = result_origin(request, source, provenance)
        folder.mark(lambda: origin, log)
        stack.enter_context(folder)
        sections_run = team.begin(plan, folder)
        trim_heap()  # free memory in the heap would hide as much of the run's own use
        process_peak = ResidentPeak()
        pixel_size = request.known_pixel_size(source)
        sections, side, result = execute(
            plan,
            pipeline,
            source,
            team.backend,
            folder,
            bar,
            wall_time,
            request.out_array,
            sections_run,
            pixel_size_um=None if pixel_size is None else pixel_size.column_um,
        )
        wall_time.begin("finishing")
        if resolver is not None:
            correct_records(plan, sections, resolver)
        files = folder.finish(_values_found(side), bar)
        wall_time.stop()
        sections_s = sum(section.duration_s for section in sections if not section.is_earlier)
        report = Report(
            plan=plan,
            device=team.device_of(plan),
            sections=sections,
            side_results=side.by_method,
            by_reference=side.by_reference,
            files=files,
            duration_s=wall_time.total_s,
            phases_s=wall_time.other_phases(sections_s),
            process_bytes=None if request.is_for_workers else process_peak.grown_bytes,
            result=result,
            result_info=_info_in_memory(plan, pipeline, source),
            provenance=provenance,
            records=folder.records(request.picture),
        )
        folder.conclude(lambda into: write_texts(into, request, pipeline, report, origin, log))
        return report


@contextlib.contextmanager
def _team(
    request: RunRequest, pipeline: Pipeline, source: Source, folder: Results, log: RunLog
) -> Iterator[Team]:
    """Start the process or the workers that carry out a run."""
    if request.is_for_workers:
        with workers_of(request, pipeline, source, folder) as team:
            log.add(team.workers.text)
            yield team
    else:
        backend = select_backend(request.device_for(folder))
        yield Team(request, pipeline, source, backend)


def write_texts(
    folder: RunFolder,
    request: RunRequest,
    pipeline: Pipeline,
    report: Report,
    origin: ResultInfo,
    log: RunLog,
) -> str:
    """Write the pipeline, log and pages of a run into its folder; return its report as JSON."""
    from .pictures import draw_slices, leave_page

    assert report.provenance is not None
    log.add(str(report))
    folder.write(PIPELINE_NAME, as_run(pipeline, report.provenance))
    folder.write(LOG_NAME, log.text)
    leave_page(report, folder, pipeline, origin, log.warned)
    if request.picture:
        draw_slices(folder, f"{report.provenance.scan}: {pipeline}")
    return report.to_json()


def _identity(request: RunRequest, team: Team) -> dict[str, Any]:
    """Describe the run for its journal, with the options that a resumed run reuses."""
    return {
        **team.identity(),
        "scan_path": _text_of(request.scan),
        "pipeline_path": _text_of(request.pipeline),
        "options": request.choices,
    }


def result_origin(request: RunRequest, source: Source, provenance: Provenance) -> ResultInfo:
    """Describe what all results of a run have in common."""
    facts = facts_of(source)
    return ResultInfo(
        pixel_size=request.known_pixel_size(source),
        first_pixel=source.detector_start,
        scan=provenance.scan.encode(errors="backslashreplace").decode(),
        facts=() if facts is None else facts.values,
        date=provenance.date,
        program=f"maxslices {provenance.versions.get('maxslices', '')}".strip(),
    )


def _info_in_memory(plan: Plan, pipeline: Pipeline, source: Source) -> ResultInfo:
    """Describe the result that is kept in memory."""
    scan = ResultInfo(angles=source.angles, first_pixel=source.detector_start)
    return infos_of_steps(plan, pipeline, scan)[plan.sections[-1].steps[-1].index]


def _values_found(side: SideResults) -> dict[str, Any]:
    """Return the values that the run found, by the text of their references."""
    return {str(Reference(*key)): value for key, value in side.by_reference.items()}


@contextlib.contextmanager
def _with_resume_hint(folder: Results) -> Iterator[None]:
    """Add to an error or an interrupt how to resume the run."""
    try:
        yield
    except (MaxslicesError, MemoryError, ImportError, OSError, KeyboardInterrupt) as error:
        is_kept = folder.is_kept and not isinstance(error, LostResultError)
        hint = folder.resume_hint if is_kept else ""
        if isinstance(error, ImportError | OSError):
            if not is_out_of_memory(error):
                raise
        elif not hint:
            raise
        is_memory = isinstance(error, ImportError | OSError | MemoryError)
        kind = (
            MemoryError if is_memory else type(error)
        )  # NumPy's MemoryError takes a shape and a dtype
        texts = [text for text in (str(error), hint) if text]
        raise kind("; ".join(texts)) from error.__cause__


def _text_of(path: object) -> str | None:
    """Return a path as text, or None for other objects."""
    return os.fspath(path) if isinstance(path, str | os.PathLike) else None
