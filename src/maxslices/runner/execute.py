"""The runner: block after block through each section of a plan."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..arrays import ArraySpec, block_shape
from ..backends import Backend
from ..errors import MaxslicesError, MethodError, OutOfMemoryError, SourceError
from ..io import MemoryStore, ScratchStore, Sink, Source, Store
from ..meters import measure_peak
from ..planner import Pipeline, Plan, Reference, SectionPlan, Step
from .folder import RunFolder
from .progress import Progress
from .report import SectionReport

SAMPLE_INTERVAL_S = 0.02
"""Time between samples of a GPU's memory: seldom enough to cost nothing over a run."""
_UNITS = {0: "projections", 1: "sinograms"}


class _Readable(Protocol):
    @property
    def spec(self) -> ArraySpec: ...

    def read(self, slice_dim: int, start: int, stop: int, out: NDArray[Any]) -> None: ...


class _Writable(Protocol):
    def write(self, slice_dim: int, start: int, block: NDArray[Any]) -> None: ...


@dataclass(slots=True)
class SideResults:
    """Values that methods returned beside the data, for references and for the report."""

    by_reference: dict[tuple[str, str], Any] = field(default_factory=dict)
    """(step id, name under its side_outputs) -> value."""
    by_method: dict[str, Any] = field(default_factory=dict)
    """``method.name`` -> value."""

    def keep(self, step: Step, value: Any) -> None:
        """Keep what a step returned: one value, or a tuple of as many as it declares."""
        names = step.meta.side_results
        values = (value,) if len(names) == 1 else tuple(value)
        if len(values) != len(names):
            raise MethodError(
                f"{step.meta.name} returned {len(values)} side results; it declares "
                f"{len(names)}: {', '.join(names)}"
            )
        for name, item in zip(names, values, strict=True):
            self.by_method[f"{step.meta.name}.{name}"] = item
            if step.id is not None and name in step.side_outputs:
                self.by_reference[step.id, step.side_outputs[name]] = item

    def resolve(self, value: Any) -> Any:
        """Return a parameter's value, looked up if it is a reference."""
        if isinstance(value, Reference):
            return self.by_reference[value.step_id, value.name]
        return value


def check_supplied(pipeline: Pipeline, source: Source) -> None:
    """Require that the scan has the flats, darks and angles that the methods cannot do without.

    Raises
    ------
    SourceError
        Naming the method and how to give what is missing.
    """
    has = {
        "flats": source.flats is not None,
        "darks": source.darks is not None,
        "angles": source.angles is not None,
        "slice_dim": True,
    }
    for step in pipeline.steps:
        for name in step.meta.supplied:
            parameter = step.meta.parameters[name]
            given = name in step.parameters or parameter.default is not parameter.empty
            if not has[name] and not given:
                how = "rotation_angles" if name == "angles" else name
                raise SourceError(
                    f"{source.name} has no {name}, which {step.meta.name} needs: give them with "
                    f"{how} in the pipeline's loader (standard_tomo), or leave the method out"
                )


def execute(
    plan: Plan,
    pipeline: Pipeline,
    source: Source,
    backend: Backend,
    folder: RunFolder | None,
    progress: Progress,
    scratch_folder: Path,
) -> tuple[tuple[SectionReport, ...], SideResults, np.ndarray | None]:
    """Run a plan.

    Parameters
    ----------
    plan : Plan
        Made for this pipeline and scan.
    pipeline : Pipeline
        The methods.
    source : Source
        The scan.
    backend : Backend
        The device.
    folder : RunFolder or None
        Where results go; None keeps the last one in memory.
    progress : Progress
        Is told what is done.
    scratch_folder : Path
        Where intermediates go that do not fit in memory.

    Returns
    -------
    (tuple of SectionReport, SideResults, numpy.ndarray or None)
        Reports, values, and the result where it was kept in memory.

    Raises
    ------
    MethodError
        If a method fails, runs out of memory on a single slice, or returns another shape
        or dtype than it declares.
    """
    check_supplied(pipeline, source)
    side_results = SideResults()
    reports: list[SectionReport] = []
    reader: _Readable = source
    previous: Store | None = None
    position = 0
    result: np.ndarray | None = None
    with contextlib.ExitStack() as held, backend.limited(plan.budget_bytes - plan.reserved_bytes):
        for number, section in enumerate(plan.sections, start=1):
            steps = pipeline.steps[position : position + len(section.steps)]
            store: Store | None = None
            if section.destination == "memory":
                store = MemoryStore(section.output)
            elif section.destination == "scratch file":
                store = ScratchStore(section.output, scratch_folder)
            if store is not None:
                held.callback(store.close)
            sinks = _saved(folder, steps, section, position, len(pipeline.steps))
            work = _SectionWork(section, steps, reader, source, backend, side_results, sinks, store)
            progress.start(f"section {number}/{len(plan.sections)}", section.n_slices)
            reports.append(work.run(progress.advance))
            if previous is not None:
                previous.close()
            if store is not None:
                reader = previous = store
                if number == len(plan.sections) and isinstance(store, MemoryStore):
                    result = store.array
            position += len(steps)
            backend.release()
    return tuple(reports), side_results, result


def _saved(
    folder: RunFolder | None,
    steps: tuple[Step, ...],
    section: SectionPlan,
    position: int,
    n_steps: int,
) -> dict[int, Sink]:
    """Make the sinks of a section: index of the step in it -> where its output is kept."""
    if folder is None:
        return {}
    sinks = {}
    for index, (step, planned) in enumerate(zip(steps, section.steps, strict=True)):
        if step.save_result:
            is_last = position + index == n_steps - 1
            name = "result" if is_last else f"{position + index + 1:02d}_{step.meta.name}"
            sinks[index] = folder.sink(name, planned.output, section.slice_dim)
    return sinks


@dataclass(slots=True)
class _SectionWork:
    """A section while it runs."""

    plan: SectionPlan
    steps: tuple[Step, ...]
    reader: _Readable
    source: Source
    backend: Backend
    side_results: SideResults
    sinks: dict[int, Sink]
    store: Store | None
    frames: dict[str, Any] = field(default_factory=dict)
    """Flats and darks of all projections, on the device."""
    partial: dict[int, list[Any]] = field(default_factory=dict)
    """Index of a step -> its side results block by block."""
    n_splits: int = 0

    def run(self, advance: Callable[[int], None]) -> SectionReport:
        began = time.perf_counter()
        plan = self.plan
        with measure_peak(self.backend.kind, interval_s=SAMPLE_INTERVAL_S) as peak:
            if plan.slice_dim == 0:
                self.frames = self._side_data(0, plan.n_slices)
            self._look_ahead()
            for start in range(0, plan.n_slices, plan.block):
                stop = min(start + plan.block, plan.n_slices)
                self._process(start, stop)
                advance(stop - start)
            for index, values in self.partial.items():
                step = self.steps[index]
                assert step.meta.combine is not None
                self.side_results.keep(step, step.meta.combine(values))
            self.frames = {}
        return SectionReport(
            methods=tuple(step.meta.name for step in self.steps),
            slice_dim=plan.slice_dim,
            n_slices=plan.n_slices,
            block=plan.block,
            n_splits=self.n_splits,
            duration_s=time.perf_counter() - began,
            estimated_bytes=plan.estimated_bytes,
            measured_bytes=peak.counted_bytes,
            unseen=tuple(peak.unseen),
        )

    def _process(self, start: int, stop: int) -> None:
        """Run one block; where memory runs out, again from a clean pool, then in halves."""
        for attempt in (1, 2):
            try:
                self._run_block(start, stop)
                return
            except Exception as error:
                if not self._ran_out(error):
                    raise
                message = str(error).splitlines()[0] if str(error) else type(error).__name__
            self.backend.release()
            if attempt == 1 and self.backend.kind == "cpu":
                break  # nothing was held back that a second attempt could use
        if stop - start == 1:
            raise OutOfMemoryError(
                f"{' '.join(step.meta.name for step in self.steps)}: memory ran out on a single "
                f"slice ({_UNITS[self.plan.slice_dim]} {start}): {message}"
            )
        self.n_splits += 1
        middle = (start + stop) // 2
        self._process(start, middle)
        self._process(middle, stop)

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
        data = self._load(first, last)
        frames = self.frames or self._side_data(first, last)
        values: dict[int, Any] = {}
        core = slice(start - first, stop - first)
        host: NDArray[Any] | None = None
        for index, step in enumerate(self.steps):
            if step.meta.side_results:
                if step.meta.looks_at is None:
                    cropped = self._cropped(data, core, last - first)
                    values[index] = self._call(step, cropped, frames, start, stop)
                    del cropped
            else:
                data = self._checked(index, self._call(step, data, frames, first, last))
                host = None
            if index in self.sinks:
                host = self._on_host(data, core, last - first) if host is None else host
                self.sinks[index].write(plan.slice_dim, start, host)
                if index < len(self.steps) - 1:
                    host = None
        if self.store is not None:
            host = self._on_host(data, core, last - first) if host is None else host
            self.store.write(plan.slice_dim, start, host)
        for index, value in values.items():
            self.partial.setdefault(index, []).append(value)

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
            frames = self.frames or self._side_data(first, last)
            for index, before in enumerate(self.steps[:position]):
                if not before.meta.side_results:
                    data = self._checked(index, self._call(before, data, frames, first, last))
            core = slice(wanted.start - first, wanted.stop - first)
            data = self._cropped(data, core, last - first)
            value = self._call(step, data, frames, wanted.start, wanted.stop)
            self.side_results.keep(step, value)

    def _load(self, first: int, last: int) -> Any:
        spec = self.reader.spec
        shape = block_shape(self.plan.slice_dim, last - first, spec.other_dims(self.plan.slice_dim))
        host = np.empty(shape, spec.dtype)
        self.reader.read(self.plan.slice_dim, first, last, host)
        return self.backend.to_device(host)

    def _side_data(self, first: int, last: int) -> dict[str, Any]:
        wanted = {name for step in self.steps for name in step.meta.supplied}
        specs = {"flats": self.source.flats, "darks": self.source.darks}
        return {
            name: self.backend.to_device(
                self.source.read_side(name, self.plan.slice_dim, first, last)  # type: ignore[arg-type]
            )
            for name, spec in specs.items()
            if spec is not None and name in wanted
        }

    def _call(self, step: Step, data: Any, frames: dict[str, Any], first: int, last: int) -> Any:
        meta = step.meta
        parameters = {k: self.side_results.resolve(v) for k, v in step.parameters.items()}
        supplied = {**frames, "slice_dim": self.plan.slice_dim}
        angles = self.source.angles
        if angles is not None:
            supplied["angles"] = angles[: data.shape[0]]
        filled = {k: supplied[k] for k in meta.supplied if k in supplied and k not in parameters}
        try:
            return meta.function(data, **parameters, **filled)
        except MaxslicesError:
            raise
        except Exception as error:
            raise MethodError(
                f"{meta.name} failed on {_UNITS[self.plan.slice_dim]} {first} to {last - 1}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _checked(self, index: int, data: Any) -> Any:
        """Require that a method returned the shape and dtype that it declares."""
        planned = self.plan.steps[index].output
        axis = self.plan.slice_dim
        shape, dtype = getattr(data, "shape", None), getattr(data, "dtype", None)
        if shape is None or len(shape) != 3 or dtype is None:
            raise MethodError(
                f"{self.plan.steps[index].name} returned {type(data).__name__}, not a 3D array"
            )
        others = tuple(n for i, n in enumerate(shape) if i != axis)
        if others != planned.other_dims(axis) or np.dtype(dtype) != planned.dtype:
            got = ArraySpec(tuple(shape), np.dtype(dtype))
            raise MethodError(
                f"{self.plan.steps[index].name} returned {got}; it declares "
                f"{planned.with_slices(axis, shape[axis])}: correct its output_dims or output_dtype"
            )
        return data

    def _cropped(self, data: Any, core: slice, n_given: int) -> Any:
        """Return the block without its halo."""
        if core.stop - core.start == n_given:
            return data
        return data[core] if self.plan.slice_dim == 0 else data[:, core]

    def _on_host(self, data: Any, core: slice, n_given: int) -> NDArray[Any]:
        return self.backend.to_host(self._cropped(data, core, n_given))
