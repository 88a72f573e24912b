"""A sweep in this process: the steps before the swept one once, the others for each value."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..devices import Backend, pinned_empty, select_backend
from ..devices.device_name import device_name
from ..estimate import Chooser
from ..io import Source
from ..pipeline import Pipeline, ScanSpec
from ..pipeline.sweep import SweptPipeline
from ..planner import Plan
from ..planner.sweep_plan import SweepPlan
from ..runner import RunFolder, SectionReport, Timeline, execute
from ..runner.blocks.side_results import SideResults
from ..runner.report.progress import Progress, ProgressOnAll
from ..runner.report.wall_time import WallTime
from ..runner.sweep.report import together
from .find_values import ValueFinder
from .plan_scan import plan_pipeline
from .plan_sweep import PreparedSweep, prepare_sweep
from .resources import budgets_here, chooser_for
from .run_request import RunRequest
from .run_sweep import SweepSetting
from .scan_and_output import opened, spec_of
from .sweep_source import StepInput, read_rows, some_rows


class SweepHere:
    """Makes the pictures of a sweep in this process; a `SweepWork`."""

    def __init__(self, setting: SweepSetting) -> None:
        request, pipeline, cut = setting.request, setting.pipeline, setting.cut
        self._request = request
        self._cut = cut
        self._wall_time = setting.wall_time
        self._folder = setting.folder
        self._backend = select_backend(request.device)
        self._source = setting.held.enter_context(
            opened(request.scan, pipeline, allow_missing_frames=request.allow_missing_frames)
        )
        self._wall_time.begin("planning")
        self._prepared = planned_sweep(
            request, pipeline, cut, self._source, self._backend, to_folder=self._folder is not None
        )
        self.whole: SweepPlan = self._prepared.whole
        self.device = self._backend.name
        self.device_name = device_name(self._backend)
        self.scan_name = self._source.name
        self.side_results: dict[str, Any] = {}
        self.sections: tuple[SectionReport, ...] = ()
        self.sections_s = 0.0

    def pictures(self, bar: Progress) -> Iterator[NDArray[Any]]:
        """Make the picture of each value, in order; each is a view that holds until the next."""
        request, before = self._request, self._cut.before
        steps = _SweepSteps(
            self._prepared, self._source, self._backend, self._wall_time, self._folder
        )
        for index in self._prepared.rows.elsewhere:
            assert before is not None
            alone = _unsaved(replace(before, steps=before.steps[: index + 1]))
            spec = spec_of(self._source, self._backend)
            budgets = budgets_here(self._backend, request.memory, request.host_memory)
            chooser = chooser_for(spec, budgets, self._backend, request.estimator)
            finder = ValueFinder(
                self._source, self._backend, spec, budgets, chooser, request.scratch
            )
            made = plan_pipeline(
                alone, spec, budgets, chooser, result_in_memory=True, values=finder
            )
            steps.find(made, alone)
        steps.run_before()
        values = self._cut.sweep.values
        bar.start(self._cut.name, len(values))
        for value in values:
            yield steps.picture(value)
            bar.advance(1)
        self.side_results = steps.side_results
        self.sections = (*steps.reports_before, *together(steps.reports))
        self.sections_s = sum(each.duration_s for each in self.sections)


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

    def chooser_of(part: ScanSpec) -> Chooser:
        return chooser_for(part, budgets, backend, request.estimator)

    spec = spec_of(source, backend)
    finder = ValueFinder(source, backend, spec, budgets, chooser_of(spec), request.scratch)
    return prepare_sweep(
        pipeline,
        spec,
        budgets,
        chooser_of,
        block=request.block,
        fit=request.fit,
        to_folder=to_folder,
        values=finder,
    )


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
