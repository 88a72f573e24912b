"""A section whose blocks run on workers. Shares are distributed and collected here."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field

from ..core.arrays import SLICE_NAMES
from ..errors import PlanError
from ..io import ScratchStore
from ..runner.folder.unfinished_run import DoneSlices
from ..runner.report.run_report import SectionReport
from ..runner.section_run import SectionRun
from . import worker
from .dealing import Dealer
from .section_job import DoneShare, JobResult, RunJob, SectionJob
from .worker_calls import WorkerAnswer, WorkerCalls


@dataclass(slots=True)
class WorkerUse:
    """Work of one worker on a section."""

    host: str
    """Name of its machine."""
    n_slices: int = 0
    """Number of slices that it ran."""
    busy_s: float = 0.0
    """Seconds that it worked."""


@dataclass(slots=True, kw_only=True)
class SharedSection(SectionRun):
    """A section whose blocks run on workers.

    Shares end in any order, and the journal notes them as they do. A run on workers can be resumed
    in one process, and the other way round.
    """

    calls: WorkerCalls
    """Calls on the workers."""
    run_job: RunJob
    """Data for workers that are the same for all sections."""
    resources: dict[str, float]
    """Resources that a worker must have."""
    _done: DoneSlices = field(init=False)
    """Finished slices."""
    _reports: list[tuple[range, SectionReport]] = field(default_factory=list)
    _uses: dict[str, WorkerUse] = field(default_factory=dict)

    def __post_init__(self) -> None:
        SectionRun.__post_init__(self)
        self._done = deepcopy(self.before.done)

    def _run(self, advance: Callable[[int], None]) -> None:
        """Compute the side results of a few slices, then run all blocks, on workers."""
        plan, runner = self.plan, self.runner
        name = f"{uuid.uuid4().hex}-{plan.steps[0].index}"
        dealer = Dealer(self.calls, self.resources, SLICE_NAMES[plan.slice_dim])
        if self.looks_ahead:
            job = self._job(f"{name}-ahead")
            for position, value in dealer.once(worker.look_ahead, job, range(1)):
                runner.keep(position, value)
                runner.known.add(position)
        if not plan.on_blocks:
            advance(plan.n_slices)
            return
        job, block = self._job(name), self.before.block or plan.block
        with closing(dealer.deal(worker.run_share, job, self._parts, block)) as answers:
            for share, address, answer in answers:
                self._take(share, address, answer)
                advance(len(share))
        reports = [each for _, each in sorted(self._reports, key=lambda pair: pair[0].start)]
        self.smallest_block = min([plan.block, *(each.smallest_block for each in reports)])
        self.n_splits = sum(each.n_splits for each in reports)
        measured = [each.measured_bytes for each in reports if each.measured_bytes is not None]
        self._measured_bytes = max(measured, default=None)
        for use in (use for each in reports for use in each.blocks):
            if not self._sizes or self._sizes[-1].block != use.block:
                self._sizes.append(use)

    def _take(self, share: range, address: str, answer: WorkerAnswer) -> None:
        """Record a finished share."""
        done: DoneShare = answer.value
        use = self._uses.setdefault(address, WorkerUse(answer.host))
        use.n_slices += len(share)
        use.busy_s += answer.took_s
        self.runner.checks.add_seen(done.seen)
        self._reports.append((share, done.report))
        offset_s = time.perf_counter() - time.time()
        for span in done.spans:
            at = span.start_s + offset_s, span.stop_s + offset_s
            self.timeline.add(span.stage, *at, span.n_bytes)
        for block in done.blocks:
            for index, value in block.values.items():
                self._partial.setdefault(index, []).append((block.start, value))
            self._done.add(block.start, block.stop)
            self.n_done = self._done.n_first
            if self.on_block is not None:
                self.on_block(block.start, block.stop, block.size, block.values)

    def _job(self, name: str) -> SectionJob:
        """Describe the section for workers."""
        runner = self.runner
        reads, writes = self.reader, runner.store
        for store in (reads if self.plan.origin != "scan" else None, writes):
            if store is not None and not isinstance(store, ScratchStore):
                raise PlanError(
                    "the plan keeps data between sections in the memory of one process: make a "
                    "plan for several workers"
                )
        sinks = runner.sinks.items()
        return SectionJob(
            name=name,
            run=self.run_job,
            plan=self.plan,
            angles=runner.angles,
            side_results=runner.side_results,
            known=frozenset(runner.known),
            facts={**runner.facts},
            flat_weights=runner.side_frames.weights,
            results={i: JobResult(s.path.absolute(), s.spec, s.info) for i, s in sinks},
            reads=reads.layout if isinstance(reads, ScratchStore) else None,
            writes=writes.layout if isinstance(writes, ScratchStore) else None,
        )

    def _notes(self, duration_s: float) -> list[str]:
        """A line for each worker."""
        unit, lines = SLICE_NAMES[self.plan.slice_dim], []
        for address, use in sorted(self._uses.items()):
            share = 100 * use.busy_s / duration_s if duration_s > 0 else 0
            lines.append(f"{address} on {use.host}: {use.n_slices} {unit}s, busy {share:.0f} %")
        return lines
