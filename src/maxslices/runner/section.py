"""One section of a plan, block by block."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..backends import Backend, call_method
from ..errors import MaxslicesError, MethodError, OutOfMemoryError
from ..io import Sink, Source, Store
from ..planner import SectionPlan, Step
from .blocks import Block, blocks_of
from .device_store import DeviceStore
from .drain import Drain, Target
from .feed import Feed, Readable, make_feed
from .pace import Clock, Pace
from .report import BlockUse, SectionReport
from .section_meter import SectionMeter
from .side_results import SideResults
from .timeline import Timeline

_UNITS = {0: "projection", 1: "sinogram"}

_READ_ONLY = "a method writes to its input"


@dataclass(slots=True)
class SectionWork:
    """A section while it runs."""

    plan: SectionPlan
    """What was planned."""
    steps: tuple[Step, ...]
    """The methods."""
    reader: Readable | DeviceStore
    """What it reads."""
    source: Source
    """The scan: its flats, darks and angles."""
    backend: Backend
    """The device."""
    side_results: SideResults
    """Values found so far."""
    sinks: dict[int, Sink]
    """Index of a step -> where its output is kept as a result."""
    store: Store | DeviceStore | None
    """Where the output goes that the next section reads."""
    timeline: Timeline
    """Is told what happens when."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What methods may ask for that is the same for all blocks, by name (see `SUPPLIED`)."""
    n_splits: int = 0
    """How many times memory ran out and the block was made smaller."""
    smallest_block: int = 0
    """The smallest block that was used."""
    _sizes: list[BlockUse] = field(default_factory=list)
    """From which slice on which block was used."""
    _frames: dict[str, Any] = field(default_factory=dict)
    """Flats and darks of all projections, on the device."""
    _partial: dict[int, list[Any]] = field(default_factory=dict)
    """Index of a step -> its side results block by block."""
    _wants_copies: bool = False
    """Whether a method has asked for an input of its own, which it may write to."""
    _measured_slices: int = 0
    """Slices of the widest block that was measured, with its halo."""
    _last_size: int = 0
    """Slices of the last block, with its halo."""

    def run(self, advance: Callable[[int], None]) -> SectionReport:
        """Run all blocks; `advance` is told how many slices were done.

        Raises
        ------
        MethodError
            If a method fails, runs out of memory on a single slice, or returns another
            shape or dtype than it declares.
        """
        plan = self.plan
        self.timeline.begin_section(", ".join(step.meta.name for step in self.steps))
        meter = SectionMeter(self.backend.kind)
        self.smallest_block = plan.block
        try:
            with meter.whole():
                with meter.part(any(step.meta.looks_at is not None for step in self.steps)):
                    self._look_ahead_writably()
                if plan.on_blocks:
                    self._all_blocks(advance, meter)
                else:
                    advance(plan.n_slices)
                for index, values in self._partial.items():
                    self._combine(self.steps[index], values)
                self._frames = {}
        finally:
            times = self.timeline.end_section()
        return SectionReport(
            methods=tuple(step.meta.name for step in self.steps),
            slice_dim=plan.slice_dim,
            n_slices=plan.n_slices,
            block=plan.block,
            smallest_block=self.smallest_block,
            n_splits=self.n_splits,
            duration_s=times.duration_s,
            estimated_bytes=self._estimated_bytes(),
            measured_bytes=meter.measured_bytes,
            unseen=tuple(meter.unseen),
            stages=times.stages,
            idle_share=times.idle_share,
            bound_by=times.bound_by,
            blocks=tuple(self._sizes),
        )

    def _estimated_bytes(self) -> int:
        """Return the estimate for the largest block that was used."""
        largest = max((use.block for use in self._sizes), default=0)
        return dict(self.plan.larger).get(largest, self.plan.estimated_bytes)

    def _all_blocks(self, advance: Callable[[int], None], meter: SectionMeter) -> None:
        """Run block after block; where memory runs out, again with half as many slices."""
        plan, total = self.plan, self.plan.n_slices
        pace = Pace(plan.block, [block for block, _ in plan.larger])
        start, why, is_retry = 0, plan.why, False
        while start < total:
            blocks = blocks_of(start, total, pace.block, plan.halo)
            if not self._sizes or self._sizes[-1].block != pace.block:
                self._sizes.append(BlockUse(start, pace.block, why))
            clocks: list[Clock] = []
            reached, shortage = self._stretch(blocks, advance, meter, clocks, pace)
            self._note(clocks)
            is_retry = is_retry and reached == start
            start = reached
            if shortage is None:
                why = pace.why
                continue
            # What failed is gone only now, outside of its `except` clause.
            gc.collect()
            self.backend.release()
            if shortage == _READ_ONLY:
                continue
            if self.backend.kind == "cuda" and not is_retry:
                is_retry = True  # the pool was perhaps fragmented; now it is empty
                continue
            size = min(pace.block, total - start)
            if size == 1:
                names = ", ".join(step.meta.name for step in self.steps)
                raise OutOfMemoryError(
                    f"memory ran out on a single {_UNITS[plan.slice_dim]}, number {start}, "
                    f"in the section of {names}: {shortage}"
                )
            pace, why, is_retry = Pace(-(-size // 2)), "memory ran out", False
            self.smallest_block = pace.block
            self.n_splits += 1

    def _stretch(
        self,
        blocks: list[Block],
        advance: Callable[[int], None],
        meter: SectionMeter,
        clocks: list[Clock],
        pace: Pace,
    ) -> tuple[int, str | None]:
        """Run blocks of one size, until another one is to be tried.

        Returns
        -------
        (int, str or None)
            The slice that comes next; and what was said if memory ran out, or a method
            asked for blocks that it may write to.
        """
        plan, reached = self.plan, blocks[0].start
        feed: Feed | None = None
        drain: Drain | None = None
        try:
            overlaps = plan.overlaps and len(blocks) > 1
            drain = Drain(plan.slice_dim, self.backend, self.timeline, overlaps=overlaps)
            self._empty_caches_for(blocks[0].n_given)
            feed = make_feed(
                self.reader,
                plan.slice_dim,
                blocks,
                self.backend,
                self.timeline,
                overlaps=overlaps,
                wants_copies=self._wants_copies,
            )
            self._load_frames()
            frames_bytes = sum(int(frames.nbytes) for frames in self._frames.values())
            measured = self._to_measure(blocks)
            for block in blocks:
                data = feed.take()
                self._empty_caches_for(block.n_given)
                beside = frames_bytes + feed.resident_bytes + drain.resident_bytes
                with meter.part(block is measured, beside):
                    clock = Clock(self.backend.link(), block)
                    values = self._run_block(block, data, drain)
                    feed.give_back()
                    clock.stop()
                    clocks.append(clock)
                    del data
                for index, value in values.items():
                    self._partial.setdefault(index, []).append(value)
                reached = block.stop
                advance(block.stop - block.start)
                # All but the last one have been computed, since they are leaving or have left.
                if pace.wants(len(clocks) - 1) and pace.learn(_timed(clocks[:-1])):
                    break
            drain.flush()
        except Exception as error:
            shortage = self._shortage(error)
            if shortage is None:
                raise
            if drain is not None:
                drain.flush()  # what was computed before is written
            return reached, shortage
        finally:
            if feed is not None:
                feed.close()
            if drain is not None:
                drain.close()
        return reached, None

    def _to_measure(self, blocks: list[Block]) -> Block | None:
        """Return the widest block, where none as wide was measured (on the CPU one is)."""
        widest = max(blocks, key=lambda block: block.n_given)
        if widest.n_given <= self._measured_slices:
            return None
        self._measured_slices = widest.n_given
        return widest

    def _note(self, clocks: list[Clock]) -> None:
        """Put the times of computing on the timeline."""
        for start_s, stop_s, block in _timed(clocks):
            spec = self.plan.input.with_slices(self.plan.slice_dim, block.n_given)
            self.timeline.add("compute", start_s, stop_s, block.first, block.last, spec.nbytes)

    def _shortage(self, error: Exception) -> str | None:
        """Return what an error says if a block may be tried again, else None."""
        if self._ran_out(error):
            return str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, MethodError) and "read-only" in str(error) and not self._wants_copies:
            self._wants_copies = True
            return _READ_ONLY
        return None

    def _ran_out(self, error: BaseException | None) -> bool:
        while error is not None:
            if self.backend.is_out_of_memory(error):
                return True
            error = error.__cause__ if isinstance(error, MaxslicesError) else None
        return False

    def _run_block(self, block: Block, data: Any, drain: Drain) -> dict[int, Any]:
        """Run a block's methods; return side results by index of their step."""
        given, slice_dim = data, self.plan.slice_dim
        frames = self._frames or self._side_data(block.first, block.last)
        values: dict[int, Any] = {}
        last = max(i for i, step in enumerate(self.steps) if i == 0 or not step.meta.side_results)
        for index, step in enumerate(self.steps):
            if not step.meta.side_results:
                result = self._call(step, data, frames, block.first, block.last)
                data = self._checked(index, result, block.n_given)
                del result
            elif step.meta.looks_at is None:
                cropped = self._cropped(data, block)
                values[index] = self._call(step, cropped, frames, block.start, block.stop)
                del cropped
            if index in self.sinks and index < last:
                cropped = self._cropped(data, block)
                drain.put(cropped, block.start, [self.sinks[index]], waits=True)
                del cropped
        if isinstance(self.store, DeviceStore):
            self.store.write(slice_dim, block.start, self._cropped(data, block))
        targets: list[Target] = [sink for i, sink in self.sinks.items() if i >= last]
        if self.store is not None and not isinstance(self.store, DeviceStore):
            targets.append(self.store)
        # What lies in the block's own place must have left it before the next one comes there.
        in_place = self.backend.overlap(data, given)
        drain.put(self._cropped(data, block), block.start, targets, waits=in_place)
        return values

    def _look_ahead_writably(self) -> None:
        """Find side results that a few slices give, on copies of them if a method wants these.

        Data that are in memory already are given to methods as they are, read-only. Compiled
        methods may refuse such an array, and others work in place.
        """
        try:
            self._look_ahead()
        except MethodError as error:
            if self._shortage(error) != _READ_ONLY:
                raise
        else:
            return
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Find the side results that depend on a few slices, from these slices alone."""
        plan = self.plan
        for position, step in enumerate(self.steps):
            if step.meta.looks_at is None:
                continue
            wanted = step.meta.looked_at(plan.n_slices, **step.known_parameters())
            first = max(0, wanted.start - plan.halo[0])
            last = min(plan.n_slices, wanted.stop + plan.halo[1])
            data = self._load(first, last)
            self._load_frames()
            frames = self._frames or self._side_data(first, last)
            for index, before in enumerate(self.steps[:position]):
                if not before.meta.side_results:
                    result = self._call(before, data, frames, first, last)
                    data = self._checked(index, result, last - first)
                    del result
            data = self._cropped(data, Block(wanted.start, wanted.stop, first, last))
            value = self._call(step, data, frames, wanted.start, wanted.stop)
            self.side_results.keep(step, value)
            del data, frames

    def _empty_caches_for(self, n_given: int) -> None:
        """Drop FFT plans of another number of slices: they are not in the estimate."""
        if n_given != self._last_size:
            self.backend.release()
            self._last_size = n_given

    def _load(self, first: int, last: int) -> Any:
        """Return slices on the device, with nothing else under way."""
        self._empty_caches_for(last - first)
        if isinstance(self.reader, DeviceStore):
            return self.reader.block(self.plan.slice_dim, first, last)
        if self.backend.kind == "cpu" and not self._wants_copies:
            view = getattr(self.reader, "view", None)
            data = None if view is None else view(self.plan.slice_dim, first, last)
            if data is not None:
                return data
        spec = self.reader.spec.with_slices(self.plan.slice_dim, last - first)
        host = np.empty(spec.shape, spec.dtype)
        self.reader.read(self.plan.slice_dim, first, last, host)
        return self.backend.to_device(host)

    def _load_frames(self) -> None:
        """Bring flats and darks to the device if they are the same for all blocks."""
        if self.plan.slice_dim == 0 and not self._frames:
            self._frames = self._side_data(0, self.plan.n_slices)

    def _side_data(self, first: int, last: int) -> dict[str, Any]:
        wanted = {name for step in self.steps for name in step.meta.supplied}
        read, slice_dim = self.source.read_side, self.plan.slice_dim
        found = {}
        if self.source.flats is not None and "flats" in wanted:
            found["flats"] = self.backend.to_device(read("flats", slice_dim, first, last))
        if self.source.darks is not None and "darks" in wanted:
            found["darks"] = self.backend.to_device(read("darks", slice_dim, first, last))
        return found

    def _call(self, step: Step, data: Any, frames: dict[str, Any], first: int, last: int) -> Any:
        """Call a method on slices `first` to `last`, with what it is supplied with."""
        meta, slice_dim = step.meta, self.plan.slice_dim
        supplied = {**self.facts, **frames, "slice_dim": slice_dim, "first_slice": first}
        if self.source.angles is not None:
            # Where an earlier method left fewer projections, these are the first ones.
            span = slice(first, last) if slice_dim == 0 else slice(data.shape[0])
            supplied["angles"] = self.source.angles[span]
        parameters = {k: self.side_results.resolve(v) for k, v in step.parameters.items()}
        filled = {name: supplied[name] for name in meta.supplied if name in supplied}
        try:
            return call_method(meta, data, parameters | filled, self.backend)
        except MaxslicesError:
            raise
        except Exception as error:
            which = f"{_UNITS[slice_dim]}s {first} to {last - 1}"
            if last - first == 1:
                which = f"{_UNITS[slice_dim]} {first}"
            raise MethodError(
                f"{meta.name} failed on {which}: {type(error).__name__}: {error}"
            ) from error

    def _combine(self, step: Step, values: list[Any]) -> None:
        assert step.meta.combine is not None
        try:
            combined = step.meta.combine(values)
        except Exception as error:
            raise MethodError(
                f"{step.meta.name}: combining the side results of {len(values)} blocks failed: "
                f"{type(error).__name__}: {error}"
            ) from error
        self.side_results.keep(step, combined)

    def _checked(self, index: int, data: Any, n_given: int) -> Any:
        """Require that a method returned the shape and dtype that it declares."""
        planned = self.plan.steps[index].output.with_slices(self.plan.slice_dim, n_given)
        shape, dtype = getattr(data, "shape", None), getattr(data, "dtype", None)
        if shape == planned.shape and dtype == planned.dtype:
            return data
        got = f"a {type(data).__name__}"
        if data is None:
            got = "nothing"
        elif shape is not None:
            got = f"{'x'.join(map(str, shape))} {dtype}"
        raise MethodError(
            f"{self.plan.steps[index].name} returned {got}; by its declaration it is {planned}: "
            "correct its output_dims or output_dtype"
        )

    def _cropped(self, data: Any, block: Block) -> Any:
        """Return a block's slices that count."""
        if block.is_bare:
            return data
        return data[block.core] if self.plan.slice_dim == 0 else data[:, block.core]


def _timed(clocks: list[Clock]) -> list[tuple[float, float, Block]]:
    return [(*clock.times_s(), clock.block) for clock in clocks]
