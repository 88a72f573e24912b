"""Runs on workers: starting them, their budgets, and calls before and during a run."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.units import parse_bytes
from ..devices import select_backend
from ..devices.cpu import CpuBackend
from ..devices.cuda_copies import count_devices
from ..errors import PlanError, UsageError
from ..io import Source
from ..io.files import path_of
from ..pipeline import Pipeline
from ..planner import Budgets, Plan
from ..runner import Results, RunFolder
from ..system.process_state import warnings_shown_before
from ..system.threads import MOST_THREADS, N_CORES
from .check_run import check_free, check_host_free
from .resources import check_limits
from .run_request import RunRequest
from .scan_and_output import files_read, opened
from .team import Team, identity_of, plan_source

if TYPE_CHECKING:
    from distributed import Client

    from ..workers.section_job import WorkerFacts
    from ..workers.workers import Workers


@contextmanager
def workers_of(
    request: RunRequest, pipeline: Pipeline, source: Source, folder: Results
) -> Iterator[RunOnWorkers]:
    """Find or start the workers of a run.

    Raises
    ------
    UsageError
        If they are on another kind of device than the request's.
    DeviceError
        If no worker can be found or started.
    """
    from ..workers.workers import opened_workers

    device = request.device_for(folder)
    with _client(request, device) as client, opened_workers(client, pipeline) as workers:
        if device.partition(":")[0] not in ("auto", workers.device):
            raise UsageError(f"the device is {device}, but the workers are on the {workers.device}")
        request.announce_workers(workers.text)
        assert isinstance(request.scan, str | os.PathLike)
        path = path_of(request.scan)
        scan = os.fspath(request.scan) if path is None else path.absolute()
        yield RunOnWorkers(request, pipeline, source, CpuBackend(), workers, scan)


@contextmanager
def held_workers(request: RunRequest) -> Iterator[dict[str, Any]]:
    """Find or start workers for several runs, and return the options with which they are used."""
    if not request.is_for_workers:
        yield {}
        return
    with _client(request, request.device) as client:
        yield {"engine": client, "workers": None, "gpus": None, "slurm": None}


def _client(request: RunRequest, device: str) -> AbstractContextManager[Client]:
    """Start or find the cluster of a request."""
    from ..workers.local_cluster import local_client
    from ..workers.slurm_cluster import slurm_client
    from ..workers.workers import connected

    workers, gpus, engine = request.workers, request.gpus, request.engine
    if request.slurm is not None:
        return slurm_client(request.slurm, workers, gpus, request.announce_workers)
    if engine not in ("local", "dask"):
        return connected(engine) if isinstance(engine, str) else nullcontext(engine)
    if workers is None and gpus is None:
        on_gpus = device.startswith("cuda") or (device == "auto" and count_devices())
        workers, gpus = (None, "all") if on_gpus else (max(1, N_CORES), None)
    return local_client(workers, gpus)


def check_for_workers(request: RunRequest) -> None:
    """Check a request for workers before anything is started.

    Raises
    ------
    UsageError
        If the engine is unknown, Dask is not installed or does not start, or the workers could not
        read the scan or write the results.
    """
    engine = request.engine
    if not request.is_for_workers:
        return
    is_known = engine in ("local", "dask") or str(engine).startswith("dask:")
    if isinstance(engine, str) and not is_known:
        raise UsageError(f"unknown engine {engine!r}: use local, dask or dask:ADDRESS")
    if request.slurm is not None and engine != "local":
        raise UsageError("slurm starts its own workers: leave the engine out")
    if engine not in ("local", "dask") and (request.workers, request.gpus) != (None, None):
        raise UsageError("workers and gpus need a cluster on this machine: leave them out")
    if importlib.util.find_spec("distributed") is None:
        raise UsageError("several workers need Dask: pip install 'maxslices[dask]'")
    try:
        importlib.import_module("dask")  # reads its configuration
    except Exception as error:  # noqa: BLE001 - invalid YAML or invalid settings
        reason = " ".join(str(error).split())
        raise UsageError(
            f"Dask does not start: {type(error).__name__}: {reason}; check its configuration "
            "in the folder or file that DASK_CONFIG names, or in ~/.config/dask"
        ) from None
    if not isinstance(request.scan, str | os.PathLike):
        raise UsageError("workers read the scan themselves: give its path, not an array")
    if request.folder_path is None:
        raise UsageError("workers write their results to files: name a folder as `out`")


@dataclass(frozen=True, slots=True)
class RunOnWorkers(Team):
    """Carries out a run on workers. This process joins their results on the CPU."""

    workers: Workers
    """The workers."""
    scan: Path | str
    """Absolute path of the scan, or its address."""

    def device_of(self, plan: Plan) -> str:
        """Return the kind of the plan's device."""
        return plan.device

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function on a worker, with pipeline, scan and device as last arguments."""
        run = self.scan, self.pipeline, self.workers.device
        return self.workers.submit(_call_with_scan, function, args, *run)

    def identity(self) -> dict[str, Any]:
        """Describe the run on a worker. See `run_identity`."""
        files = files_read(self.scan, self.pipeline)
        identity: dict[str, Any] = self.call(identity_of, files)
        return identity

    def check(self, plan: Plan) -> None:
        """Check that each worker can carry out a plan."""
        _check_in_files(plan)
        for each in _with_shares(self.workers.facts, self.workers.device):
            check_free(plan, each.place, each.free_bytes, each.host_free_bytes)

    def new_plan(self, folder: Results) -> tuple[Plan, None]:
        """Plan the run on a worker. The run corrects no records."""
        request, facts, kind = self.request, self.workers.facts, self.workers.device
        budgets = worker_budgets(facts, kind, request.memory, request.host_memory)
        plan = partial(
            _plan,
            block=request.block,
            estimator=request.estimator,
            scratch=request.scratch,
        )
        new_plan: Plan = self.call(plan, replace(budgets, shares_memory=self.workers.share_memory))
        for each in _with_shares(facts, kind):
            check_host_free(new_plan, each.place, each.host_free_bytes)
        return new_plan, None

    def begin(self, plan: Plan, folder: Results) -> Workers:
        """Send the run to the workers, which then run its sections."""
        from ..workers.section_job import RunJob
        from ..workers.worker import versions_here

        assert isinstance(folder, RunFolder)  # see `check_for_workers`
        self.workers.job = RunJob(
            scan=self.scan,
            pipeline=self.pipeline,
            files=tuple(path.absolute() for path in files_read(self.scan, self.pipeline)),
            identity={name: folder.identity[name] for name in ("device", "methods", "input")},
            versions=versions_here(),
            device=self.workers.device,
            budget_bytes=plan.budget_bytes - plan.reserved_bytes,
            syncs=self.workers.are_elsewhere,
        )
        return self.workers


def worker_budgets(
    facts: tuple[WorkerFacts, ...], kind: str, memory: str | int | None, host: str | int | None
) -> Budgets:
    """Return budgets with which a plan fits every worker.

    `memory` is the budget of each worker. With GPUs, `host` is the budget of a machine, which its
    workers share equally. On the CPU, the default of `memory` is an equal share of the free memory.

    Raises
    ------
    DoesNotFitError
        If a budget exceeds the limits of the workers.
    """
    free, n_on = _with_shares(facts, kind), Counter(each.machine for each in facts)
    if (host_budget := memory if kind == "cpu" else host) is not None:
        for each in facts:
            n_sharing = n_on[each.machine] if kind == "cpu" else 1
            limits = each.limits
            check_limits(parse_bytes(host_budget), limits, n_processes=n_sharing, place=each.host)
    n_threads = max(each.n_threads for each in facts)
    on_device = min(each.free_bytes for each in free) if memory is None else parse_bytes(memory)
    if kind == "cpu":
        if host is not None:
            raise UsageError(
                "on the CPU host memory is the device's memory: give only memory (--memory)"
            )
        return Budgets("cpu", on_device, on_device, 0, n_threads, len(facts))
    on_host = min(each.host_free_bytes for each in free)
    if host is not None:
        on_host = parse_bytes(host) // max(n_on.values())
    reserved = max(each.reserved_bytes for each in facts)
    return Budgets("cuda", on_device, on_host, reserved, MOST_THREADS, len(facts))


def _with_shares(facts: tuple[WorkerFacts, ...], kind: str) -> list[WorkerFacts]:
    """Give each worker an equal share of the free memory of its machine."""
    n_on = Counter(each.machine for each in facts)
    shared = []
    for each in facts:
        on_host = each.host_free_bytes // n_on[each.machine]
        on_device = on_host if kind == "cpu" else each.free_bytes
        shared.append(replace(each, free_bytes=on_device, host_free_bytes=on_host))
    return shared


def _check_in_files(plan: Plan) -> None:
    """Check that several processes can carry out a plan.

    Raises
    ------
    PlanError
        If data between sections would be in the memory of one process.
    """
    for number, section in enumerate(plan.sections[:-1], start=1):
        if section.destination != "scratch file":
            place = "in memory" if section.destination != "device" else "on the device"
            raise PlanError(
                f"the plan keeps the output of section {number} {place} of one process: for "
                "several workers, plan with workers=N (--workers)"
            )


def _plan(*args: Any, **options: Any) -> Plan:
    """Call `plan_source` without returning its resolver, which cannot be pickled."""
    return plan_source(*args, **options)[0]


def _call_with_scan(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    scan: Path | str,
    pipeline: Pipeline,
    kind: str,
) -> Any:
    """Call a function on a worker. See `RunOnWorkers.call`."""
    backend = select_backend("cuda:0" if kind == "cuda" else "cpu")
    with ExitStack() as held:
        with warnings_shown_before():
            source = held.enter_context(opened(scan, pipeline))
        return function(*args, pipeline, source, backend)
