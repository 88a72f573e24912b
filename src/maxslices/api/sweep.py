"""Sweeps: a run of the steps before the swept one, and then runs for each value.

All are ordinary runs that plan themselves and keep their result in memory. The first reads the few
rows of the scan that the pictures depend on; the others read what it left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import ArraySpec
from ..core.units import format_bytes
from ..devices import pinned_empty, select_backend
from ..devices.backend import device_name
from ..errors import DoesNotFitError, ParameterError
from ..io import LoaderOptions, SideName, Source
from ..io.frames.frames import ArrayFrames, Selection
from ..io.paths import path_of
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
from ..runner.folder.folder_place import LOG_NAME, PIPELINE_NAME, RECORD_NAMES
from ..runner.folder.run_identity import input_state
from ..runner.report.progress import progress_shown
from ..runner.report.run_record import RunLog, as_run
from ..runner.report.run_record import provenance as provenance_of
from ..runner.report.run_report import SweepReport, together
from ..runner.report.run_timeline import WallTime
from ..runner.sweep_pictures import SweepPictures
from ..tuning.heap import trim_heap
from .carry_out import carry_out
from .check_run import made_for
from .pictures import leave_page
from .plan_scan import sweep_notes, with_rows
from .resources import budgets_here, chooser_for
from .run_request import RunRequest
from .scan_and_output import files_read, opened, spec_of
from .team import ValueFinder


def run_sweep(request: RunRequest, pipeline: Pipeline) -> SweepReport:
    """Run a pipeline that has a sweep, as `maxslices.run` says."""
    wall_time = WallTime()
    scan, folder = request.scan, None
    if request.folder_path is not None:
        folder = RunFolder(request.folder_path, "tiff", request.overwrite)
        for read in files_read(scan, pipeline):
            folder.check_spares(read)
    with contextlib.ExitStack() as held:
        log = held.enter_context(RunLog())
        wall_time.begin("opening")
        source = held.enter_context(opened(scan, pipeline))
        backend = select_backend(request.device)
        budgets = budgets_here(backend, request.memory, request.host_memory)
        spec = spec_of(source, backend)
        resolver = chooser_for(spec, budgets, backend, request.estimator)
        finder = ValueFinder(source, backend, spec, budgets, resolver, request.scratch)
        cut, rows = with_rows(pipeline, spec.projections.shape[1], finder)
        bar = held.enter_context(progress_shown(request.progress))
        if folder is not None:
            held.enter_context(folder)
        trim_heap()
        process_peak, runs = ResidentPeak(), SweepRuns(request, source, cut, rows, budgets, log)
        with SweepPictures(cut.name, cut.sweep.values, folder) as pictures:
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
    cut: SweptPipeline
    """The pipeline, cut before the swept step."""
    rows: SweepRows
    """Rows of the scan that the first run reads."""
    budgets: Budgets
    """Memory for a run and what is held meanwhile."""
    log: RunLog
    """Takes the plans."""
    plans: list[Plan] = field(default_factory=list)
    """Plans of the steps before, and of the first value."""
    once: tuple[SectionReport, ...] = ()
    """Sections that ran once."""
    each: list[tuple[SectionReport, ...]] = field(default_factory=list)
    """Sections of each value."""
    side_results: dict[str, Any] = field(default_factory=dict)
    """Side results by ``method.name``: of steps that run for each value, a list."""
    pictures_bytes: int = 0
    """Host memory that is held for pictures."""
    _held_bytes: int = 0
    """Host memory that is held for data."""
    _known: dict[tuple[str, str], Any] = field(default_factory=dict)
    """(step id, name under its side_outputs) -> value."""
    _first: tuple[Any, ArraySpec] | None = None
    """The first value, and what its run makes."""

    @property
    def plan(self) -> Plan:
        """The plans as one: its sections are those that run once, then those of the first value."""
        sections = tuple(section for plan in self.plans for section in plan.sections)
        notes = dict.fromkeys(note for plan in self.plans for note in plan.notes)
        return replace(self.plans[0], sections=sections, notes=tuple(notes))

    def pictures(self) -> Iterator[NDArray[Any]]:
        """Make the picture of each value, in order; each is a view that holds until the next."""
        given = self._before(self.rows)
        for value in self.cut.sweep.values:
            yield self._picture(given, value, self.rows.middle)

    def _before(self, rows: SweepRows) -> RowsInMemory:
        """Run the steps before the swept one; what that is given."""
        some, angles = self._few_rows(rows), self.source.angles
        steps, data = () if self.cut.before is None else self.cut.before.steps, None
        kept = []
        for i, step in enumerate(steps):
            if i not in rows.elsewhere:
                kept.append(step)
                continue
            alone = [replace(each, save_result=False) for each in steps[: i + 1]]
            self._found(self._run(alone, self.source, lambda plan: None))
        if kept:
            report = self._run(kept, some, self._announce)
            self.once, data = report.sections, report.result
            self._found(report)
            angles = self._angles_after(kept, angles)
        if data is None:
            data = read_rows(some, 0, rows.n_rows)
        middle, reach = rows.middle - rows.start, sum(reach_after(self.cut).values())
        first, last = 0, data.shape[1]
        if self.budgets.kind == "cpu" and last == rows.n_rows:
            # On a GPU the call is the same as httomo's, bit for bit: five rows take as long as one.
            first, last = _around(middle, reach, last)
        return self._in_memory(data, (first, last), rows.start, angles)

    def _few_rows(self, rows: SweepRows) -> Source:
        """Scan with the rows that the pictures depend on."""
        if isinstance(self.source, FrameSource):
            return self.source.with_rows(rows.start, rows.stop)
        if rows.n_rows == self.source.spec.shape[1]:
            return self.source
        data = read_rows(self.source, rows.start, rows.stop)
        return RowsInMemory(data, self.source, (rows.start, rows.stop), self.source.angles)

    def _picture(self, given: RowsInMemory, value: Any, middle: int) -> NDArray[Any]:
        """Run the steps for a value; the middle row of the result, as a view.

        The swept step may reach across many rows, which those after it do not need.
        """
        swept, *after = self.cut.with_value(value, self._known).steps
        self._held_bytes = given.n_bytes
        sections: list[SectionReport] = []
        has_rows = swept.meta.output_dims is None or swept.meta.pattern == "sinogram"
        reach = sum(step.meta.rows_reached(**step.known_parameters()) for step in after)
        if self.budgets.kind == "cuda":
            reach = max(reach, USUAL_ROWS // 2)
        n_rows = given.spec.shape[1]
        part = _around(middle - given.rows[0], reach, n_rows)
        if has_rows and part != (0, n_rows) and not all(step.meta.side_results for step in after):
            report = self._run([replace(swept, save_result=True)], given, self._announce_first)
            assert report.result is not None
            sections += report.sections
            angles = self._angles_after([swept], given.angles)
            given = self._in_memory(report.result, part, given.rows[0], angles)
            self._held_bytes += report.result.nbytes + given.n_bytes
        else:
            after = [swept, *after]

        def announce(plan: Plan) -> None:
            self._check_alike(value, plan.sections[-1].output)
            self._announce_first(plan)

        report = self._run(after, given, announce)
        self.each.append((*sections, *report.sections))
        for name, side_result in report.side_results.items():
            self.side_results.setdefault(name, []).append(side_result)
        result = report.result
        assert result is not None
        has_rows = result.shape[1] == given.spec.shape[1]  # else a step made other rows of them
        return result[:, middle - given.rows[0] if has_rows else result.shape[1] // 2]

    def _in_memory(
        self,
        data: NDArray[Any],
        part: tuple[int, int],
        start: int,
        angles: NDArray[np.float32] | None,
    ) -> RowsInMemory:
        """Some rows of a result, whose first one is the scan's `start`."""
        if part != (0, data.shape[1]):
            data = np.ascontiguousarray(data[:, slice(*part)])
        return RowsInMemory(data, self.source, (start + part[0], start + part[1]), angles)

    def _run(self, steps: list[Any], scan: Source, announce: Callable[[Plan], None]) -> Report:
        """Run steps whose result stays in memory, within what is not held."""
        request, held = self.request, self._held_bytes + self.pictures_bytes
        is_cuda = self.budgets.kind == "cuda"
        left = self.budgets.host_budget_bytes - held
        texts = format_bytes(held), format_bytes(self.budgets.host_budget_bytes)
        if left <= 0:
            raise DoesNotFitError(
                "the sweep holds {} in host memory for data and pictures, and {} are allowed: "
                "allow more, or sweep fewer values".format(*texts)
            )
        known = tuple(step.with_known(self._known) for step in steps)
        pipeline = replace(self.cut.swept, steps=known, loader=LoaderOptions())
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
                f"{error}; the sweep holds {texts[0]} of data and pictures beside it"
            ) from None

    def _announce(self, plan: Plan) -> None:
        """Show a plan that is part of that of the sweep, the first one with the sweep's notes."""
        if not self.plans:
            plan = replace(plan, notes=(*sweep_notes(self.cut, self.rows), *plan.notes))
        self.plans.append(plan)
        self.log.add(str(plan))
        self.request.announce(plan)

    def _announce_first(self, plan: Plan) -> None:
        if not self.each:
            self._announce(plan)

    def _check_alike(self, value: Any, output: ArraySpec) -> None:
        """Check that the picture of a value has the shape of the first one."""
        first, wanted = self._first or (value, output)
        if output != wanted:
            raise ParameterError(
                f"{self.cut.name} = {value_text(first)} gives {wanted}, and {value_text(value)} "
                f"gives {output}: the pictures of a sweep have one shape",
                self.cut.sweep.place.where,
                self.cut.sweep.place.pointer,
            )
        self._first = first, wanted

    def _found(self, report: Report) -> None:
        """Note the side results of a run."""
        self.side_results |= report.side_results
        self._known |= report.by_reference

    def _angles_after(
        self, steps: list[Any], angles: NDArray[np.float32] | None
    ) -> NDArray[np.float32] | None:
        """Angles of the result of steps, from those of its data; None without any."""
        for step in steps:
            if angles is not None and step.meta.output_angles is not None:
                angles = step.meta.angles_after(angles, step.with_known(self._known).parameters)
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
        top, left = scan.detector_start
        self.detector_start = top + rows[0], left

    @property
    def n_bytes(self) -> int:
        """Bytes of host memory that it holds."""
        return sum(spec.nbytes for spec in (self.spec, self.flats, self.darks) if spec is not None)


def read_rows(source: Source, start: int, stop: int) -> NDArray[Any]:
    """Read rows of all projections into memory."""
    spec = source.spec.with_slices(1, stop - start)
    out = pinned_empty(spec.shape, spec.dtype)
    source.read(1, start, stop, out)
    return out


def _around(middle: int, reach: int, n_rows: int) -> tuple[int, int]:
    """Rows around the middle, as far as there are some."""
    return max(0, middle - reach), min(n_rows, middle + reach + 1)
