"""Run one section of a plan, block by block, with smaller blocks if memory runs out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

from ..core.allocators import Device
from ..core.arrays import SLICE_NAMES
from ..core.author_code import what_raised
from ..core.block_memory import is_roomy
from ..devices import Backend
from ..devices.out_of_memory import is_out_of_memory
from ..errors import MaxslicesError, MethodError, OutOfMemoryError, ReadOnlyInputError
from ..measure import measure_peak
from ..planner import SectionPlan
from ..tuning import fft_plan_cache
from .blocks.block_feed import Block, BlockFeed, DeviceStore, Readable, blocks_of, make_block_feed
from .blocks.block_runner import BlockRunner
from .blocks.result_queue import ResultQueue
from .folder.unfinished_run import SectionState
from .report.run_report import BlockUse, SectionReport
from .report.run_timeline import Timeline

SAMPLE_INTERVAL_S = 0.02
"""Seconds between samples of a GPU's memory. A sample takes 0.01 ms (H200), 0.05 % of a run."""


class SectionMeter:
    """Measures a whole section on a GPU, and its widest block on the CPU.

    On the CPU the allocations of arrays are traced. This makes a method with many small steps up to
    1.5 times slower (3 times if Python objects are traced too), so only one block is measured.

    Attributes
    ----------
    measured_bytes : int or None
        The peak; None if nothing was measured or no meter is available.
    measured_slices : int
        Slices of the widest measured block, with its halo.
    """

    def __init__(self, kind: Device) -> None:
        self._kind = kind
        self.measured_bytes: int | None = None
        self.measured_slices = 0

    def to_measure(self, blocks: Sequence[Block]) -> Block | None:
        """Block to measure: the widest, unless one of that width was measured before.

        If several have that width, it is the second, because a result is written meanwhile.
        """
        size = max(block.n_given for block in blocks)
        if size <= self.measured_slices:
            return None
        return [block for block in blocks if block.n_given == size][:2][-1]

    @contextmanager
    def measuring(
        self, kind: Device, is_wanted: bool = True, resident_bytes: int = 0
    ) -> Iterator[None]:
        """Measure on a device of that kind; `resident_bytes` were allocated before."""
        if not is_wanted or kind != self._kind:
            yield
            return
        every_s = SAMPLE_INTERVAL_S
        with measure_peak(self._kind, hooks=False, interval_s=every_s) as peak:
            yield
        if peak.counted_bytes is not None:
            peak_bytes = peak.counted_bytes + resident_bytes
            self.measured_bytes = max(peak_bytes, self.measured_bytes or 0)


@dataclass(slots=True)
class PoolCache:
    """Freed memory that the device's pool retains between the blocks of a section."""

    backend: Backend
    """The device."""
    is_roomy: bool
    """Whether memory is ample, and the pool may retain fragments of other sizes."""
    _last_size: int = 0
    """Slices of the last block, with its halo; 0 before the first."""

    def prepare(self, plan: SectionPlan) -> None:
        """Let the pool retain freed memory if memory is ample. Otherwise release it."""
        if not self.is_roomy:
            self.backend.release()  # memory of the previous section
            return
        n_given = plan.block + sum(plan.halo)
        arrays = (each.with_slices(plan.slice_dim, n_given) for each in (plan.input, plan.output))
        self.backend.retain_freed(max(array.nbytes for array in arrays))

    def begin(self, n_given: int) -> None:
        """Prepare for blocks, the first of which has `n_given` slices."""
        fft_plan_cache.keep_fft_plans(self.is_roomy and self.backend.kind == "cuda")
        # On the CPU, retained memory serves blocks of any size.
        if self._last_size not in (0, n_given) and self.backend.kind == "cuda":
            self.backend.release()
        self._last_size = n_given

    def change_to(self, n_given: int) -> None:
        """Drop FFT plans for another number of slices, which the estimate does not include.

        If memory is short, drop the pool's fragments of another size as well, which waits for the
        device.
        """
        if n_given == self._last_size:
            return
        if self.is_roomy:
            self.backend.forget_plans()
        else:
            self.backend.release()
        self._last_size = n_given

    def end(self) -> None:
        """Stop keeping FFT plans, as other code that uses CuPy expects."""
        fft_plan_cache.keep_fft_plans(False)

    def free(self) -> None:
        """Free all unused memory, and retain less from now on."""
        self.is_roomy = False
        fft_plan_cache.keep_fft_plans(False)
        gc.collect()
        self.backend.release()

    def is_out_of_memory(self, error: BaseException | None) -> bool:
        """True if the error, or the cause of a maxslices error, is that memory ran out."""
        while error is not None:
            if is_out_of_memory(error):
                return True
            error = error.__cause__ if isinstance(error, MaxslicesError) else None
        return False


@dataclass(slots=True)
class SectionRun:
    """The run of a section."""

    runner: BlockRunner
    """Runs the methods on a block."""
    reader: Readable | DeviceStore
    """The input."""
    notes: tuple[str, ...] = ()
    """Differences from the plan at the start."""
    before: SectionState = field(default_factory=SectionState)
    """Progress before the run was stopped."""
    part: range | None = None
    """Slices to run if other processes run the rest: whole blocks, whose side results are not
    combined here."""
    on_block: Callable[[int, int, int, dict[int, Any]], object] | None = None
    """Called when the results of a block are written, with its first slice, one past its last, the
    block size and its side results."""
    n_splits: int = 0
    """Number of times that the block was halved because memory ran out."""
    smallest_block: int = field(init=False)
    """Size of the smallest block."""
    timeline: Timeline = field(init=False)
    """Records when each stage works."""
    n_done: int = field(init=False)
    """Number of finished slices, from the first on. Their results are written."""
    _parts: list[range] = field(init=False)
    """Intervals of slices that were unfinished at the start."""
    _measured_bytes: int | None = None
    """Measured peak; None if nothing was measured."""
    _sizes: list[BlockUse] = field(default_factory=list)
    """History of (first slice, block size)."""
    _partial: dict[int, list[tuple[int, Any]]] = field(default_factory=dict)
    """Index of a step -> (first slice of a block, its side result)."""
    _overlaps: bool = True
    """Whether a block is read while another is computed."""
    _wants_copies: bool = False
    """Whether a method needs writable blocks."""
    _pool: PoolCache = field(init=False)
    """Memory that the device's pool retains between blocks."""

    def __post_init__(self) -> None:
        missing = self.before.done.missing(self.plan.n_slices)
        self._parts = missing if self.part is None else [self.part]
        self.n_done = self._parts[0].start if self._parts else self.plan.n_slices
        known = self.runner.known
        self._partial = {i: list(v) for i, v in self.before.partial.items() if i not in known}
        self.smallest_block = self.plan.block
        self._pool = PoolCache(
            self.runner.backend, is_roomy(self.plan.estimated_bytes, self.plan.available_bytes)
        )

    @property
    def plan(self) -> SectionPlan:
        """The section as planned."""
        return self.runner.plan

    def run(self, advance: Callable[[int], None]) -> SectionReport:
        """Run all blocks; `advance` is called with the number of newly finished slices.

        Raises
        ------
        MethodError
            If a method fails, runs out of memory on a single slice, or returns a shape or dtype
            that differs from its declaration.
        """
        runner = self.runner
        self.timeline = Timeline()
        if self.before.done.count:
            advance(self.before.done.count)
        try:
            self._run(advance)
            for index, values in self._partial.items() if self.part is None else ():
                runner.combine(index, [value for _, value in sorted(values, key=itemgetter(0))])
            runner.close()
        finally:
            self.timeline.end()
        times = self.timeline
        return SectionReport(
            methods=tuple(step.meta.name for step in runner.steps),
            slice_dim=self.plan.slice_dim,
            n_slices=self.plan.n_slices,
            block=self.plan.block,
            duration_s=times.duration_s,
            estimated_bytes=self.plan.estimated_bytes,
            stages=times.stages,
            idle_share=times.idle_share,
            bound_by=times.bound_by,
            smallest_block=self.smallest_block,
            n_splits=self.n_splits,
            measured_bytes=self._measured_bytes,
            blocks=tuple(self._sizes),
            notes=(*self.notes, *self._notes(times.duration_s)),
            # Slices from before a stop were not checked here.
            warnings=() if self.before.done.count else runner.checks.warnings(runner.store),
        )

    def _run(self, advance: Callable[[int], None]) -> None:
        """Compute the side results of a few slices, then run all blocks."""
        backend, meter = self.runner.backend, SectionMeter(self.runner.backend.kind)
        self._overlaps, looks_ahead = self.plan.overlaps, self.looks_ahead
        try:
            if not looks_ahead:  # looking ahead would release it
                self._pool.prepare(self.plan)  # before the meter notes the memory in use
            with meter.measuring("cuda"):
                if looks_ahead:
                    with meter.measuring("cpu"):
                        self.look_ahead()
                    backend.release()
                if self.plan.on_blocks:
                    self._all_blocks(advance, meter)
                else:
                    advance(self.plan.n_slices)
        finally:
            self._pool.end()
        self._measured_bytes = meter.measured_bytes

    def _notes(self, duration_s: float) -> list[str]:
        """Further notes for the report."""
        return []

    @property
    def looks_ahead(self) -> bool:
        """True if side results of a few slices are computed before the first block."""
        steps = enumerate(self.runner.steps)
        return any(
            step.meta.sample_slices is not None and index not in self.runner.known
            for index, step in steps
        )

    def look_ahead(self) -> None:
        """Compute the side results that depend on a few slices.

        Methods get read-only views of data in memory. A method that refuses a read-only array, or
        works in place, gets copies. The few slices cannot be split. If memory runs out, they are
        tried once more after the caches are emptied.
        """
        is_retry = False
        while True:
            try:
                self.runner.find_ahead(self.reader, self._wants_copies)
            except Exception as error:
                ran_out = self._retry_after(error)
                if ran_out is None:
                    raise
            else:
                return
            if ran_out and is_retry:
                raise OutOfMemoryError(
                    f"memory ran out before the first block, in the section of {self._names}: "
                    f"{ran_out}"
                )
            is_retry = is_retry or bool(ran_out)
            self._pool.free()

    def _all_blocks(self, advance: Callable[[int], None], meter: SectionMeter) -> None:
        """Run all blocks. If memory runs out, continue with half as many slices in a block."""
        plan, total = self.plan, self._parts[-1].stop if self._parts else 0
        size, why, is_retry = plan.block, plan.why, False
        if self.before.block not in (None, plan.block):
            size, why = self.before.block, "as before the stop"
        while self.n_done < total:
            start = self.n_done
            blocks = blocks_of(self._left(start, total), size, plan.halo, plan.n_slices)
            if not self._sizes or self._sizes[-1].block != size:
                self._sizes.append(BlockUse(start, size, why))
            ran_out = self._blocks_of_one_size(blocks, size, advance, meter)
            is_retry = is_retry and self.n_done == start
            if ran_out is None:
                break
            # The memory of the failed call is free only outside of the `except` clause.
            self._pool.free()
            if not ran_out:
                continue
            if self.runner.backend.kind == "cuda" and not is_retry:
                is_retry = True  # the pool may have been fragmented, and is empty now
                continue
            size = min(size, max(len(part) for part in self._left(self.n_done, total)))
            if size > 1:
                size, why, is_retry = _halved(size, plan.multiple), "memory ran out", False
                self.smallest_block = size
                self.n_splits += 1
            elif self._overlaps:
                is_retry, self._overlaps = False, False
                why = "memory ran out: without overlap"
                self._sizes.append(BlockUse(self.n_done, 1, why))
            else:
                raise OutOfMemoryError(
                    f"memory ran out on a single {SLICE_NAMES[plan.slice_dim]}, number "
                    f"{self.n_done}, in the section of {self._names}: {ran_out}"
                )
        if self.part is None:
            self.n_done = plan.n_slices

    def _left(self, start: int, stop: int) -> list[range]:
        """Slices from `start` to `stop` that were unfinished at the start."""
        cut = (range(max(part.start, start), min(part.stop, stop)) for part in self._parts)
        return [part for part in cut if part]

    def _blocks_of_one_size(
        self,
        blocks: list[Block],
        size: int,
        advance: Callable[[int], None],
        meter: SectionMeter,
    ) -> str | None:
        """Run blocks of one size until all are done, or an error occurs.

        Returns
        -------
        str or None
            None if all are done. Otherwise the reason to try again; see `_retry_after`.
        """
        plan, runner, begin = self.plan, self.runner, self.n_done
        overlaps = self._overlaps and len(blocks) > 1
        results = ResultQueue(
            plan.slice_dim,
            runner.backend,
            self.timeline,
            most_slices=max(block.stop - block.start for block in blocks),
            overlaps=overlaps,
            is_shared=self.part is not None,
            look=runner.checks.written,
        )
        feed: BlockFeed | None = None
        try:
            self._pool.begin(blocks[0].n_given)
            feed = make_block_feed(
                self.reader,
                plan.slice_dim,
                blocks,
                runner.backend,
                self.timeline,
                overlaps=overlaps,
                wants_copies=self._wants_copies,
            )
            runner.load_frames()
            feed.start()
            measured = meter.to_measure(blocks)
            for block in blocks:
                self._pool.change_to(block.n_given)
                resident = runner.resident_bytes + feed.resident_bytes + results.resident_bytes
                with meter.measuring("cpu", block is measured, resident):
                    values = runner.run(block, feed, results, self.timeline)
                    feed.release()
                if block is measured:
                    meter.measured_slices = block.n_given
                for index, value in values.items():
                    self._partial.setdefault(index, []).append((block.start, value))
                if self.on_block is not None:
                    note = partial(self.on_block, block.start, block.stop, size, values)
                    results.mark(block.start, note)
                self.n_done = block.stop
                advance(block.stop - block.start)
            feed.close()  # meanwhile the last result is copied
            results.flush()
        except Exception as error:
            results.settle()  # write the results of earlier blocks
            self._uncount_lost(results, begin, advance)
            ran_out = self._retry_after(error)
            if ran_out is not None:
                return ran_out
            if runner.backend.kind == "cuda" and isinstance(error, RuntimeError):
                # CUDA reports a failed kernel at a later, unrelated call.
                raise MethodError(
                    f"the device failed in the section of {self._names}, after {self.n_done} "
                    f"{SLICE_NAMES[plan.slice_dim]}s: {what_raised(error)}"
                ) from error
            raise
        finally:
            try:
                if feed is not None:
                    feed.close()
            finally:  # even if the device failed, or the thread would wait forever
                results.close()
        return None

    def _uncount_lost(
        self, results: ResultQueue, begin: int, advance: Callable[[int], None]
    ) -> None:
        """Count slices that could not be written as unfinished."""
        if results.lost_from is None:
            return
        lost = self._left(max(begin, results.lost_from), self.n_done)
        if not lost:
            return
        self.n_done = lost[0].start
        advance(-sum(map(len, lost)))
        for index, values in self._partial.items():
            kept = [each for each in values if not any(each[0] in part for part in lost)]
            self._partial[index] = kept

    def _retry_after(self, error: Exception) -> str | None:
        """Reason to try a block again after an error.

        Returns
        -------
        str or None
            The error if memory ran out; "" if a method needs writable input; None if a new attempt
            is pointless.
        """
        if self._pool.is_out_of_memory(error):
            return str(error).partition("\n")[0] or type(error).__name__
        if isinstance(error, ReadOnlyInputError) and not self._wants_copies:
            self._wants_copies = True
            return ""
        return None

    @property
    def _names(self) -> str:
        return ", ".join(step.meta.name for step in self.runner.steps)


def _halved(size: int, multiple: int) -> int:
    """Half of a block, rounded up, if possible to a multiple of `multiple`."""
    half = -(-size // 2)
    rounded = -(-half // multiple) * multiple
    return rounded if rounded < size else half
