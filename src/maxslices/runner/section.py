"""One section of a plan, block by block."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..arrays import ArraySpec, block_shape
from ..backends import Backend, call_method
from ..errors import MaxslicesError, MethodError, OutOfMemoryError
from ..io import Sink, Source, Store
from ..planner import SectionPlan, Step
from .report import SectionReport
from .section_meter import SectionMeter
from .side_results import SideResults

_UNITS = {0: "projection", 1: "sinogram"}


class Readable(Protocol):
    """A scan, or what an earlier section made."""

    @property
    def spec(self) -> ArraySpec:
        """Shape and dtype of the whole."""
        ...

    def read(self, slice_dim: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read slices `start` to `stop` along `slice_dim` into `out`."""
        ...


def _no_view(slice_dim: int, start: int, stop: int) -> None:
    """Stand for `view` of a reader that has none."""


@dataclass(slots=True)
class SectionWork:
    """A section while it runs."""

    plan: SectionPlan
    """What was planned."""
    steps: tuple[Step, ...]
    """The methods."""
    reader: Readable
    """What it reads."""
    source: Source
    """The scan: its flats, darks and angles."""
    backend: Backend
    """The device."""
    side_results: SideResults
    """Values found so far."""
    sinks: dict[int, Sink]
    """Index of a step -> where its output is kept as a result."""
    store: Store | None
    """Where the output goes that the next section reads."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What methods may ask for that is the same for all blocks, by name (see `SUPPLIED`)."""
    n_splits: int = 0
    """How many times memory ran out and the block was made smaller."""
    smallest_block: int = 0
    """The block at the end."""
    _frames: dict[str, Any] = field(default_factory=dict)
    """Flats and darks of all projections, on the device."""
    _partial: dict[int, list[Any]] = field(default_factory=dict)
    """Index of a step -> its side results block by block."""
    _wants_copies: bool = False
    """Whether a method has asked for an input of its own, which it may write to."""
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
        began, plan = time.perf_counter(), self.plan
        meter = SectionMeter(self.backend.kind)
        self.smallest_block = plan.block
        with meter.whole():
            with meter.part(any(step.meta.looks_at is not None for step in self.steps)):
                if plan.slice_dim == 0:
                    self._frames = self._side_data(0, plan.n_slices)
                self._with_copies_if_wanted(self._look_ahead)
            if plan.on_blocks:
                self._all_blocks(advance, meter)
            else:
                advance(plan.n_slices)
            for index, values in self._partial.items():
                self._combine(self.steps[index], values)
            self._frames = {}
        return SectionReport(
            methods=tuple(step.meta.name for step in self.steps),
            slice_dim=plan.slice_dim,
            n_slices=plan.n_slices,
            block=plan.block,
            smallest_block=self.smallest_block,
            n_splits=self.n_splits,
            duration_s=time.perf_counter() - began,
            estimated_bytes=plan.estimated_bytes,
            measured_bytes=meter.measured_bytes,
            unseen=tuple(meter.unseen),
        )

    def _all_blocks(self, advance: Callable[[int], None], meter: SectionMeter) -> None:
        """Run block after block; where memory runs out, again with half as many slices."""
        start, block, is_retry = 0, self.plan.block, False
        measured = self._start_of_the_widest()
        frames_bytes = sum(int(frames.nbytes) for frames in self._frames.values())
        while start < self.plan.n_slices:
            stop = min(start + block, self.plan.n_slices)
            with meter.part(start <= measured < stop, frames_bytes):
                shortage = self._try_block(start, stop)
            if shortage is None:
                advance(stop - start)
                start, is_retry = stop, False
                continue
            # What failed is gone only now, outside of its `except` clause.
            gc.collect()
            self.backend.release()
            if self.backend.kind == "cuda" and not is_retry:
                is_retry = True  # the pool was perhaps fragmented; now it is empty
                continue
            if stop - start == 1:
                names = ", ".join(step.meta.name for step in self.steps)
                raise OutOfMemoryError(
                    f"memory ran out on a single {_UNITS[self.plan.slice_dim]}, number {start}, "
                    f"in the section of {names}: {shortage}"
                )
            block, is_retry = -(-(stop - start) // 2), False
            self.smallest_block = block
            self.n_splits += 1

    def _start_of_the_widest(self) -> int:
        """Return where the first of the widest blocks starts: those at an edge lack halo there."""
        (before, after), total, block = self.plan.halo, self.plan.n_slices, self.plan.block

        def width(start: int) -> int:
            return min(total, start + block + after) - max(0, start - before)

        return max(range(0, total, block), key=width)

    def _try_block(self, start: int, stop: int) -> str | None:
        """Run a block; return what was said if memory ran out."""
        try:
            self._with_copies_if_wanted(lambda: self._run_block(start, stop))
        except Exception as error:
            if not self._ran_out(error):
                raise
            return str(error).splitlines()[0] if str(error) else type(error).__name__
        return None

    def _with_copies_if_wanted(self, work: Callable[[], None]) -> None:
        """Do something; again with copies of the input if a method cannot do with read-only views.

        Data that are in memory already are given to methods as they are, read-only. Compiled
        methods may refuse such an array, and others work in place.
        """
        try:
            work()
        except MethodError as error:
            if self._wants_copies or "read-only" not in str(error):
                raise
            self._wants_copies = True
        else:
            return
        work()

    def _ran_out(self, error: BaseException | None) -> bool:
        while error is not None:
            if self.backend.is_out_of_memory(error):
                return True
            error = error.__cause__ if isinstance(error, MaxslicesError) else None
        return False

    def _run_block(self, start: int, stop: int) -> None:
        plan = self.plan
        first = max(0, start - plan.halo[0])
        last = min(plan.n_slices, stop + plan.halo[1])
        core, n_given = slice(start - first, stop - first), last - first
        data = self._load(first, last)
        frames = self._frames or self._side_data(first, last)
        values: dict[int, Any] = {}
        for index, step in enumerate(self.steps):
            if not step.meta.side_results:
                data = self._checked(index, self._call(step, data, frames, first, last), n_given)
            elif step.meta.looks_at is None:
                cropped = self._cropped(data, core, n_given)
                values[index] = self._call(step, cropped, frames, start, stop)
                del cropped
            if index in self.sinks:
                self.sinks[index].write(plan.slice_dim, start, self._on_host(data, core, n_given))
        if self.store is not None:
            self.store.write(plan.slice_dim, start, self._on_host(data, core, n_given))
        for index, value in values.items():
            self._partial.setdefault(index, []).append(value)

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
            frames = self._frames or self._side_data(first, last)
            for index, before in enumerate(self.steps[:position]):
                if not before.meta.side_results:
                    result = self._call(before, data, frames, first, last)
                    data = self._checked(index, result, last - first)
                    del result
            core = slice(wanted.start - first, wanted.stop - first)
            data = self._cropped(data, core, last - first)
            value = self._call(step, data, frames, wanted.start, wanted.stop)
            self.side_results.keep(step, value)
            del data, frames

    def _load(self, first: int, last: int) -> Any:
        if last - first != self._last_size:
            # FFT plans of another number of slices, which caches hold, are not in the estimate.
            self.backend.release()
            self._last_size = last - first
        if self.backend.kind == "cpu" and not self._wants_copies:
            view = getattr(self.reader, "view", _no_view)(self.plan.slice_dim, first, last)
            if view is not None:
                return view
        spec = self.reader.spec
        shape = block_shape(self.plan.slice_dim, last - first, spec.other_dims(self.plan.slice_dim))
        host = np.empty(shape, spec.dtype)
        self.reader.read(self.plan.slice_dim, first, last, host)
        return self.backend.to_device(host)

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

    def _cropped(self, data: Any, core: slice, n_given: int) -> Any:
        """Return the block without its halo."""
        if core.stop - core.start == n_given:
            return data
        return data[core] if self.plan.slice_dim == 0 else data[:, core]

    def _on_host(self, data: Any, core: slice, n_given: int) -> NDArray[Any]:
        return self.backend.to_host(self._cropped(data, core, n_given))
