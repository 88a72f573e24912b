"""What workers are asked, on their devices: budgets, a plan, whether a run is as it was."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union

from ..devices import Backend, select_backend
from ..devices.device_count import count_devices
from ..errors import PlanError, UsageError
from ..model.units import parse_bytes
from ..pipeline import Pipeline
from ..planner import Budgets, Plan
from ..planner.block_size import BlockChoice
from ..planner.tile_and_offload import FitChoice
from ..runner import RunFolder
from ..runner.run_identity import run_identity
from ..runner.snapshots import snapshot_bytes
from ..runner.unfinished_run import UnfinishedRun
from ..system.threads import N_CORES
from .check_run import check_plan_here, check_unchanged
from .plan_scan import plan_pipeline
from .resources import chooser_for
from .scan_and_output import Scan, files_read, opened, spec_of

if TYPE_CHECKING:
    from distributed import Client

    from ..cluster.section_job import WorkerFacts
    from ..cluster.workers import Workers

Engine = Union[str, "Client"]
"""What runs the blocks: "local", "dask", ``"dask:ADDRESS"``, or a client of a Dask cluster."""


def check_for_workers(engine: Engine, scan: Scan, out: object, sweep: object) -> None:
    """Check, before anything is started, that workers can do a run.

    Raises
    ------
    UsageError
        If not: there is no such engine, Dask is not installed, or they could not read or write.
    """
    if isinstance(engine, str) and engine != "dask" and not engine.startswith("dask:"):
        raise UsageError(f"unknown engine {engine!r}: use local, dask or dask:ADDRESS")
    if importlib.util.find_spec("distributed") is None:
        raise UsageError("several workers need Dask: pip install 'maxslices[dask]'")
    if not isinstance(scan, str | os.PathLike):
        raise UsageError("workers read the scan themselves: give its path, not an array")
    if not isinstance(out, str | os.PathLike):
        raise UsageError("workers write their results to files: name a folder as `out`")
    if sweep is not None:
        raise UsageError("a sweep runs in one process: leave engine, workers and gpus out")


@contextmanager
def workers_for(
    engine: Engine, workers: int | None, gpus: int | Literal["all"] | None, device: str
) -> Iterator[Workers]:
    """Find or start the workers of a run; see `opened_workers`.

    Raises
    ------
    UsageError
        If they are on another kind of device than is asked for.
    """
    from ..cluster.workers import opened_workers

    if engine == "dask" and workers is None and gpus is None:
        on_gpus = device.startswith("cuda") or (device == "auto" and count_devices())
        workers, gpus = (None, "all") if on_gpus else (max(1, N_CORES), None)
    with opened_workers(engine, workers, gpus) as found:
        if device.partition(":")[0] not in ("auto", found.device):
            raise UsageError(
                f"the device asked for is {device}; the workers are on the {found.device}"
            )
        yield found


def begin_run(
    workers: Workers,
    plan: Plan,
    scan: Path,
    pipeline: Pipeline,
    folder: RunFolder,
    *,
    allow_missing_frames: bool,
) -> None:
    """Tell workers what the run is."""
    from ..cluster.section_job import RunJob
    from ..cluster.worker import versions_here

    workers.job = RunJob(
        scan=scan,
        pipeline=pipeline,
        allow_missing_frames=allow_missing_frames,
        files=tuple(path.absolute() for path in files_read(scan, pipeline)),
        identity={name: folder.identity[name] for name in ("device", "methods", "input")},
        versions=versions_here(),
        device=workers.device,
        budget_bytes=plan.budget_bytes - plan.reserved_bytes,
        format=folder.format,
        syncs=workers.are_elsewhere,
    )


def worker_budgets(
    facts: tuple[WorkerFacts, ...], kind: str, memory: str | int | None, host: str | int | None
) -> Budgets:
    """Budgets with which a plan fits every worker.

    `memory` is that of each worker; host memory beside GPUs is that of a machine, of which its
    workers have equal shares. So is the memory that is free, where none is given on the CPU.
    """
    n_on = Counter(each.machine for each in facts)
    n_threads = max(each.n_threads for each in facts)

    def shared(given: str | int | None) -> int:
        whole = None if given is None else parse_bytes(given)
        return min((whole or each.host_free_bytes) // n_on[each.machine] for each in facts)

    if kind == "cpu":
        if host is not None:
            raise UsageError(
                "on the CPU the device's memory is the host's: give memory alone (--memory)"
            )
        budget = shared(None) if memory is None else parse_bytes(memory)
        return Budgets("cpu", budget, budget, 0, n_threads, in_processes=True)
    budget = min(each.free_bytes for each in facts) if memory is None else parse_bytes(memory)
    reserved = max(each.reserved_bytes for each in facts)
    return Budgets("cuda", budget, shared(host), reserved, n_threads, in_processes=True)


def plan_on_workers(
    workers: Workers,
    scan: Path,
    pipeline: Pipeline,
    *,
    memory: str | int | None,
    host_memory: str | int | None,
    block: BlockChoice,
    fit: FitChoice,
    estimator: str | None,
    allow_missing_frames: bool,
    saves_snapshots: bool,
) -> Plan:
    """Have a worker make the plan for all; parameters are those of `plan`."""
    budgets = worker_budgets(workers.facts, workers.device, memory, host_memory)
    options = (block, fit, estimator, allow_missing_frames, saves_snapshots)
    made: Plan = workers.submit(_plan, scan, pipeline, budgets, *options)
    return made


def check_plan_on_workers(workers: Workers, plan: Plan, scan: Path, pipeline: Pipeline) -> None:
    """Have a worker check that a plan is for this run; see `check_plan_here`."""
    check_in_files(plan)
    workers.submit(_check_plan, plan, scan, pipeline)


def check_unchanged_on_workers(
    workers: Workers,
    out: Path,
    unfinished: UnfinishedRun,
    identity: dict[str, Any],
    scan: Path,
    pipeline: Pipeline,
) -> None:
    """Have a worker check that a run would go on as it was; see `check_unchanged`."""
    check_in_files(unfinished.plan)
    workers.submit(_check_unchanged, out, unfinished, identity, scan, pipeline)


def identity_on_workers(workers: Workers, scan: Path, pipeline: Pipeline) -> dict[str, Any]:
    """Have a worker describe the run; see `run_identity`."""
    found: dict[str, Any] = workers.submit(_identity, scan, pipeline, workers.device)
    return found


def check_in_files(plan: Plan) -> None:
    """Check that several processes can carry a plan out.

    Raises
    ------
    PlanError
        If data between sections are to be in the memory of one.
    """
    for number, section in enumerate(plan.sections[:-1], start=1):
        if section.destination != "scratch file" or section.kept_bytes:
            place = "in memory" if section.destination != "device" else "on the device"
            raise PlanError(
                f"the plan keeps the output of section {number} {place} of one process: for "
                "several workers, plan with workers=N (--workers)"
            )


def _plan(
    scan: Path,
    pipeline: Pipeline,
    budgets: Budgets,
    block: BlockChoice,
    fit: FitChoice,
    estimator: str | None,
    allow_missing_frames: bool,
    saves_snapshots: bool,
) -> Plan:
    backend = _backend(budgets.kind)
    with opened(scan, pipeline, allow_missing_frames=allow_missing_frames) as source:
        spec = spec_of(source, backend)
        chooser = chooser_for(spec, budgets, backend, estimator, source)
        made = plan_pipeline(pipeline, spec, budgets, chooser, block=block, fit=fit)
        if saves_snapshots:
            less = budgets.without(snapshot_bytes(made))
            made = plan_pipeline(pipeline, spec, less, chooser, block=block, fit=fit)
    return made


def _check_plan(plan: Plan, scan: Path, pipeline: Pipeline) -> None:
    backend = _backend_of(plan)
    with opened(scan, pipeline, allow_missing_frames=True) as source:
        check_plan_here(plan, pipeline, source, backend, in_memory=False)


def _check_unchanged(
    out: Path,
    unfinished: UnfinishedRun,
    identity: dict[str, Any],
    scan: Path,
    pipeline: Pipeline,
) -> None:
    backend = _backend_of(unfinished.plan)
    with opened(scan, pipeline, allow_missing_frames=True) as source:
        check_unchanged(out, unfinished, identity, pipeline, source, backend)


def _identity(scan: Path, pipeline: Pipeline, kind: str) -> dict[str, Any]:
    return run_identity(pipeline, _backend(kind), files_read(scan, pipeline))


def _backend_of(plan: Plan) -> Backend:
    return _backend(plan.device.partition(":")[0])


def _backend(kind: str) -> Backend:
    return select_backend("cuda:0" if kind == "cuda" else "cpu")
