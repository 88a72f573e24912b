"""One section of a plan, block after block, and again where memory runs out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import MethodError, OutOfMemoryError, ReadOnlyInputError
from ..io import SupportsForget
from ..model.arrays import SLICE_NAMES
from ..planner import SectionPlan
from .block_ranges import Block, blocks_of
from .block_run import BlockWork
from .block_tuning import Clock, Clocks, Pace
from .device_store import DeviceStore
from .drain import Drain
from .feed import Feed, make_feed
from .pool_cache import Caches
from .read_ahead import Readable
from .run_report import BlockUse, SectionReport
from .run_timeline import Timeline
from .section_meter import SectionMeter

_READ_ONLY = "a method writes to its input"


@dataclass(slots=True)
class SectionWork:
    """A section while it runs."""

    work: BlockWork
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
    _caches: Caches = field(init=False)
    """What the device's pool holds between blocks."""

    def __post_init__(self) -> None:
        self._caches = Caches.of(self.plan, self.work.backend)

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
                self._caches.reserve(plan)  # before what is in use is measured
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
            self._caches.end()
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
            self._caches.free()

    def _all_blocks(self, advance: Callable[[int], None], meter: SectionMeter) -> None:
        """Run block after block; where memory runs out, again with half as many slices."""
        plan, total = self.plan, self.plan.n_slices
        pace = Pace(plan.block, [block for block, _ in plan.larger], total)
        why, is_retry = plan.why, False
        while self.n_done < total:
            start = self.n_done
            # Nothing overlaps with the first block: that is why it may be a smaller one.
            is_first = start == 0 and pace.block == plan.block and self._caches.is_roomy
            firsts = plan.first_blocks if is_first else ()
            blocks = blocks_of(start, total, pace.block, plan.halo, firsts)
            if not self._sizes or self._sizes[-1].block != pace.block:
                self._sizes.append(BlockUse(start, pace.block, why))
            clocks = Clocks(self.timeline, plan)
            shortage = self._stretch(blocks, advance, meter, clocks, pace)
            clocks.note()
            is_retry = is_retry and self.n_done == start
            if shortage is None:
                why = pace.why
                continue
            # What failed is gone only now, outside of its `except` clause.
            self._caches.free()
            if shortage == _READ_ONLY:
                continue
            if self.work.backend.kind == "cuda" and not is_retry:
                is_retry = True  # the pool was perhaps fragmented; now it is empty
                continue
            size = min(pace.block, total - self.n_done)
            if size > 1:
                pace, why, is_retry = Pace(-(-size // 2)), "memory ran out", False
                self.smallest_block = pace.block
                self.n_splits += 1
            elif self._overlaps:
                pace, is_retry, self._overlaps = Pace(1), False, False
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
        clocks: Clocks,
        pace: Pace,
    ) -> str | None:
        """Run blocks of one size, until another one is to be tried.

        Returns
        -------
        str or None
            What was said if memory ran out, or a method asked for blocks that it may write to.
        """
        plan, work, begin = self.plan, self.work, self.n_done
        overlaps = self._overlaps and len(blocks) > 1
        drain = Drain(
            plan.slice_dim,
            work.backend,
            self.timeline,
            most_slices=max(block.stop - block.start for block in blocks),
            overlaps=overlaps,
        )
        feed: Feed | None = None
        try:
            self._caches.begin(blocks[0].n_given)
            feed = make_feed(
                self.reader,
                plan.slice_dim,
                blocks,
                work.backend,
                self.timeline,
                overlaps=overlaps,
                wants_copies=self._wants_copies,
            )
            work.load_frames()
            feed.send()
            measured = meter.to_measure(blocks)
            n_firsts = sum(block.stop - block.start < pace.block for block in blocks[:-1])
            for block in blocks:
                self._caches.change_to(block.n_given)
                beside = work.resident_bytes + feed.resident_bytes + drain.resident_bytes
                with meter.part(block is measured, beside):
                    clock = Clock(work.backend.copy_engine(), block)
                    values = work.run(block, feed, drain, clock)
                    feed.give_back()
                if block is measured:
                    meter.measured_slices = block.n_given
                clocks.add(clock)
                for index, value in values.items():
                    self._partial.setdefault(index, []).append((block.start, value))
                self.n_done = block.stop
                advance(block.stop - block.start)
                self._forget(drain)
                # All but the last one have been computed, since they are leaving or have left.
                timed = clocks.n_added - 1
                if pace.wants(timed - n_firsts):
                    beside_s = max(feed.took_s(timed - 1), drain.took_s(timed - 2))
                    if pace.learn(clocks.times_s(n_firsts, timed), beside_s):
                        break
            # While the last result leaves.
            feed.close()
            clocks.note(but=1)
            drain.flush()
        except Exception as error:
            drain.settle()  # what was computed before is written
            self._take_back(drain, begin, advance)
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
                drain.close()
        return None

    def _forget(self, drain: Drain) -> None:
        """Let what is read give back what no block needs again, even if memory runs out.

        Blocks begin with their halo, and the last one with some slices more.
        """
        if isinstance(self.reader, SupportsForget):
            plan = self.plan
            largest = max([plan.block, *(block for block, _ in plan.larger)])
            self.reader.forget(
                plan.slice_dim, drain.written_until(self.n_done) - plan.halo[0] - largest
            )

    def _take_back(self, drain: Drain, begin: int, advance: Callable[[int], None]) -> None:
        """Count slices as not done that were computed, but could not be written."""
        if drain.lost_from is None:
            return
        lost = self.n_done - max(begin, drain.lost_from)
        if lost <= 0:
            return
        self.n_done -= lost
        advance(-lost)
        for index, values in self._partial.items():
            self._partial[index] = [each for each in values if each[0] < self.n_done]

    def _shortage(self, error: Exception) -> str | None:
        """Return what an error says if a block may be tried again, else None."""
        if self._caches.ran_out(error):
            return str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, ReadOnlyInputError) and not self._wants_copies:
            self._wants_copies = True
            return _READ_ONLY
        return None

    @property
    def _names(self) -> str:
        return ", ".join(step.meta.name for step in self.work.steps)
