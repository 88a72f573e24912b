"""Run the methods of a section on one block, with their parameters and side data."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.arrays import SLICE_NAMES
from ...core.author_code import defined_at, raised_at, what_raised
from ...core.declaration import ReturnedOutput
from ...devices import Backend, call_method, is_copyable
from ...errors import MaxslicesError, MethodError, PlanError, ReadOnlyInputError
from ...io import SideName, Sink, Store
from ...io.access import SIDE_NAMES
from ...pipeline import Step
from ...planner import SectionPlan
from ...system.plain_records import plain
from ..folder.journal import Journal
from ..report.run_timeline import Timeline
from .block_feed import Block, BlockFeed, DeviceStore, Readable, blocks_of, make_block_feed
from .result_checks import ResultChecks
from .result_queue import ResultQueue, Target
from .side_data import SideFrames, SideResults


@dataclass(slots=True)
class BlockRunner:
    """Runs the methods of a section on one block after another."""

    plan: SectionPlan
    """The section as planned."""
    steps: tuple[Step, ...]
    """The methods."""
    side_frames: SideFrames
    """Flats and darks."""
    angles: NDArray[np.float32] | None
    """Angles of the section's input; None if the scan has none."""
    backend: Backend
    """The device."""
    side_results: SideResults
    """Side results so far."""
    sinks: dict[int, Sink]
    """Index of a step -> the sink of its output."""
    store: Store | DeviceStore | None
    """Store of the output for the next section; None if there is none."""
    facts: Mapping[str, Any]
    """Values for methods that are the same for all blocks, by name (see `SUPPLIED`)."""
    _frames: list[dict[str, Any]] = field(default_factory=list)
    """Flats and darks of each step, if they are the same for all blocks."""
    known: set[int] = field(default_factory=set)
    """Indices of steps that are not called because their side results are known."""
    journal: Journal | None = None
    """Journal for side results; None without one."""
    keeps_track: bool = True
    """Whether all side results are in the journal."""
    new_side_results: list[tuple[int, Any]] = field(default_factory=list)
    """Index of a step, and its side results, in the order in which they came."""
    input_non_finite: tuple[int, int] = (0, 0)
    """NaN and infinite values that were counted in the section's input."""
    _last_result: Callable[[], Any] = lambda: None
    """Returns the memory of the last block's result; None if it was freed."""
    checks: ResultChecks = field(init=False)
    """Checks the results of the steps."""

    def __post_init__(self) -> None:
        self.checks = ResultChecks(self.steps, self.sinks, self.input_non_finite)

    @property
    def resident_bytes(self) -> int:
        """Bytes of flats and darks on the device for all blocks."""
        frames = {id(each): each for by_name in self._frames for each in by_name.values()}
        return sum(int(each.nbytes) for each in frames.values())

    def load_frames(self) -> None:
        """Load flats and darks, if they are the same for all blocks."""
        if self.plan.slice_dim == 0 and not self._frames:
            self._frames = self._side_data(0, self.plan.n_slices)

    def close(self) -> None:
        """Free flats and darks."""
        self._frames = []

    def run(
        self, block: Block, feed: BlockFeed, results: ResultQueue, timeline: Timeline
    ) -> dict[int, Any]:
        """Run the methods on the next block of `feed`, and queue their results.

        Parameters
        ----------
        block : Block
            The next block.
        feed : BlockFeed
            Delivers it.
        results : ResultQueue
            Queue for the results.
        timeline : Timeline
            Records the computation, without the waits before and after it.

        Returns
        -------
        dict of int to value
            Index of a step -> its side results.
        """
        slice_dim = self.plan.slice_dim
        data = feed.take()
        # Input buffers are reused by later blocks. Other memory is freed as soon as possible.
        place = data if feed.reuses else None
        input_id = id(_owner(data))
        engine = self.backend.copy_engine()
        began = time.perf_counter() if engine is None else engine.record()
        frames = self._frames_of(block)
        values: dict[int, Any] = {}
        last = max(i for i, step in enumerate(self.steps) if i == 0 or not step.meta.side_results)
        for index, step in enumerate(self.steps):
            if step.meta.side_data == "alone":
                pass
            elif not step.meta.side_results:
                result = self._call(index, data, frames, block.first, block.last)
                data = self._checked(index, result, block.n_given)
                del result
                self.checks.look(index, self._cropped(data, block))
            elif step.meta.sample_slices is None and index not in self.known:
                cropped = self._cropped(data, block)
                values[index] = self._call(index, cropped, frames, block.start, block.stop)
                del cropped
            if index in self.sinks and index < last:
                # Wait for the copy, because later methods may write to the array.
                cropped = self._cropped(data, block)
                results.put(cropped, block.start, [self.sinks[index]], waits=True)
                del cropped
        if isinstance(self.store, DeviceStore):
            self.store.write(slice_dim, block.start, self._cropped(data, block))
        ended = time.perf_counter() if engine is None else engine.record()
        n_bytes = self.plan.input.with_slices(slice_dim, block.n_given).nbytes
        timeline.add("compute", began, ended, n_bytes)
        targets: list[Target] = [sink for i, sink in self.sinks.items() if i >= last]
        if self.store is not None and not isinstance(self.store, DeviceStore):
            targets.append(self.store)
        # A result in the block's own memory must be copied before the next block is put there.
        waits = place is not None and self.backend.overlap(data, place)
        # A result that is part of a larger array keeps that array in memory until it is copied,
        # unless the device makes a contiguous copy.
        owner = _owner(data)
        if owner is self._last_result() and id(owner) != input_id:
            function = self.steps[last].meta.function
            raise MethodError(
                f"{self.plan.steps[last].name} returned the memory of its last result again, "
                f"which may still be in use: return a new array{defined_at(function)}"
            )
        self._last_result = weakref.ref(owner)
        held_bytes = int(owner.nbytes)
        del owner
        if self.backend.kind == "cpu" or is_copyable(data):
            planned = self.plan.output.with_slices(slice_dim, block.n_given)
            waits = waits or held_bytes > planned.nbytes
        cropped = self._cropped(data, block)
        results.put(cropped, block.start, targets, held_bytes=held_bytes, waits=waits)
        return values

    def find_ahead(self, reader: Readable | DeviceStore, wants_copies: bool) -> None:
        """Compute the side results that depend on a few slices, from these slices alone.

        A call after an error continues with the step that failed.
        """
        plan = self.plan
        for position, step in enumerate(self.steps):
            if step.meta.sample_slices is None or position in self.known:
                continue
            wanted = step.meta.sampled_range(plan.n_slices, **self._parameters(position))
            (block,) = blocks_of([wanted], len(wanted), plan.halo, plan.n_slices)
            self.backend.release()
            feed = make_block_feed(
                reader,
                plan.slice_dim,
                [block],
                self.backend,
                Timeline(),
                overlaps=False,
                wants_copies=wants_copies,
            )
            with closing(feed):
                feed.start()
                data, frames = feed.take(), self._frames_of(block)
                for index, before in enumerate(self.steps[:position]):
                    if not before.meta.side_results and before.meta.side_data != "alone":
                        result = self._call(index, data, frames, block.first, block.last)
                        data = self._checked(index, result, block.n_given)
                        del result
                data = self._cropped(data, block)
                value = self._call(position, data, frames, block.start, block.stop)
                self.keep(position, value)
                self.known.add(position)
                del data, frames

    def keep(self, position: int, value: Any) -> None:
        """Keep a step's side results, also in the journal."""
        self.new_side_results.append((position, value))
        self.side_results.keep(self.steps[position], value)
        if self.journal is not None:
            is_noted = self.journal.side(self.plan.steps[position].index, value)
            self.keeps_track = self.keeps_track and is_noted

    def combine(self, position: int, values: list[Any]) -> None:
        """Combine the side results of a step from all blocks."""
        step = self.steps[position]
        assert step.meta.combine is not None
        try:
            combined = step.meta.combine(values)
        except Exception as error:
            raise MethodError(
                f"{step.meta.name}: combining the side results of {len(values)} blocks failed: "
                f"{what_raised(error)}{raised_at(error, step.meta.combine)}"
            ) from error
        self.keep(position, combined)

    def _frames_of(self, block: Block) -> list[dict[str, Any]]:
        """Flats and darks of each step, for a block."""
        self.load_frames()
        return self._frames or self._side_data(block.first, block.last)

    def _side_data(self, first: int, last: int) -> list[dict[str, Any]]:
        """Flats and darks of each step, for a block. Steps share arrays where possible."""
        loaded: dict[tuple[SideName, int | None], Any] = {}
        by_step: list[dict[str, Any]] = []
        source, slice_dim = self.side_frames.source, self.plan.slice_dim
        for planned, step in zip(self.plan.steps, self.steps, strict=True):
            by_step.append({})
            changed_by = self.side_frames.changed_by(planned.index)
            for name in SIDE_NAMES:
                if name not in step.meta.supplied or getattr(source, name) is None:
                    continue
                if (name, changed_by) not in loaded:
                    frames = self.side_frames.read(name, changed_by, slice_dim, first, last)
                    loaded[name, changed_by] = self.backend.to_device(frames)
                by_step[-1][name] = loaded[name, changed_by]
        return by_step

    def _call(
        self, index: int, data: Any, frames: list[dict[str, Any]], first: int, last: int
    ) -> Any:
        """Call a method on slices `first` to `last`, with its parameters and supplied values."""
        step, slice_dim = self.steps[index], self.plan.slice_dim
        meta = step.meta
        supplied = {**self.facts, **frames[index], "slice_dim": slice_dim, "first_slice": first}
        weights = self.side_frames.weights_after(self.plan.steps[index].index)
        if weights is not None and slice_dim == 0:
            weights = weights[0][first:last], weights[1]
        supplied["flat_weights"] = weights
        angles = self.side_results.angles_after(self.steps[:index], self.angles)
        if angles is not None:
            # Earlier methods may have left fewer projections. Their angles come first.
            span = slice(first, last) if slice_dim == 0 else slice(data.shape[0])
            supplied["angles"] = angles[span]
            supplied["scan_angles"] = angles
        parameters = self._parameters(index)
        filled = {name: supplied[name] for name in meta.supplied if name in supplied}
        try:
            return call_method(meta, data, {**parameters, **filled}, self.backend)
        except MaxslicesError:
            raise
        except Exception as error:
            slices = f"{SLICE_NAMES[slice_dim]}s {first} to {last - 1}"
            if last - first == 1:
                slices = f"{SLICE_NAMES[slice_dim]} {first}"
            message = what_raised(error)
            # NumPy, and code compiled for it, have no exception type for this.
            kind = ReadOnlyInputError if "read-only" in message else MethodError
            where = raised_at(error, meta.function)
            raise kind(f"{meta.name} failed on {slices}: {message}{where}") from error

    def _parameters(self, index: int) -> dict[str, Any]:
        """Parameters of a step, with the values of its references.

        Raises
        ------
        PlanError
            If the plan was made with other values.
        """
        step, planned = self.steps[index], self.plan.steps[index].planned_values
        values = {k: self.side_results.resolve(v) for k, v in step.parameters.items()}
        for name, value in planned.items():
            if plain(values.get(name)) != value:
                raise PlanError(
                    f"the plan was made with {name} = {value!r} for {step.meta.name}, and the run "
                    f"computed {values.get(name)!r}: run without this plan"
                )
        return values

    def _checked(self, index: int, data: Any, n_given: int) -> Any:
        """Check that a method has returned the shape and dtype that it declares."""
        slice_dim = self.plan.slice_dim
        planned = self.plan.steps[index].output.with_slices(slice_dim, n_given)
        returned = ReturnedOutput.of(data)
        if fault := returned.mismatch(self.steps[index].meta, planned, slice_dim):
            place = defined_at(self.steps[index].meta.function)
            raise MethodError(f"{self.plan.steps[index].name} {fault}{place}")
        return data

    def _cropped(self, data: Any, block: Block) -> Any:
        """Slices of a block without its halo."""
        if block.is_bare:
            return data
        return data[block.core] if self.plan.slice_dim == 0 else data[:, block.core]


def _owner(data: Any) -> Any:
    """Array that `data` is a part of."""
    while getattr(data, "base", None) is not None and hasattr(data.base, "nbytes"):
        data = data.base
    return data
