"""A section whose blocks other processes run: dealt out, and put together here."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..core.arrays import SLICE_NAMES
from ..errors import PlanError
from ..io import ScratchStore
from ..runner.folder.unfinished_run import DoneSlices
from ..runner.report.run_report import BlockUse, SectionReport
from ..runner.section_run import SectionRun, first_of
from . import worker
from .dealing import Dealer
from .section_job import DoneShare, JobResult, RunJob, SectionJob, Share
from .worker_calls import WorkerAnswer, WorkerCalls, call_on_all


@dataclass(slots=True)
class WorkerUse:
    """What one worker did for a section."""

    host: str
    """Name of its machine."""
    n_slices: int = 0
    """Slices that it ran."""
    busy_s: float = 0.0
    """Seconds that it worked."""


@dataclass(slots=True)
class SharedSection:
    """A section while workers run it; it stands in the place of a `SectionRun`.

    Shares are done in any order, and noted in the journal as they are. A run in one process
    continues a run on workers, and the other way round.
    """

    here: SectionRun
    """The section as it would run in this process."""
    calls: WorkerCalls
    """Calls on the workers."""
    run_job: RunJob
    """What is the same for all sections."""
    resources: dict[str, float]
    """What a worker must have."""
    _done: DoneSlices = field(init=False)
    """Slices that are done."""
    _reports: list[tuple[Share, SectionReport]] = field(default_factory=list)
    _partial: dict[int, list[tuple[int, Any]]] = field(default_factory=dict)
    _uses: dict[str, WorkerUse] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._done = deepcopy(self.here.before.done)
        known = self.here.runner.known
        before = self.here.before.partial.items()
        self._partial = {i: list(values) for i, values in before if i not in known}

    @property
    def n_done(self) -> int:
        """Slices that are done without a gap, counted from the first."""
        return self._done.n_first

    def run(self, advance: Callable[[int], None]) -> SectionReport:
        """Run all blocks; `advance` is called with the number of slices done.

        Raises
        ------
        MethodError
            If a share of the slices fails on several workers.
        """
        here, plan = self.here, self.here.plan
        runner, timeline = here.runner, here.timeline
        timeline.begin_section()
        name = f"{uuid.uuid4().hex}-{plan.steps[0].index}"
        dealer = Dealer(
            self.calls,
            self.resources,
            SLICE_NAMES[plan.slice_dim],
            stop_work=partial(self._stop, name),
        )
        try:
            if self._done.count:
                advance(self._done.count)
            if here.looks_ahead:
                job = self._job(f"{name}-ahead")
                for position, value in dealer.once(worker.look_ahead, job, Share(0, 1)):
                    runner.keep(position, value)
                    runner.known.add(position)
            if plan.on_blocks:
                job = self._job(name)
                parts, block = self._done.missing(plan.n_slices), here.before.block or plan.block
                with closing(dealer.deal(worker.run_share, job, parts, block)) as answers:
                    for share, address, answer in answers:
                        self._take(share, address, answer)
                        advance(share.stop - share.start)
            else:
                advance(plan.n_slices)
            for index, values in self._partial.items():
                runner.combine(index, [value for _, value in sorted(values, key=first_of)])
        finally:
            times = timeline.end_section()
        reports = [each for _, each in sorted(self._reports, key=lambda pair: pair[0].start)]
        measured = [each.measured_bytes for each in reports if each.measured_bytes is not None]
        blocks = [use for each in reports for use in each.blocks]
        return SectionReport(
            methods=tuple(step.meta.name for step in runner.steps),
            slice_dim=plan.slice_dim,
            n_slices=plan.n_slices,
            block=plan.block,
            smallest_block=min([plan.block, *(each.smallest_block for each in reports)]),
            n_splits=sum(each.n_splits for each in reports),
            duration_s=times.duration_s,
            estimated_bytes=plan.estimated_bytes,
            measured_bytes=max(measured, default=None),
            unseen=tuple(dict.fromkeys(text for each in reports for text in each.unseen)),
            stages=times.stages,
            idle_share=times.idle_share,
            bound_by=times.bound_by,
            blocks=_changes(blocks),
            notes=(*here.notes, *self._notes(times.duration_s)),
            warnings=() if here.before.done.count else runner.checks.warnings(runner.store),
        )

    def _take(self, share: Share, address: str, answer: WorkerAnswer) -> None:
        """Take what a worker did, and note it."""
        done: DoneShare = answer.value
        use = self._uses.setdefault(address, WorkerUse(answer.host))
        use.n_slices += share.stop - share.start
        use.busy_s += answer.took_s
        self.here.runner.checks.add_seen(done.seen)
        self._reports.append((share, done.report))
        offset_s = time.perf_counter() - time.time()
        for span in done.spans:
            at = span.start_s + offset_s, span.stop_s + offset_s
            slices = span.first_slice, span.last_slice
            self.here.timeline.add(span.stage, *at, *slices, span.n_bytes)
        for block in done.blocks:
            for index, value in block.values.items():
                self._partial.setdefault(index, []).append((block.start, value))
            self._done.add(block.start, block.stop)
            if self.here.on_block is not None:
                self.here.on_block(block.start, block.stop, block.size, block.values)

    def _stop(self, name: str) -> None:
        """Have the workers end their shares with the next block."""
        call_on_all(self.calls.client, worker.stop_section, name, limit_s=0)

    def _job(self, name: str) -> SectionJob:
        """Describe the section for workers."""
        here, runner = self.here, self.here.runner
        reads, writes = here.reader, runner.store
        for store in (reads if here.plan.origin != "scan" else None, writes):
            if store is not None and not isinstance(store, ScratchStore):
                raise PlanError(
                    "the plan keeps data between sections in the memory of one process: plan it "
                    "for several workers"
                )
        sinks = runner.sinks.items()
        return SectionJob(
            name=name,
            run=self.run_job,
            plan=here.plan,
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
        """What each worker did, in a line each."""
        unit, lines = SLICE_NAMES[self.here.plan.slice_dim], []
        for address, use in sorted(self._uses.items()):
            share = 100 * use.busy_s / duration_s if duration_s > 0 else 0
            lines.append(f"{address} on {use.host}: {use.n_slices} {unit}s, busy {share:.0f} %")
        return lines


def _changes(blocks: list[BlockUse]) -> tuple[BlockUse, ...]:
    """Block sizes that differ from the one before."""
    found: list[BlockUse] = []
    for use in blocks:
        if not found or found[-1].block != use.block:
            found.append(use)
    return tuple(found)
