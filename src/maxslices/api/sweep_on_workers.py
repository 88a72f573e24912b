"""A sweep whose values workers run: each does some of them, as a sweep in one process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..devices import select_backend
from ..measure.process_peak import ProcessPeak
from ..pipeline import Pipeline
from ..pipeline.sweep import SweptPipeline, cut_at_sweep
from ..planner import Plan
from ..planner.sweep_plan import SweepPlan
from ..runner import RunFolder
from ..runner.earlier_run import RECORD_NAMES
from ..runner.progress import progress_shown
from ..runner.provenance import provenance as provenance_of
from ..runner.run_log import RunLog
from ..runner.sweep_pictures import SweepPictures
from ..runner.sweep_report import SweepReport, together
from ..runner.wall_time import WallTime
from .on_workers import worker_budgets, workers_of
from .run_request import RunRequest
from .run_sweep import leave_records, planned_sweep, run_sweep
from .scan_and_output import files_read, opened

if TYPE_CHECKING:
    from ..cluster.section_job import Share
    from ..cluster.workers import Workers

UNIT = "value"
"""What is dealt out, for messages."""


def run_sweep_on_workers(
    request: RunRequest, pipeline: Pipeline, cut: SweptPipeline
) -> SweepReport:
    """Run a pipeline that has a sweep, its values on several workers.

    A share of the values repeats the steps before the swept one. The pictures, a slice for each
    value, come back to this process, which writes them.
    """
    from ..cluster.dealing import Dealer

    wall_time, path = WallTime(), request.folder_path
    assert path is not None
    assert isinstance(request.scan, str | os.PathLike)
    folder = RunFolder(path, "tiff", request.overwrite)
    for read in files_read(request.scan, pipeline):
        folder.check_spares(read)
    with contextlib.ExitStack() as held:
        log = held.enter_context(RunLog())
        team = held.enter_context(workers_of(request, pipeline, folder))
        assert team is not None
        workers = team.workers
        log.add(workers.text)
        wall_time.begin("planning")
        job = _job(request, pipeline, workers)
        whole: SweepPlan = workers.submit(_plan, job)
        wall_time.begin("preparing")
        request.announce(whole)
        log.add(str(whole))
        scan = Path(request.scan)
        with opened(scan, pipeline, allow_missing_frames=request.allow_missing_frames) as source:
            name = source.name
        provenance = provenance_of(whole, pipeline, scan, name, workers.facts[0].device)
        bar = held.enter_context(progress_shown(request.progress))
        held.enter_context(folder)
        process_peak = ProcessPeak()
        dealer = Dealer(workers.client, workers.resources, UNIT)
        parts: dict[int, SweepReport] = {}
        count, wanted = len(cut.sweep.values), 0
        with SweepPictures(whole, folder) as pictures:
            bar.start(cut.name, count)
            wall_time.begin("sections")
            began_s = wall_time.total_s
            for share, answer in dealer.deal(run_values, job, 0, count, 1):
                parts[share.start] = answer.value
                while (part := parts.get(wanted)) is not None:  # pictures go on in order
                    assert part.result is not None
                    for picture, value in zip(part.result, part.values, strict=True):
                        pictures.add(picture, value)
                    parts[wanted] = replace(part, result=None)
                    wanted += len(part.values)
                bar.advance(share.stop - share.start)
            wall_time.begin("finishing")
            values_s = wall_time.total_s - began_s
            files = pictures.finish()
        wall_time.stop()
        ordered = [parts[start] for start in sorted(parts)]
        report = SweepReport(
            plan=whole,
            device=whole.device,
            sections=tuple(
                replace(each, notes=(*each.notes, "times are those of all workers, added up"))
                for each in together([part.sections for part in ordered])
            ),
            side_results=dict(_side_results(ordered, cut)),
            files=files,
            duration_s=wall_time.total_s,
            phases_s=wall_time.beside_sections(values_s),
            process_bytes=process_peak.grown_bytes,
            result=None,
            parameter=cut.name,
            values=cut.sweep.values,
            sharpness=tuple(pictures.sharpness),
            provenance=provenance,
            records=tuple(folder.path / each for each in RECORD_NAMES),
        )
        leave_records(report, pipeline, folder, log)
        return report


@dataclass(frozen=True, slots=True)
class SweepJob:
    """What a worker is told of a sweep: plain data."""

    pipeline: Pipeline
    """The pipeline, with its sweep."""
    device: str
    """Device of the worker."""
    options: dict[str, Any]
    """Scan, budgets and what else `RunRequest` takes."""

    def request(self) -> RunRequest:
        """The sweep as a run in the worker's process, in memory."""
        return RunRequest(
            pipeline=self.pipeline, out=None, announce=_silent, device=self.device, **self.options
        )


def _job(request: RunRequest, pipeline: Pipeline, workers: Workers) -> SweepJob:
    kind = workers.device
    budgets = worker_budgets(workers.facts, kind, request.memory, request.host_memory)
    return SweepJob(
        pipeline,
        "cuda:0" if kind == "cuda" else "cpu",
        {
            "scan": Path(os.fspath(request.scan)).absolute(),  # type: ignore[arg-type]
            "memory": budgets.budget_bytes,
            "host_memory": budgets.host_budget_bytes if kind == "cuda" else None,
            "block": request.block,
            "fit": request.fit,
            "estimator": request.estimator,
            "allow_missing_frames": request.allow_missing_frames,
        },
    )


def run_values(job: SweepJob, share: Share) -> SweepReport:
    """Run some of the values in this process; their pictures are the report's result."""
    cut = cut_at_sweep(job.pipeline)
    assert cut is not None
    values = cut.sweep.values[share.start : share.stop]
    part = replace(cut, sweep=replace(cut.sweep, values=values))
    return run_sweep(job.request(), job.pipeline, part)


def _plan(job: SweepJob) -> SweepPlan:
    cut = cut_at_sweep(job.pipeline)
    assert cut is not None
    request, backend = job.request(), select_backend(job.device)
    with opened(
        request.scan, job.pipeline, allow_missing_frames=request.allow_missing_frames
    ) as source:
        return planned_sweep(request, job.pipeline, cut, source, backend, to_folder=True).whole


def _side_results(parts: list[SweepReport], cut: SweptPipeline) -> Iterator[tuple[str, Any]]:
    """Side results of all values in a list, those of steps before once."""
    each_value = {step.meta.name for step in cut.swept.steps}
    for name, first in parts[0].side_results.items():
        if name.partition(".")[0] in each_value:
            yield name, [value for part in parts for value in part.side_results[name]]
        else:
            yield name, first


def _silent(plan: Plan) -> None:
    """Announce nothing."""
