"""One section of a plan, block after block, and again where memory runs out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import MethodError, OutOfMemoryError, ReadOnlyInputError
from ..model.arrays import SLICE_NAMES
from ..planner import SectionPlan
from .block_feed import BlockFeed, make_block_feed
from .block_ranges import Block, blocks_of
from .block_runner import BlockRunner
from .block_tuning import BlockClock, BlockClocks, BlockTuner
from .device_store import DeviceStore
from .pool_cache import PoolCache
from .read_ahead import Readable
from .result_queue import ResultQueue
from .run_report import BlockUse, SectionReport
from .run_timeline import Timeline
from .section_meter import SectionMeter

_READ_ONLY = "a method writes to its input"


@dataclass(slots=True)
class SectionRun:
    """A section while it runs."""

    work: BlockRunner
    """Its methods."""
    reader: Readable | DeviceStore
    """What it reads."""
    timeline: Timeline
    """Is told what happens when."""
    notes: tuple[str, ...] = ()
    """What went other than planned before it began."""
    n_splits: int = 0
    """How many times memory ran out and the block was made smaller."""
    smallest_block: int = 0
    """The smallest block that was used."""
    n_done: int = 0
    """Slices that are done, from the first on, and in all their places."""
    _sizes: list[BlockUse] = field(default_factory=list)
    """From which slice on which block was used."""
    _partial: dict[int, list[tuple[int, Any]]] = field(default_factory=dict)
    """Index of a step -> its side results with the first slice of their blocks."""
    _overlaps: bool = True
    """Whether a block comes while another is worked on."""
    _wants_copies: bool = False
    """Whether a method has asked for an input of its own, which it may write to."""
    _pool: PoolCache = field(init=False)
    """What the device's pool holds between blocks."""

    def __post_init__(self) -> None:
        self._pool = PoolCache.for_section(self.plan, self.work.backend)

    @property
    def plan(self) -> SectionPlan:
        """Return what was planned."""
        return self.work.plan

    def run(self, advance: Callable[[int], None]) -> SectionReport:
        """Run all blocks; `advance` is told how many slices were done.

        Raises
        ------
        MethodError
            If a method fails, runs out of memory on a single slice, or returns another
            shape or dtype than it declares.
        """
        plan, work = self.plan, self.work
        self.timeline.begin_section(", ".join(step.meta.name for step in work.steps))
        meter = SectionMeter(work.backend.kind)
        self.smallest_block, self._overlaps = plan.block, plan.overlaps
        looks_ahead = any(step.meta.looks_at is not None for step in work.steps)
        try:
            if not looks_ahead:  # which gives it back
                self._pool.reserve(plan)  # before what is in use is measured
            with meter.whole():
                if looks_ahead:
                    with meter.part():
                        self._prepare()
                    work.backend.release()
                if plan.on_blocks:
                    self._all_blocks(advance, meter)
                else:
                    advance(plan.n_slices)
                for index, values in self._partial.items():
                    work.combine(work.steps[index], [value for _, value in values])
                work.close()
        finally:
            self._pool.end()
            times = self.timeline.end_section()
        largest = max((use.block for use in self._sizes), default=0)
        return SectionReport(
            methods=tuple(step.meta.name for step in work.steps),
            slice_dim=plan.slice_dim,
            n_slices=plan.n_slices,
            block=plan.block,
            smallest_block=self.smallest_block,
            n_splits=self.n_splits,
            duration_s=times.duration_s,
            estimated_bytes=dict(plan.larger).get(largest, plan.estimated_bytes),
            measured_bytes=meter.measured_bytes,
            unseen=tuple(meter.unseen),
            stages=times.stages,
            idle_share=times.idle_share,
            bound_by=times.bound_by,
            blocks=tuple(self._sizes),
            notes=self.notes,
        )

    def _prepare(self) -> None:
        """Find side results that a few slices give.

        Data that are in memory already are given to methods as they are, read-only. Compiled
        methods may refuse such an array, and others work in place: then they get copies. None
        of it can be made smaller, but where memory runs out, caches may hold what it needs.
        """
        is_retry = False
        while True:
            try:
                self.work.look_ahead(self.reader, self._wants_copies)
            except Exception as error:
                shortage = self._shortage(error)
                if shortage is None:
                    raise
            else:
                return
            if shortage != _READ_ONLY and is_retry:
                raise OutOfMemoryError(
                    f"memory ran out before the first block, in the section of {self._names}: "
                    f"{shortage}"
                )
            is_retry = is_retry or shortage != _READ_ONLY
            self._pool.free()

    def _all_blocks(self, advance: Callable[[int], None], meter: SectionMeter) -> None:
        """Run block after block; where memory runs out, again with half as many slices."""
        plan, total = self.plan, self.plan.n_slices
        tuner = BlockTuner(plan.block, [block for block, _ in plan.larger], total)
        why, is_retry = plan.why, False
        while self.n_done < total:
            start = self.n_done
            blocks = blocks_of(start, total, tuner.block, plan.halo)
            if not self._sizes or self._sizes[-1].block != tuner.block:
                self._sizes.append(BlockUse(start, tuner.block, why))
            clocks = BlockClocks(self.timeline, plan)
            shortage = self._stretch(blocks, advance, meter, clocks, tuner)
            clocks.note()
            is_retry = is_retry and self.n_done == start
            if shortage is None:
                why = tuner.why
                continue
            # What failed is gone only now, outside of its `except` clause.
            self._pool.free()
            if shortage == _READ_ONLY:
                continue
            if self.work.backend.kind == "cuda" and not is_retry:
                is_retry = True  # the pool was perhaps fragmented; now it is empty
                continue
            size = min(tuner.block, total - self.n_done)
            if size > 1:
                tuner, why, is_retry = BlockTuner(-(-size // 2)), "memory ran out", False
                self.smallest_block = tuner.block
                self.n_splits += 1
            elif self._overlaps:
                tuner, is_retry, self._overlaps = BlockTuner(1), False, False
                why = "memory ran out: one after the other"
                self._sizes.append(BlockUse(self.n_done, 1, why))
            else:
                raise OutOfMemoryError(
                    f"memory ran out on a single {SLICE_NAMES[plan.slice_dim]}, number "
                    f"{self.n_done}, in the section of {self._names}: {shortage}"
                )

    def _stretch(
        self,
        blocks: list[Block],
        advance: Callable[[int], None],
        meter: SectionMeter,
        clocks: BlockClocks,
        tuner: BlockTuner,
    ) -> str | None:
        """Run blocks of one size, until another one is to be tried.

        Returns
        -------
        str or None
            What was said if memory ran out, or a method asked for blocks that it may write to.
        """
        plan, work, begin = self.plan, self.work, self.n_done
        overlaps = self._overlaps and len(blocks) > 1
        results = ResultQueue(
            plan.slice_dim,
            work.backend,
            self.timeline,
            most_slices=max(block.stop - block.start for block in blocks),
            overlaps=overlaps,
        )
        feed: BlockFeed | None = None
        try:
            self._pool.begin(blocks[0].n_given)
            feed = make_block_feed(
                self.reader,
                plan.slice_dim,
                blocks,
                work.backend,
                self.timeline,
                overlaps=overlaps,
                wants_copies=self._wants_copies,
            )
            work.load_frames()
            feed.start()
            measured = meter.to_measure(blocks)
            for block in blocks:
                self._pool.change_to(block.n_given)
                beside = work.resident_bytes + feed.resident_bytes + results.resident_bytes
                with meter.part(block is measured, beside):
                    clock = BlockClock(work.backend.copy_engine(), block)
                    values = work.run(block, feed, results, clock)
                    feed.release()
                if block is measured:
                    meter.measured_slices = block.n_given
                clocks.add(clock)
                for index, value in values.items():
                    self._partial.setdefault(index, []).append((block.start, value))
                self.n_done = block.stop
                advance(block.stop - block.start)
                # All but the last one have been computed, since they are leaving or have left.
                timed = clocks.n_added - 1
                if tuner.is_ready(timed):
                    beside_s = max(feed.slowest_s(timed - 1), results.slowest_s(timed - 2))
                    if tuner.decide(clocks.times_s(0, timed), beside_s):
                        break
            # While the last result leaves.
            feed.close()
            clocks.note(but=1)
            results.flush()
        except Exception as error:
            results.settle()  # what was computed before is written
            self._take_back(results, begin, advance)
            shortage = self._shortage(error)
            if shortage is not None:
                return shortage
            if work.backend.kind == "cuda" and isinstance(error, RuntimeError):
                # A kernel that fails says so later, to whoever asks the device for something.
                raise MethodError(
                    f"the device failed in the section of {self._names}, after {self.n_done} "
                    f"{SLICE_NAMES[plan.slice_dim]}s: {type(error).__name__}: {error}"
                ) from error
            raise
        finally:
            try:
                if feed is not None:
                    feed.close()
            finally:  # whatever the device says: else its thread waits for ever
                results.close()
        return None

    def _take_back(self, results: ResultQueue, begin: int, advance: Callable[[int], None]) -> None:
        """Count slices as not done that were computed, but could not be written."""
        if results.lost_from is None:
            return
        lost = self.n_done - max(begin, results.lost_from)
        if lost <= 0:
            return
        self.n_done -= lost
        advance(-lost)
        for index, values in self._partial.items():
            self._partial[index] = [each for each in values if each[0] < self.n_done]

    def _shortage(self, error: Exception) -> str | None:
        """Return what an error says if a block may be tried again, else None."""
        if self._pool.is_out_of_memory(error):
            return str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, ReadOnlyInputError) and not self._wants_copies:
            self._wants_copies = True
            return _READ_ONLY
        return None

    @property
    def _names(self) -> str:
        return ", ".join(step.meta.name for step in self.work.steps)
