"""Functions that run on workers: the runner's code on a share of a section's blocks."""

from __future__ import annotations

import platform
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.allocators import Device
from ..devices import Backend, require_libraries, select_backend, shared_allocator
from ..devices.backend import device_name
from ..devices.cpu import CpuBackend
from ..errors import PlanError
from ..io import ScratchStore, Sink, Source, open_source
from ..pipeline import Pipeline
from ..runner.blocks.block_runner import BlockRunner
from ..runner.blocks.side_data import SideFrames, SideResults
from ..runner.folder.unfinished_run import changes, run_identity
from ..runner.section_run import SectionRun
from ..system.packages import installed_version
from ..system.process_state import warnings_shown_before
from ..system.resource_limits import memory_limits
from ..system.threads import HANG_S, N_THREADS, WorkThread
from .section_job import DoneBlock, DoneShare, SectionJob, WorkerFacts, machine_here

if TYPE_CHECKING:
    from distributed import Worker


def dask_setup(worker: Worker) -> None:
    """Set up a worker when Dask starts it, and begin to use its GPU if it has one.

    The GPU starts while the worker connects to the scheduler and imports methods. Errors are
    ignored here, as the first use raises them again. NumPy's generator gets a new seed, because
    forked processes would draw the same numbers. Ctrl-C in a terminal reaches all processes. It is
    left to the command, which ends the workers. Programs that methods start do not inherit this.
    """
    signal.signal(signal.SIGINT, lambda *_: None)
    if sys.platform == "linux":  # where it was blocked until now
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    np.random.seed()  # noqa: NPY002 - the generator of methods that bring none
    if worker.state.total_resources:
        WorkThread(lambda: device_of("cuda").free_bytes(), "device").start()


def versions_here() -> dict[str, str]:
    """Versions that must be the same on all workers."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {
        "maxslices": str(installed_version("maxslices")),
        "NumPy": np.__version__,
        "Python": python,
    }


def describe_worker(address: str, device: Device, pipeline: Pipeline) -> WorkerFacts:
    """Facts about the worker that runs this, for a device of that kind.

    All workers do this at the same time, before planning. A worker imports the methods to receive
    the pipeline. It starts its device, and imports the libraries of the methods meanwhile. So the
    first block does not wait for any of this.
    """
    methods = [step.meta for step in pipeline.steps]
    imports = WorkThread(lambda: require_libraries(methods), "imports")
    imports.start()
    try:
        backend = device_of(device)
    finally:
        imports.join(HANG_S)
    host, boot = machine_here()
    return WorkerFacts(
        address=address,
        host=host,
        boot=boot,
        device=device_name(backend),
        reserved_bytes=backend.reserved_bytes if backend.kind == "cuda" else 0,
        free_bytes=backend.free_bytes(),
        host_free_bytes=CpuBackend().free_bytes(),
        n_threads=N_THREADS,
        limits=tuple(memory_limits()),
    )


def run_share(job: SectionJob, share: range) -> DoneShare:
    """Run the blocks of a share, and write their results."""
    with _opened(job) as section:
        return section.run(share)


def look_ahead(job: SectionJob, share: range) -> list[tuple[int, Any]]:
    """Compute the side results of a section that depend on a few slices.

    Returns
    -------
    list of (int, value)
        Index of a step in the section, and its side results, in the order in which they came.
    """
    with _opened(job) as section:
        return section.look_ahead()


def close_section() -> None:
    """Close the files of the last section."""
    if _lock.acquire(blocking=False):  # while a share runs, leave it to the next one
        with ExitStack() as held:
            held.callback(_lock.release)
            _forget()


_lock = threading.Lock()
"""Held while a share runs, so only one block at a time is on the device."""
_current: _OpenSection | None = None


@contextmanager
def _opened(job: SectionJob) -> Iterator[_OpenSection]:
    """Open the section of a job, and keep it open for the next share."""
    global _current
    with _lock:
        if _current is None or _current.job.name != job.name:
            _forget()
            _current = _OpenSection.open(job)
        try:
            yield _current
        except BaseException:
            _forget()  # a file may have to be opened again
            raise


def _forget() -> None:
    global _current
    section, _current = _current, None
    if section is not None:
        section.held.close()


@dataclass(slots=True)
class _OpenSection:
    """A section with open files."""

    job: SectionJob
    backend: Backend
    reader: Source | ScratchStore
    store: ScratchStore | None
    sinks: dict[int, Sink]
    side_frames: SideFrames
    held: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def open(cls, job: SectionJob) -> _OpenSection:
        """Open the files of a section, after checking that methods and input are the same here."""
        run, backend = job.run, device_of(job.run.device)
        check_same(job, backend)
        with ExitStack() as held:
            with warnings_shown_before():
                source = held.enter_context(open_source(run.scan, run.pipeline.loader))
            reader: Source | ScratchStore = source
            if job.reads is not None:
                reader = held.enter_context(ScratchStore.join(job.reads, "reading"))
            store = None
            if job.writes is not None:
                store = held.enter_context(ScratchStore.join(job.writes, "writing"))
            sinks = {}
            for index, result in job.results.items():
                sinks[index] = Sink(result.path, result.spec, "join", result.info)
                held.callback(sinks[index].close)
            resolve = job.side_results.resolve
            frames = SideFrames(source, run.pipeline.steps, backend, resolve, job.flat_weights)
            found = cls(job, backend, reader, store, sinks, frames)
            found.held = held.pop_all()
        return found

    def run(self, share: range) -> DoneShare:
        """Run a share."""
        runner = self._runner()
        blocks: list[DoneBlock] = []

        def note(start: int, stop: int, size: int, values: dict[int, Any]) -> None:
            blocks.append(DoneBlock(start, stop, size, values))

        section = SectionRun(runner, self.reader, on_block=note, part=share)
        with self._within_budget():
            report = section.run(lambda n_slices: None)
        if self.job.run.syncs:
            for sink in self.sinks.values():
                sink.sync()
            if self.store is not None:
                self.store.sync()
        offset_s = time.time() - time.perf_counter()
        spans = tuple(
            replace(span, start_s=span.start_s + offset_s, stop_s=span.stop_s + offset_s)
            for span in section.timeline.spans
        )
        return DoneShare(tuple(blocks), report, runner.checks.seen, spans)

    def look_ahead(self) -> list[tuple[int, Any]]:
        """Compute the side results of a few slices."""
        runner = self._runner()
        with self._within_budget():
            SectionRun(runner, self.reader).look_ahead()
        runner.close()
        return runner.new_side_results

    @contextmanager
    def _within_budget(self) -> Iterator[None]:
        """Limit memory to the budget of the plan, also in torch."""
        budget_bytes = self.job.run.budget_bytes
        with ExitStack() as held:
            held.enter_context(self.backend.limited(budget_bytes))
            needs_torch = require_libraries(step.meta for step in self.job.run.pipeline.steps)
            if needs_torch and self.backend.kind == "cuda":
                held.enter_context(shared_allocator(budget_bytes))
            yield

    def _runner(self) -> BlockRunner:
        job = self.job
        steps = slice(job.plan.steps[0].index, job.plan.steps[-1].index + 1)
        return BlockRunner(
            job.plan,
            job.run.pipeline.steps[steps],
            self.side_frames,
            job.angles,
            self.backend,
            SideResults(dict(job.side_results.by_reference)),
            self.sinks,
            self.store,
            job.facts,
            known=set(job.known),
        )


_checked: dict[str, Any] | None = None
"""Versions and identity of the run that this worker was last checked for."""


def check_same(job: SectionJob, backend: Backend) -> None:
    """Check, once for a run, that this worker computes the same bits.

    Modules that are imported by then do not change later with their files.

    Raises
    ------
    PlanError
        Naming each difference.
    """
    global _checked
    wanted = {"versions": job.run.versions, **job.run.identity}
    if wanted == _checked:
        return
    here, differences = versions_here(), []
    for name, version in job.run.versions.items():
        if here[name] != version:
            differences.append(f"{name} is {here[name]} and not {version}")
    differences += changes(job.run.identity, run_identity(job.run.pipeline, backend, job.run.files))
    if differences:
        text = "; ".join(differences)
        raise PlanError(f"the worker on {socket.gethostname()} differs: {text}")
    _checked = wanted


def device_of(device: Device) -> Backend:
    """The device of this worker: the only GPU that it sees, or the CPU."""
    return CpuBackend() if device == "cpu" else select_backend("cuda:0")
