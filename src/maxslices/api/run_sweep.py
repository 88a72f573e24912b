"""Run a sweep: the steps before the swept one once, the others for each value."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..devices import Backend, pinned_empty, select_backend
from ..estimate import Chooser
from ..estimate.fingerprint import device_name
from ..io import Source
from ..measure.process_peak import ProcessPeak
from ..pipeline import Pipeline, ScanSpec
from ..pipeline.sweep import SweptPipeline
from ..planner import Plan
from ..runner import RunFolder, SectionReport, Timeline, execute
from ..runner.earlier_run import LOG_NAME, PIPELINE_NAME, RECORD_NAMES
from ..runner.progress import ProgressOnAll, progress_shown
from ..runner.provenance import as_run
from ..runner.provenance import provenance as provenance_of
from ..runner.run_log import RunLog
from ..runner.side_results import SideResults
from ..runner.sweep_pictures import SweepPictures
from ..runner.sweep_report import SweepReport, together
from ..runner.wall_time import WallTime
from .plan_scan import plan_pipeline
from .plan_sweep import PreparedSweep, prepare_sweep
from .resources import budgets_here, chooser_for
from .run_page import leave_page
from .run_request import RunRequest
from .scan_and_output import files_read, opened, spec_of
from .sweep_source import StepInput, read_rows, some_rows


def run_sweep(request: RunRequest, pipeline: Pipeline, cut: SweptPipeline) -> SweepReport:
    """Run a pipeline that has a sweep, as `maxslices.run` says."""
    wall_time = WallTime()
    scan, folder, path = request.scan, None, request.folder_path
    if path is not None:
        folder = RunFolder(path, "tiff", request.overwrite)
        for read in files_read(scan, pipeline):
            folder.check_spares(read)
    backend = select_backend(request.device)
    with contextlib.ExitStack() as held:
        log = held.enter_context(RunLog())
        path = Path(scan) if isinstance(scan, str | os.PathLike) else None
        source = held.enter_context(
            opened(scan, pipeline, allow_missing_frames=request.allow_missing_frames)
        )
        wall_time.begin("planning")
        prepared = planned_sweep(
            request, pipeline, cut, source, backend, to_folder=folder is not None
        )
        wall_time.begin("preparing")
        request.announce(prepared.whole)
        log.add(str(prepared.whole))
        provenance = provenance_of(
            prepared.whole, pipeline, path, source.name, device_name(backend)
        )
        bar = held.enter_context(progress_shown(request.progress))
        if folder is not None:
            held.enter_context(folder)
        process_peak = ProcessPeak()
        steps = _SweepSteps(prepared, source, backend, wall_time, folder)
        for index in prepared.rows.elsewhere:
            assert cut.before is not None
            alone = _unsaved(replace(cut.before, steps=cut.before.steps[: index + 1]))
            spec = spec_of(source, backend)
            budgets = budgets_here(backend, request.memory, request.host_memory)
            chooser = chooser_for(spec, budgets, backend, request.estimator, source)
            made = plan_pipeline(alone, spec, budgets, chooser, result_in_memory=True)
            steps.find(made, alone)
        steps.run_before()
        with SweepPictures(prepared.whole, folder) as pictures:
            bar.start(cut.name, len(cut.sweep.values))
            for value in cut.sweep.values:
                pictures.add(steps.picture(value), value)
                bar.advance(1)
            wall_time.begin("finishing")
            files = pictures.finish()
        wall_time.stop()
        sections = (*steps.reports_before, *together(steps.reports))
        report = SweepReport(
            plan=prepared.whole,
            device=backend.name,
            sections=sections,
            side_results=steps.side_results,
            files=files,
            duration_s=wall_time.total_s,
            phases_s=wall_time.beside_sections(sum(each.duration_s for each in sections)),
            process_bytes=process_peak.grown_bytes,
            result=pictures.stack,
            parameter=cut.name,
            values=cut.sweep.values,
            sharpness=tuple(pictures.sharpness),
            provenance=provenance,
            records=() if folder is None else tuple(folder.path / name for name in RECORD_NAMES),
        )
        if folder is not None:
            leave_records(report, pipeline, folder, log)
        return report


def planned_sweep(
    request: RunRequest,
    pipeline: Pipeline,
    cut: SweptPipeline,
    source: Source,
    backend: Backend,
    *,
    to_folder: bool,
) -> PreparedSweep:
    """Plan a sweep of an open scan; see `prepare_sweep`."""
    budgets = budgets_here(backend, request.memory, request.host_memory)

    def chooser_of(part: ScanSpec, data: Source | None) -> Chooser:
        return chooser_for(part, budgets, backend, request.estimator, data)

    return prepare_sweep(
        cut,
        spec_of(source, backend),
        budgets,
        chooser_of,
        source,
        block=request.block,
        fit=request.fit,
        to_folder=to_folder,
        content=pipeline,
    )


def leave_records(report: SweepReport, pipeline: Pipeline, folder: RunFolder, log: RunLog) -> None:
    """Leave what tells people of a sweep in its folder, the report last."""
    log.add(str(report))
    assert report.provenance is not None
    texts = {PIPELINE_NAME: as_run(pipeline, report.provenance), LOG_NAME: log.text}
    folder.write_records(texts)
    leave_page(report, folder, log.warned)
    folder.write_report(report.to_json())


def _unsaved(pipeline: Pipeline) -> Pipeline:
    """Pipeline that keeps no data, for its side results."""
    return replace(pipeline, steps=tuple(replace(s, save_result=False) for s in pipeline.steps))


@dataclass(slots=True)
class _SweepSteps:
    """The steps of a sweep while it runs."""

    prepared: PreparedSweep
    """The sweep."""
    source: Source
    """The whole scan."""
    backend: Backend
    """The device."""
    wall_time: WallTime
    """Attributes the time to phases."""
    folder: RunFolder | None
    """Folder of the results; scratch files are made there."""
    reports_before: tuple[SectionReport, ...] = ()
    """Sections that ran once."""
    reports: list[tuple[SectionReport, ...]] = field(default_factory=list)
    """Sections of each value."""
    side_results: dict[str, Any] = field(default_factory=dict)
    """Side results by ``method.name``: of steps that run for each value, a list."""
    _known: dict[tuple[str, str], Any] = field(default_factory=dict)
    """(step id, name under its side_outputs) -> value."""
    _input: StepInput | None = None
    """What the swept step is given."""
    _results: list[NDArray[Any]] = field(default_factory=list)
    """Results of the stages of one value, whose memory the next one takes."""

    def find(self, plan: Plan, pipeline: Pipeline) -> None:
        """Find side results of steps that look at other rows, on the whole scan."""
        _, side, _ = self._execute(plan, pipeline, self.source, None)
        self._known |= side.by_reference
        self.side_results |= side.by_method

    def run_before(self) -> None:
        """Run the steps that run once."""
        prepared, rows = self.prepared, (self.prepared.rows.start, self.prepared.rows.stop)
        given = some_rows(self.source, rows)
        data: NDArray[Any] | None = None
        angles = self.source.angles
        if prepared.cut.before is not None:
            assert prepared.before is not None
            steps = tuple(step.with_known(self._known) for step in prepared.cut.before.steps)
            pipeline = replace(prepared.cut.before, steps=steps)
            if any(step.save_result for step in steps):
                output = prepared.before.sections[-1].output
                data = pinned_empty(output.shape, output.dtype)
            reports, side, _ = self._execute(prepared.before, pipeline, given, data)
            self.reports_before = reports
            angles = side.angles_after(pipeline.steps, angles)
            self._known |= side.by_reference
            self.side_results |= side.by_method
        if data is None:
            data = read_rows(given, (0, given.spec.shape[1]))
        first, last = prepared.window
        if (first, last) != (0, data.shape[1]):
            data = np.ascontiguousarray(data[:, first:last])
        scan_rows = (rows[0] + first, rows[0] + last)
        self._input = StepInput(data, self.source, scan_rows, angles)

    def picture(self, value: Any) -> NDArray[Any]:
        """Run the steps for a value; the middle row of the result, as a view."""
        assert self._input is not None
        plans = self.prepared.plans
        pipeline = self.prepared.cut.with_value(value, self._known)
        given, middle = self._input, plans.middle
        angles = given.angles
        reports: list[SectionReport] = []
        for number, (plan, part) in enumerate(plans.stages(pipeline)):
            if number and plans.window is not None:
                first, last = plans.window
                rows = (given.rows[0] + first, given.rows[0] + last)
                given = StepInput(self._results[0][:, first:last], self.source, rows, angles)
                middle -= first
            output = plan.sections[-1].output
            if number == len(self._results):
                self._results.append(pinned_empty(output.shape, output.dtype))
            of_part, side, _ = self._execute(plan, part, given, self._results[number])
            reports += of_part
            angles = side.angles_after(part.steps, angles)
            for name, found in side.by_method.items():
                self.side_results.setdefault(name, []).append(found)
        self.reports.append(tuple(reports))
        result = self._results[-1]
        if result.shape[1] != given.spec.shape[1]:  # a step made other rows of them
            middle = result.shape[1] // 2
        return result[:, middle]

    def _execute(
        self, plan: Plan, pipeline: Pipeline, source: Source, result: NDArray[Any] | None
    ) -> tuple[tuple[SectionReport, ...], SideResults, NDArray[Any] | None]:
        scratch = Path(tempfile.gettempdir()) if self.folder is None else self.folder.path
        return execute(
            plan,
            pipeline,
            source,
            self.backend,
            None,
            ProgressOnAll([]),
            scratch,
            Timeline(),
            self.wall_time,
            result,
        )
