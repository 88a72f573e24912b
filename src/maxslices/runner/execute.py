"""Execute the sections of a plan in order, and correct recorded estimates afterwards."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.angles import angle_table
from ..devices import Backend, require_libraries, shared_allocator
from ..errors import SourceError
from ..estimate import ModelResolver
from ..io import MemoryStore, Source, Store
from ..io.access import SIDE_NAMES, FlatWeights
from ..pipeline import Pipeline, Step
from ..planner import Plan
from ..system.plain_records import to_plain
from .blocks.block_feed import DeviceStore, Readable
from .blocks.block_runner import BlockRunner
from .blocks.side_data import SideFrames, SideResults
from .folder.run_results import Results, make_sinks
from .folder.unfinished_run import ResumedSections, SectionState
from .report.progress import Progress
from .report.run_report import SectionReport
from .report.run_timeline import WallTime
from .section_run import SectionRun
from .stores_between import StoresBetween

logger = logging.getLogger(__name__)


class SectionExecutor:
    """Runs the blocks of sections in this process. Subclasses run them in other processes."""

    @property
    def is_here(self) -> bool:
        """True if methods run in this process."""
        return True

    @property
    def share_memory(self) -> bool:
        """True if the processes can open files that exist in the memory of this one."""
        return True

    def section_run(self, *args: Any, **options: Any) -> SectionRun:
        """Make the run of a section; see `SectionRun` for the arguments."""
        return SectionRun(*args, **options)


def execute(
    plan: Plan,
    pipeline: Pipeline,
    source: Source,
    backend: Backend,
    folder: Results,
    progress: Progress,
    wall_time: WallTime,
    result: np.ndarray | None = None,
    sections: SectionExecutor | None = None,
    pixel_size_um: float | None = None,
) -> tuple[tuple[SectionReport, ...], SideResults, np.ndarray | None]:
    """Run a plan.

    Parameters
    ----------
    plan : Plan
        A plan for this pipeline and scan.
    pipeline : Pipeline
        The methods.
    source : Source
        The scan.
    backend : Backend
        The device.
    folder : RunFolder or ResultsInMemory
        Stores the results, and data between sections that do not fit in memory.
    progress : Progress
        Shows the number of finished slices.
    wall_time : WallTime
        Attributes the time to phases.
    result : ndarray, optional
        Array for the last result if that stays in memory. By default a new one is allocated.
    sections : SectionExecutor, optional
        Runs each section, by default in this process. If other processes run the sections on their
        devices, `backend` is the CPU.
    pixel_size_um : float, optional
        Size of a pixel at the sample in micrometres, for methods that scale by it.

    Returns
    -------
    (tuple of SectionReport, SideResults, numpy.ndarray or None)
        Reports, side results, and the last result if it is in memory.

    Raises
    ------
    MethodError
        If a method fails, runs out of memory on a single slice, or returns a shape or dtype that
        differs from its declaration.
    StoreError
        If a result cannot be written.
    """
    sections = sections or SectionExecutor()
    wall_time.begin("preparing")
    side_results = SideResults()
    reports: list[SectionReport] = []
    reader: Readable | DeviceStore = source
    position = 0
    angles, non_finite = source.angles, (0, 0)
    with contextlib.ExitStack() as held:
        weights = _look_at_frames(source, pipeline)
        side_frames = SideFrames(source, pipeline.steps, backend, side_results.resolve, weights)
        facts = {
            "detector_start": source.detector_start,
            "results_folder": folder.path,
            "pixel_size_um": pixel_size_um,
        }
        # Missing libraries, existing results and full disks end the run before it computes.
        with_torch = require_libraries(s.meta for s in pipeline.steps if sections.is_here)
        all_sinks = make_sinks(folder, plan, pipeline, wall_time, source.angles)
        budget_bytes = plan.budget_bytes - plan.reserved_bytes
        held.enter_context(backend.limited(budget_bytes))
        if with_torch and backend.kind == "cuda":
            held.enter_context(shared_allocator(budget_bytes))
        journal, scratch_folder = folder.journal, folder.scratch_folder
        stores = held.enter_context(
            StoresBetween(plan, backend, scratch_folder, journal, in_memory=sections.share_memory)
        )
        resumed = ResumedSections(plan, folder.unfinished, scratch_folder)
        known = {index for index, _ in resumed.side_results}
        for index, value in resumed.side_results:
            side_results.keep(pipeline.steps[index], value)
        for number, section in enumerate(plan.sections):
            wall_time.begin("preparing")
            stop = position + len(section.steps)
            is_last = number == len(plan.sections) - 1
            before = resumed.state(number)
            sinks = {i: sink for i, sink in all_sinks.items() if position <= i < stop}
            if not resumed.runs(number) and before.report is not None:
                angles = side_results.angles_after(pipeline.steps[position:stop], angles)
                reports.append(replace(before.report, is_earlier=True))
                if resumed.runs(number + 1):
                    reader = stores.reopen(number, before)
                progress.start(f"section {number + 1}/{len(plan.sections)}", section.n_slices)
                progress.advance(section.n_slices)
                position = stop
                continue
            keeps_blocks = resumed.resumes_within(number)
            if not keeps_blocks:
                before = SectionState()
            store: Store | DeviceStore | None
            if is_last:
                is_kept = section.destination == "memory"  # not pinned: the array is the user's
                store, note = MemoryStore(section.output, result) if is_kept else None, ""
                if journal is not None and not keeps_blocks:
                    journal.note("begin", section=number)
            elif keeps_blocks:
                store, note = stores.reopen(number, before), ""
            else:
                store, note = stores.make(number)
            _warn_of_order(pipeline.steps[position:stop], angles, side_results)
            block_runner = BlockRunner(
                section,
                pipeline.steps[position:stop],
                side_frames,
                angles,
                backend,
                side_results,
                {i - position: sink for i, sink in sinks.items()},
                store,
                facts,
                known={i - position for i in known if position <= i < stop},
                journal=journal,
                input_non_finite=non_finite,
            )
            notes = tuple(text for text in (note, before.note(section)) if text)
            on_block = None
            if journal is not None and (is_last or stores.is_on_disk(number)):
                on_block = partial(journal.done, number)
            section_run = sections.section_run(
                block_runner, reader, notes, before=before, on_block=on_block
            )
            progress.start(f"section {number + 1}/{len(plan.sections)}", section.n_slices)
            try:
                with wall_time.during("sections"):
                    reports.append(section_run.run(progress.advance))
                source.check_unchanged()
            except SourceError:
                source.check_unchanged()  # a truncated scan cannot be read because it has changed
                raise
            wall_time.begin("finishing")
            if journal is not None and block_runner.keeps_track:
                journal.note("finished", section=number, report=to_plain(reports[-1]))
            stores.finish_section(number)
            if store is not None:
                reader = store
                if is_last and isinstance(store, MemoryStore):
                    result = store.array
            angles = side_results.angles_after(pipeline.steps[position:stop], angles)
            non_finite = block_runner.checks.non_finite
            position = stop
            if not is_last:
                backend.release()
    return tuple(reports), side_results, result


def _warn_of_order(
    steps: Sequence[Step], angles: NDArray[np.float32] | None, side_results: SideResults
) -> None:
    """Log a warning of methods that get projections which are not in the order of their angles."""
    for index, step in enumerate(steps):
        with contextlib.suppress(KeyError):  # a side result that the section has not yet computed
            step_angles = side_results.angles_after(steps[:index], angles)
            if step_angles is None:
                continue
            values = {name: side_results.resolve(value) for name, value in step.parameters.items()}
            if not step.meta.depends_on_order(values):
                continue
            table = angle_table(step_angles)
            if not table.in_order:
                logger.warning(
                    "%s takes projections in the order of the scan, which is not that of their "
                    "angles (%s), so its result is likely wrong: put sort_by_angle before it",
                    step.meta.name,
                    table,
                )


def _look_at_frames(source: Source, pipeline: Pipeline) -> FlatWeights | None:
    """Warn of doubtful frames; return the weights of the flats for each projection."""
    used = {name for step in pipeline.steps for name in step.meta.supplied}
    texts = _uncorrected(source, pipeline)
    if used & set(SIDE_NAMES):
        texts += source.frame_warnings(used)
    weights = source.flat_weights() if "flats" in used else None
    if weights is not None:
        texts += [
            f"{source.name}: flats change during the scan, and {step.meta.name} uses their mean. "
            "dark_flat_field_correction of maxslices_methods interpolates them in time"
            for step in pipeline.steps
            if "flats" in step.meta.supplied and "flat_weights" not in step.meta.supplied
        ]
    for text in texts:
        warnings.warn(text, stacklevel=2)
    return weights


def _uncorrected(source: Source, pipeline: Pipeline) -> list[str]:
    """Warn of counts, which a scan with flats has, in a method that takes something else."""
    if source.flats is None or source.spec.dtype.kind != "u":
        return []
    for meta in (step.meta for step in pipeline.steps):
        if meta.takes and "counts" not in meta.takes:
            return [
                f"{meta.name} takes {' or '.join(meta.takes)}, and {source.name} has counts: the "
                "result is probably wrong. dark_flat_field_correction gives transmission"
            ]
        if meta.gives != "same":
            break
    return []


def correct_records(
    plan: Plan, reports: Sequence[SectionReport], resolver: ModelResolver
) -> list[str]:
    """Correct recorded estimates that were too low for a section's blocks.

    One method limits a section, and its record is corrected. The new estimate is the measured peak
    or, if a block ran out of memory, more than the available memory. The next plan uses it.

    Parameters
    ----------
    plan : Plan
        The executed plan.
    reports : sequence of SectionReport
        Report of each section.
    resolver : ModelResolver
        Resolved the estimates of the methods.

    Returns
    -------
    list of str
        Names of the corrected methods.
    """
    corrected = []
    for section, report in zip(plan.sections, reports, strict=True):
        question, choice = resolver.resolved[section.limiting_step]
        if choice.origin not in ("recorded", "probed"):
            continue
        block = min(section.block + sum(section.halo), section.n_slices)
        needed = 0
        if report.measured_bytes is not None and report.measured_bytes > section.estimated_bytes:
            needed = report.measured_bytes - section.side_bytes
        if report.n_splits:
            needed = max(needed, section.available_bytes - section.side_bytes + 1)
        if needed and resolver.learn(question, block, needed):
            corrected.append(question.meta.name)
    return corrected
