"""A sweep whose values workers run: each does some of them, as a sweep in one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ..devices import select_backend
from ..pipeline import Pipeline
from ..pipeline.sweep import SweptPipeline, cut_at_sweep
from ..planner import Plan
from ..planner.sweep_plan import SweepPlan
from ..runner import SectionReport
from ..runner.report.progress import Progress
from ..runner.sweep.report import SweepReport, together
from .on_workers import worker_budgets, workers_of
from .run_request import RunRequest
from .run_sweep import SweepSetting, run_sweep
from .scan_and_output import opened
from .sweep_here import SweepHere, planned_sweep

if TYPE_CHECKING:
    from ..workers.section_job import Share
    from ..workers.workers import Workers

UNIT = "value"
"""What is dealt out, for messages."""


class SweepOnWorkers:
    """Has workers make the pictures of a sweep; a `SweepWork`.

    A share of the values repeats the steps before the swept one. The pictures, a slice for each
    value, come back to this process.
    """

    def __init__(self, setting: SweepSetting) -> None:
        request, pipeline = setting.request, setting.pipeline
        self._cut = setting.cut
        self._wall_time = setting.wall_time
        allow_missing = request.allow_missing_frames
        with opened(request.scan, pipeline, allow_missing_frames=allow_missing) as source:
            self.scan_name = source.name
        team = setting.held.enter_context(workers_of(request, pipeline, setting.folder))
        assert team is not None
        self._workers = team.workers
        setting.log.add(self._workers.text)
        self._wall_time.begin("planning")
        self._job = _job(request, pipeline, self._workers)
        self.whole: SweepPlan = self._workers.submit(_plan, self._job)
        self.device = self.whole.device
        self.device_name = self._workers.facts[0].device
        self.side_results: dict[str, Any] = {}
        self.sections: tuple[SectionReport, ...] = ()
        self.sections_s = 0.0

    def pictures(self, bar: Progress) -> Iterator[NDArray[Any]]:
        """Hand on the picture of each value, in order."""
        from ..workers.dealing import Dealer

        dealer = Dealer(self._workers.client, self._workers.resources, UNIT)
        parts: dict[int, SweepReport] = {}
        count, wanted = len(self._cut.sweep.values), 0
        bar.start(self._cut.name, count)
        self._wall_time.begin("sections")
        began_s = self._wall_time.total_s
        for share, answer in dealer.deal(run_values, self._job, 0, count, 1):
            parts[share.start] = answer.value
            while (part := parts.get(wanted)) is not None:
                assert part.result is not None
                yield from part.result
                parts[wanted] = replace(part, result=None)
                wanted += len(part.values)
            bar.advance(share.stop - share.start)
        self._wall_time.begin("finishing")
        self.sections_s = self._wall_time.total_s - began_s
        ordered = [parts[start] for start in sorted(parts)]
        self.sections = tuple(
            replace(each, notes=(*each.notes, "times are those of all workers, added up"))
            for each in together([part.sections for part in ordered])
        )
        self.side_results = dict(_side_results(ordered, self._cut))


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
    return run_sweep(job.request(), job.pipeline, part, SweepHere)


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
