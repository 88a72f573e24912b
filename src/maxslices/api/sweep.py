"""Sweeps: a run of the steps before the swept one, and then a run for each value.

All are ordinary runs that keep their result in memory. The first reads the few rows of the scan
that the pictures depend on; the others read what it left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import ArraySpec
from ..devices import pinned_empty, select_backend
from ..devices.select import device_name
from ..errors import ParameterError
from ..io import HasDetectorStart, SideName, Source
from ..io.frames.frames import ArrayFrames, Selection
from ..io.paths import path_of
from ..io.scans.frame_source import FrameSource
from ..measure.resident_memory import ResidentPeak
from ..pipeline import Pipeline, ScanSpec
from ..pipeline.sweep import SweptPipeline
from ..planner import Budgets, Plan
from ..planner.plan import SweepPlan, value_text
from ..runner import Report, RunFolder, SectionReport
from ..runner.folder.finished_run import LOG_NAME, PIPELINE_NAME, RECORD_NAMES
from ..runner.folder.run_identity import input_state
from ..runner.report.progress import progress_shown
from ..runner.report.provenance import as_run
from ..runner.report.provenance import provenance as provenance_of
from ..runner.report.run_log import RunLog
from ..runner.report.run_report import SweepReport, together
from ..runner.report.run_timeline import WallTime
from ..runner.sweep_pictures import SweepPictures
from ..tuning.heap import trim_heap
from .carry_out import carry_out
from .find_values import ValueFinder
from .pictures import leave_page
from .plan_scan import plan_pipeline
from .plan_sweep import SweepLayout, less_held, plan_sweep
from .resources import budgets_here, chooser_for
from .run_request import RunRequest
from .scan_and_output import files_read, opened, spec_of


def run_sweep(request: RunRequest, pipeline: Pipeline, cut: SweptPipeline) -> SweepReport:
    """Run a pipeline that has a sweep, as `maxslices.run` says."""
    wall_time = WallTime()
    scan, folder = request.scan, None
    if request.folder_path is not None:
        folder = RunFolder(request.folder_path, "tiff", request.overwrite)
        for read in files_read(scan, pipeline):
            folder.check_spares(read)
    with contextlib.ExitStack() as held:
        log = held.enter_context(RunLog())
        source = held.enter_context(
            opened(scan, pipeline, allow_missing_frames=request.allow_missing_frames)
        )
        backend = select_backend(request.device)
        wall_time.begin("planning")
        budgets = budgets_here(backend, request.memory, request.host_memory)
        spec = spec_of(source, backend)
        resolver = chooser_for(spec, budgets, backend, request.estimator)
        finder = ValueFinder(source, backend, spec, budgets, resolver, request.scratch)

        def plan_of(part: Pipeline, given: ScanSpec, left: Budgets, **more: Any) -> Plan:
            resolver = chooser_for(given, left, backend, request.estimator)
            return plan_pipeline(part, given, left, resolver, block=request.block, **more)

        layout, plan = plan_sweep(
            pipeline, spec, budgets, plan_of, finder, to_folder=folder is not None
        )
        wall_time.begin("preparing")
        request.announce(plan)
        log.add(str(plan))
        path = path_of(scan)
        provenance = replace(
            provenance_of(plan, pipeline, path, source.name, device_name(backend)),
            input=None if path is None else input_state(files_read(scan, pipeline)),
        )
        bar = held.enter_context(progress_shown(request.progress))
        if folder is not None:
            held.enter_context(folder)
        trim_heap()
        process_peak = ResidentPeak()
        runs = SweepRuns(request, source, layout, plan, budgets)
        with SweepPictures(plan, folder) as pictures:
            wall_time.begin("sections")
            for picture, value in zip(runs.pictures(), cut.sweep.values, strict=True):
                if not pictures.sharpness:
                    bar.start(cut.name, len(cut.sweep.values))
                pictures.add(picture, value)
                bar.advance(1)
            wall_time.begin("finishing")
            files = pictures.finish()
        wall_time.stop()
        sections = (*runs.once, *together(runs.each))
        report = SweepReport(
            plan=plan,
            device=backend.name,
            sections=sections,
            side_results=runs.side_results,
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
            log.add(str(report))
            folder.write(PIPELINE_NAME, as_run(pipeline, provenance))
            folder.write(LOG_NAME, log.text)
            leave_page(report, folder, log.warned)
            folder.conclude(lambda into: report.to_json())
        return report


@dataclass(slots=True)
class SweepRuns:
    """The runs of a sweep, and what they found."""

    request: RunRequest
    """The options of all runs."""
    source: Source
    """The scan."""
    layout: SweepLayout
    """The rows that they read."""
    plan: SweepPlan
    """The plan."""
    budgets: Budgets
    """Memory for a run and what is held meanwhile."""
    once: tuple[SectionReport, ...] = ()
    """Sections that ran once."""
    each: list[tuple[SectionReport, ...]] = field(default_factory=list)
    """Sections of each value."""
    side_results: dict[str, Any] = field(default_factory=dict)
    """Side results by ``method.name``: of steps that run for each value, a list."""
    _known: dict[tuple[str, str], Any] = field(default_factory=dict)
    """(step id, name under its side_outputs) -> value."""
    _first: tuple[Any, ArraySpec] | None = None
    """The first value, and what its run makes."""

    def pictures(self) -> Iterator[NDArray[Any]]:
        """Make the picture of each value, in order; each is a view that holds until the next."""
        given = self._before()
        for value in self.layout.cut.sweep.values:
            yield self._picture(given, value)

    def _before(self) -> RowsInMemory:
        """Run the steps before the swept one; what that is given."""
        rows, before = self.layout.rows, self.layout.cut.before
        for pipeline in self.layout.alone:
            report = self._run(pipeline, self.source)
            self.side_results |= report.side_results
            self._known |= report.by_reference
        some, angles = self._few_rows(), self.source.angles
        data: NDArray[Any] | None = None
        if before is not None:
            before = replace(before, steps=tuple(s.with_known(self._known) for s in before.steps))
            report = self._run(before, some)
            self.once, data = report.sections, report.result
            self.side_results |= report.side_results
            self._known |= report.by_reference
            angles = self._angles_after(before, report, angles)
        if data is None:
            data = read_rows(some, 0, rows.n_rows)
        first, last = self.layout.given_rows(data.shape[1])
        if (first, last) != (0, data.shape[1]):
            data = np.ascontiguousarray(data[:, first:last])
        return RowsInMemory(data, self.source, (rows.start + first, rows.start + last), angles)

    def _few_rows(self) -> Source:
        """Scan with the rows that the pictures depend on."""
        rows = self.layout.rows
        if isinstance(self.source, FrameSource):
            return self.source.with_rows(rows.start, rows.stop)
        if rows.n_rows == self.source.spec.shape[1]:
            return self.source
        data = read_rows(self.source, rows.start, rows.stop)
        return RowsInMemory(data, self.source, (rows.start, rows.stop), self.source.angles)

    def _picture(self, given: RowsInMemory, value: Any) -> NDArray[Any]:
        """Run the steps for a value; the middle row of the result, as a view."""
        layout, rows = self.layout, given.rows
        pipeline = layout.cut.with_value(value, self._known)
        middle = layout.rows.middle - rows[0]
        after = layout.rows_after(given.spec.shape[1], middle)
        sections: list[SectionReport] = []
        result, angles = None, given.angles
        parts = layout.parts(pipeline, is_split=after is not None)
        for number, part in enumerate(parts):
            if after is not None and result is not None:
                found = rows[0] + after[0], rows[0] + after[1]
                given = RowsInMemory(result[:, after[0] : after[1]], self.source, found, angles)
                middle -= after[0]
            report = self._run(
                part,
                given,
                self.plan.held_bytes + self.plan.pictures_bytes,
                value if number == len(parts) - 1 else None,
            )
            sections += report.sections
            angles = self._angles_after(part, report, angles)
            for name, side_result in report.side_results.items():
                self.side_results.setdefault(name, []).append(side_result)
            result = report.result
        self.each.append(tuple(sections))
        assert result is not None
        if result.shape[1] != given.spec.shape[1]:  # a step made other rows of them
            middle = result.shape[1] // 2
        return result[:, middle]

    def _run(
        self, pipeline: Pipeline, scan: Source, held_bytes: int = 0, value: Any = None
    ) -> Report:
        """Run steps whose result stays in memory; the last of a value's runs makes its picture."""
        request, left = self.request, less_held(self.budgets, held_bytes)
        is_cuda = self.budgets.kind == "cuda"

        def announce(plan: Plan) -> None:
            if value is not None:
                self._check_alike(value, plan.sections[-1].output)

        options = RunRequest(
            scan=scan,
            pipeline=pipeline,
            announce=announce,
            device=request.device,
            memory=request.memory if is_cuda else left.budget_bytes,
            host_memory=left.host_budget_bytes if is_cuda else None,
            block=request.block,
            estimator=request.estimator,
            scratch=request.scratch,
        )
        return carry_out(options, pipeline)

    def _check_alike(self, value: Any, output: ArraySpec) -> None:
        """Check that the picture of a value has the shape of the first one."""
        first, wanted = self._first or (value, output)
        if output != wanted:
            cut = self.layout.cut
            raise ParameterError(
                f"{cut.name} = {value_text(first)} gives {wanted}, and {value_text(value)} gives "
                f"{output}: the pictures of a sweep have one shape",
                cut.sweep.place.where,
                cut.sweep.place.pointer,
            )
        self._first = first, wanted

    def _angles_after(
        self, pipeline: Pipeline, report: Report, angles: NDArray[np.float32] | None
    ) -> NDArray[np.float32] | None:
        """Angles of the result of a run, from those of its data; None without any."""
        known = {**self._known, **report.by_reference}
        for step in pipeline.steps:
            if angles is not None and step.meta.output_angles is not None:
                angles = step.meta.angles_after(angles, step.with_known(known).parameters)
        return angles


class RowsInMemory(FrameSource):
    """Some rows of a scan after the steps before, in memory, with its flats, darks and angles."""

    def __init__(
        self,
        data: NDArray[Any],
        scan: Source,
        rows: tuple[int, int],
        angles: NDArray[np.float32] | None,
    ) -> None:
        specs: dict[SideName, ArraySpec | None] = {"flats": scan.flats, "darks": scan.darks}
        sides: dict[SideName, Selection | None] = {
            side: Selection.of(ArrayFrames(f"{scan.name} {side}", scan.read_side(side, 1, *rows)))
            for side, spec in specs.items()
            if spec is not None
            and spec.shape[2] == data.shape[2]
            and rows[1] - rows[0] == data.shape[1]
        }
        if angles is not None:  # fewer than the data have: those are no longer projections
            angles = angles[: data.shape[0]] if data.shape[0] <= len(angles) else None
        super().__init__(
            scan.name,
            Selection.of(ArrayFrames(scan.name, data)),
            sides=sides,
            angles=angles,
        )
        if isinstance(scan, FrameSource) and scan.flats is not None and "flats" in sides:
            self._means = scan._means
        self.rows = rows
        """First row of the scan, and the one after the last."""
        first = scan.detector_start if isinstance(scan, HasDetectorStart) else (0, 0)
        self._detector_start = first[0] + rows[0], first[1]


def read_rows(source: Source, start: int, stop: int) -> NDArray[Any]:
    """Read rows of all projections into memory."""
    spec = source.spec.with_slices(1, stop - start)
    out = pinned_empty(spec.shape, spec.dtype)
    source.read(1, start, stop, out)
    return out
