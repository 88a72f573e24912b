"""Sweeps: one run of the steps before the swept step, and one run for each value.

All are ordinary runs with their own plans, which keep their results in memory. The first run reads
the rows of the scan that the slices depend on. The others read its result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from ..core.arrays import ArraySpec
from ..core.units import format_bytes
from ..devices import pinned_empty, select_backend
from ..devices.backend import device_name
from ..errors import DoesNotFitError, ParameterError
from ..io import ArrayScan, LoaderOptions, Source
from ..io.access import SIDE_NAMES
from ..io.files import path_of
from ..io.scans.frame_source import FrameSource
from ..measure.resident_memory import ResidentPeak
from ..pipeline import Pipeline
from ..pipeline.sweep import (
    USUAL_ROWS,
    SweepRows,
    SweptPipeline,
    reach_after,
)
from ..planner import Budgets, Plan
from ..planner.plan import value_text
from ..runner import Report, RunFolder, SectionReport
from ..runner.folder.unfinished_run import input_state
from ..runner.report.progress import progress_shown
from ..runner.report.run_record import RunLog
from ..runner.report.run_record import provenance as provenance_of
from ..runner.report.run_report import SweepReport, together
from ..runner.report.run_timeline import WallTime
from ..runner.sweep_pictures import SweepPictures
from ..tuning.heap import trim_heap
from .carry_out import carry_out, result_origin, write_texts
from .check_run import made_for
from .plan_scan import sweep_notes, with_rows
from .resources import budgets_here, chooser_for
from .run_request import RunRequest
from .scan_and_output import files_read, opened, spec_of
from .team import ValueFinder


def run_sweep(request: RunRequest, pipeline: Pipeline) -> SweepReport:
    """Run a pipeline that has a sweep. See `maxslices.run`."""
    wall_time = WallTime()
    scan, folder = request.scan, replace(request, resume=False).results(pipeline)
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(RunLog())
        wall_time.begin("opening")
        source = stack.enter_context(opened(scan, pipeline))
        backend = select_backend(request.device)
        budgets = budgets_here(backend, request.memory, request.host_memory)
        spec = spec_of(source, backend)
        resolver = chooser_for(spec, budgets, backend, request.estimator)
        finder = ValueFinder(source, backend, spec, budgets, resolver, request.scratch)
        cut, rows = with_rows(pipeline, spec.projections.shape[1], finder.find)
        bar = stack.enter_context(progress_shown(request.progress))
        stack.enter_context(folder)
        trim_heap()
        process_peak, runs = ResidentPeak(), SweepRuns(request, source, cut, rows, budgets, log)
        in_folder = folder if isinstance(folder, RunFolder) else None
        with SweepPictures(cut.name, cut.sweep.values, in_folder) as pictures:
            wall_time.begin("sections")
            for picture, value in zip(runs.pictures(), cut.sweep.values, strict=True):
                if not pictures.sharpness:
                    bar.start(cut.name, len(cut.sweep.values))
                pictures.add(picture, value)
                runs.pictures_bytes = pictures.n_bytes
                bar.advance(1)
            wall_time.begin("finishing")
            files = pictures.finish()
        wall_time.stop()
        sections = (*runs.once, *together(runs.each))
        plan = replace(runs.plan, made_for=made_for(pipeline, spec, backend.kind))
        path = path_of(scan)
        provenance = replace(
            provenance_of(plan, pipeline, path, source.name, device_name(backend)),
            input=None if path is None else input_state(files_read(scan, pipeline)),
        )
        report = SweepReport(
            plan=plan,
            device=backend.name,
            sections=sections,
            side_results=runs.side_results,
            files=files,
            duration_s=wall_time.total_s,
            phases_s=wall_time.other_phases(sum(each.duration_s for each in sections)),
            process_bytes=process_peak.grown_bytes,
            result=pictures.stack,
            parameter=cut.name,
            values=cut.sweep.values,
            sharpness=tuple(pictures.sharpness),
            provenance=provenance,
            records=folder.records(False),
        )
        origin = result_origin(request, source, provenance)
        folder.conclude(lambda into: write_texts(into, request, pipeline, report, origin, log))
        return report


@dataclass(slots=True)
class SweepRuns:
    """The runs of a sweep and their side results."""

    request: RunRequest
    """The options of all runs."""
    source: Source
    """The scan."""
    cut: SweptPipeline
    """The pipeline, cut before the swept step."""
    rows: SweepRows
    """Rows of the scan that the first run reads."""
    budgets: Budgets
    """Memory for a run and for the data kept meanwhile."""
    log: RunLog
    """Log of the plans."""
    plans: list[Plan] = field(default_factory=list)
    """Plans of the steps before the swept one, and of the first value."""
    once: tuple[SectionReport, ...] = ()
    """Sections that ran once."""
    each: list[tuple[SectionReport, ...]] = field(default_factory=list)
    """Sections of each value."""
    side_results: dict[str, Any] = field(default_factory=dict)
    """Side results by ``method.name``. Steps that run for each value have a list."""
    pictures_bytes: int = 0
    """Host memory of the slices."""
    _held_bytes: int = 0
    """Host memory of the data between runs."""
    _known: dict[tuple[str, str], Any] = field(default_factory=dict)
    """(step id, name under its side_outputs) -> value."""
    _first: tuple[Any, ArraySpec] | None = None
    """The first value, and shape and dtype of its result."""

    @property
    def plan(self) -> Plan:
        """Joined plan: sections that run once, then those of the first value."""
        sections = tuple(section for plan in self.plans for section in plan.sections)
        notes = dict.fromkeys(note for plan in self.plans for note in plan.notes)
        return replace(self.plans[0], sections=sections, notes=tuple(notes))

    def pictures(self) -> Iterator[NDArray[Any]]:
        """Yield the slice of each value in order, as a view that is valid until the next."""
        scan, middle = self._before()
        for value in self.cut.sweep.values:
            yield self._picture(value, scan, middle)

    def _before(self) -> tuple[FrameSource, int]:
        """Run the steps before the swept one. Return its input and the middle row in it."""
        rows, scan = self.rows, _rows_of(self.source, self.rows)
        steps = () if self.cut.before is None else self.cut.before.steps
        for i in rows.elsewhere:
            alone = [replace(each, save_result=False) for each in steps[: i + 1]]
            self._found(self._run(alone, self.source, lambda plan: None))
        kept = [step for i, step in enumerate(steps) if i not in rows.elsewhere]
        data = None
        if kept:
            report = self._run(kept, scan, self._announce)
            self.once, data = report.sections, report.result
            self._found(report)
        if data is None:
            data = read_rows(scan, 0, rows.n_rows)
        reach = sum(reach_after(self.cut).values())
        return self._after(kept, scan, data, rows.middle - rows.start, reach)

    def _after(
        self, steps: list[Any], scan: FrameSource, data: NDArray[Any], middle: int, reach: int
    ) -> tuple[FrameSource, int]:
        """Return a scan with the results of steps as projections, and its middle row.

        It has as many rows around the middle as further steps reach. On a GPU it has at least as
        many as httomo uses, which takes no longer than one.
        """
        angles = scan.angles
        for step in steps:
            if angles is not None and step.meta.output_angles is not None:
                angles = step.meta.angles_after(
                    angles, step.with_side_results(self._known).parameters
                )
        n_rows = data.shape[1]
        if n_rows != scan.spec.shape[1]:  # a step changed the rows
            return scan.with_projections(data, (0, n_rows), angles), n_rows // 2
        part = self._around(middle, reach, n_rows)
        return scan.with_projections(data, part, angles), middle - part[0]

    def _around(self, middle: int, reach: int, n_rows: int) -> tuple[int, int]:
        """Return the range of rows around the middle, within the existing rows."""
        if self.budgets.kind == "cuda":
            reach = max(reach, USUAL_ROWS // 2)
        return max(0, middle - reach), min(n_rows, middle + reach + 1)

    def _picture(self, value: Any, scan: FrameSource, middle: int) -> NDArray[Any]:
        """Run the steps for a value. Return the middle row of the result as a view.

        The swept step may need many rows that the steps after it do not need.
        """
        swept, *after = self.cut.with_value(value, self._known).steps
        self._held_bytes = scan.spec.nbytes
        sections: list[SectionReport] = []
        reach = sum(step.meta.rows_reached(**step.known_parameters()) for step in after)
        n_rows = scan.spec.shape[1]
        makes_data = not all(step.meta.side_results for step in after)
        if makes_data and self._around(middle, reach, n_rows) != (0, n_rows):
            report = self._run([replace(swept, save_result=True)], scan, self._announce_first)
            assert report.result is not None
            sections += report.sections
            scan, middle = self._after([swept], scan, report.result, middle, reach)
            self._held_bytes += report.result.nbytes + scan.spec.nbytes
        else:
            after = [swept, *after]

        def announce(plan: Plan) -> None:
            self._check_alike(value, plan.sections[-1].output)
            self._announce_first(plan)

        report = self._run(after, scan, announce)
        self.each.append((*sections, *report.sections))
        for name, side_result in report.side_results.items():
            self.side_results.setdefault(name, []).append(side_result)
        result = report.result
        assert result is not None
        has_rows = result.shape[1] == scan.spec.shape[1]  # else a step changed the rows
        return result[:, middle if has_rows else result.shape[1] // 2]

    def _run(self, steps: list[Any], scan: Source, announce: Callable[[Plan], None]) -> Report:
        """Run steps within the memory that is left, and keep the result in memory."""
        request, held = self.request, self._held_bytes + self.pictures_bytes
        is_cuda = self.budgets.kind == "cuda"
        left = self.budgets.host_budget_bytes - held
        texts = format_bytes(held), format_bytes(self.budgets.host_budget_bytes)
        if left <= 0:
            raise DoesNotFitError(
                "the sweep holds {} of data and slices in host memory, but {} are allowed: "
                "allow more, or sweep fewer values".format(*texts)
            )
        resolved = tuple(step.with_side_results(self._known) for step in steps)
        pipeline = replace(self.cut.swept, steps=resolved, loader=LoaderOptions())
        options = RunRequest(
            scan=scan,
            pipeline=pipeline,
            announce=announce,
            device=request.device,
            memory=request.memory if is_cuda else left,
            host_memory=left if is_cuda else None,
            block=request.block,
            estimator=request.estimator,
            scratch=request.scratch,
        )
        try:
            return carry_out(options, pipeline)
        except DoesNotFitError as error:
            if not held:
                raise
            raise DoesNotFitError(
                f"{error}; the sweep also holds {texts[0]} of data and slices"
            ) from None

    def _announce(self, plan: Plan) -> None:
        """Announce a part of the sweep's plan, the first one with the sweep's notes."""
        if not self.plans:
            plan = replace(plan, notes=(*sweep_notes(self.cut, self.rows), *plan.notes))
        self.plans.append(plan)
        self.log.add(str(plan))
        self.request.announce(plan)

    def _announce_first(self, plan: Plan) -> None:
        if not self.each:
            self._announce(plan)

    def _check_alike(self, value: Any, output: ArraySpec) -> None:
        """Check that the slice of a value has the shape of the first one."""
        first, expected = self._first or (value, output)
        if output != expected:
            raise ParameterError(
                f"{self.cut.name} = {value_text(first)} gives {expected}, and {value_text(value)} "
                f"gives {output}: the slices of a sweep must have one shape",
                self.cut.sweep.place.where,
                self.cut.sweep.place.pointer,
            )
        self._first = first, expected

    def _found(self, report: Report) -> None:
        """Store the side results of a run."""
        self.side_results |= report.side_results
        self._known |= report.by_reference


def _rows_of(source: Source, rows: SweepRows) -> FrameSource:
    """Return a scan with the rows that the slices depend on, read into memory if necessary."""
    if isinstance(source, FrameSource):
        return source.with_rows(rows.start, rows.stop)
    flats, darks = (
        None if spec is None else source.read_side(side, 1, rows.start, rows.stop)
        for side, spec in zip(SIDE_NAMES, (source.flats, source.darks), strict=True)
    )
    data = read_rows(source, rows.start, rows.stop)
    scan = ArrayScan(data, flats=flats, darks=darks, angles=source.angles, name=source.name)
    return scan.with_options(LoaderOptions())


def read_rows(source: Source, start: int, stop: int) -> NDArray[Any]:
    """Read rows of all projections into memory."""
    spec = source.spec.with_slices(1, stop - start)
    out = pinned_empty(spec.shape, spec.dtype)
    source.read(1, start, stop, out)
    return out
