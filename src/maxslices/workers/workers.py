"""The workers of a run, and the connection to their cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.allocators import Device
from ..errors import DeviceError, UsageError
from ..pipeline import Pipeline
from ..runner.execute import SectionExecutor
from . import worker
from .local_cluster import GPU
from .section_job import RunJob, WorkerFacts, machine_here
from .shared_section import SharedSection
from .worker_calls import MOST_TRIES, WorkerCalls, call_on_all

if TYPE_CHECKING:
    from distributed import Client

ADDRESS = "dask:"
"""Prefix of a scheduler's address in the name of an engine."""
WAIT_S = 60
"""Seconds to wait for workers of an existing cluster. If a queue of jobs takes longer, the run can
be started once the workers exist."""
_POLL_S = 0.05
"""Seconds between two requests to the scheduler, of some ms each, while there are no workers."""


@dataclass(slots=True)
class Workers(SectionExecutor):
    """The workers of a run."""

    client: Client
    """Their cluster."""
    device: Device
    """Kind of device of each."""
    facts: tuple[WorkerFacts, ...]
    """Facts about each, from the start of the run."""
    job: RunJob | None = None
    """Data that are the same for all sections; None before the plan."""

    @property
    def resources(self) -> dict[str, float]:
        """Resources that a worker must have."""
        return {GPU: 1.0} if self.device == "cuda" else {}

    @property
    def are_elsewhere(self) -> bool:
        """True if a worker is on another machine than this process."""
        return {each.machine for each in self.facts} != {machine_here()}

    @property
    def is_here(self) -> bool:
        """False: methods run in the workers' processes."""
        return False

    @property
    def share_memory(self) -> bool:
        """True if they can open files in memory, because this process started them here."""
        return self.client.cluster is not None and not self.are_elsewhere

    @property
    def text(self) -> str:
        """Description of the workers in a line."""
        hosts = {each.machine for each in self.facts}
        devices = sorted({each.device for each in self.facts})
        counts = _counted(len(self.facts), "worker"), _counted(len(hosts), "host")
        return f"{' on '.join(counts)} ({', '.join(devices)})"

    def submit(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function on one worker; return its value or raise its error."""
        calls = WorkerCalls(self.client)
        answers = _Answers(calls)
        while True:
            if not calls.running:
                worker, *_ = wait_for_workers(calls, 1, self.resources)
                calls.begin(worker, None, function, *args)
            for _, value in answers.received():
                return value

    def section_run(self, *args: Any, **options: Any) -> SharedSection:
        """Make the run of a section; see `SectionRun` for the arguments."""
        assert self.job is not None
        calls, resources = WorkerCalls(self.client), self.resources
        return SharedSection(*args, **options, calls=calls, run_job=self.job, resources=resources)


@contextmanager
def connected(engine: str) -> Iterator[Client]:
    """Connect to the scheduler that an engine names.

    Raises
    ------
    UsageError
        If it is not a valid address, or certificates are missing.
    DeviceError
        If no scheduler answers.
    """
    from distributed import Client, Security
    from distributed.comm.addressing import get_address_host_port

    address = engine.removeprefix(ADDRESS)
    try:
        _, port = get_address_host_port(address)
        if not 0 < port < 2**16:
            raise ValueError(f"there is no port {port}")
        certificates = Security().get_connection_args("client").get("ssl_context")
        if address.startswith("tls:") and certificates is None:
            raise ValueError("no certificates are configured (distributed.comm.tls)")
    except ValueError as error:  # raised by a client, it would block for a minute
        raise UsageError(f"{engine}: {error}; write {ADDRESS}tcp://HOST:PORT") from None
    try:
        client = Client(address, set_as_default=False)
    except OSError as error:
        raise DeviceError(f"no scheduler answers at {address}: {error}") from None
    with client:
        yield client


@contextmanager
def opened_workers(client: Client, pipeline: Pipeline) -> Iterator[Workers]:
    """Find the workers of a cluster for a pipeline; close their files at the end.

    Raises
    ------
    DeviceError
        If there are no workers.
    """
    device, facts = describe_workers(WorkerCalls(client), pipeline)
    try:
        yield Workers(client, device, facts)
    finally:
        call_on_all(client, worker.close_section)


def _counted(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def wait_for_workers(
    calls: WorkerCalls, count: int, resources: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Wait for workers with these resources; address -> the scheduler's facts about each.

    Raises
    ------
    DeviceError
        If there are fewer after `WAIT_S` seconds.
    """
    until_s, wanted = time.monotonic() + WAIT_S, (resources or {}).keys()
    while True:
        info = {
            a: each for a, each in calls.workers().items() if wanted <= each["resources"].keys()
        }
        if len(info) >= count:
            return info
        if time.monotonic() > until_s:
            raise DeviceError(f"the cluster had {len(info)} workers for {WAIT_S} s")
        time.sleep(_POLL_S)


def describe_workers(
    calls: WorkerCalls, pipeline: Pipeline
) -> tuple[Device, tuple[WorkerFacts, ...]]:
    """Kind of device of the workers, and facts about each.

    Workers that end meanwhile are omitted.

    Raises
    ------
    DeviceError
        If there are no workers, one has several threads, or several end before they answer.
    """
    facts: dict[tuple[str, Device], WorkerFacts] = {}
    answers = _Answers(calls)
    while True:
        info = wait_for_workers(calls, 1)
        busy = [address for address, each in info.items() if each["nthreads"] != 1]
        if busy:
            raise DeviceError(
                f"worker {busy[0]} has {info[busy[0]]['nthreads']} threads, but a worker runs one "
                "block at a time: start more workers, each with --nthreads 1"
            )
        on_gpu = [address for address, each in info.items() if each["resources"].get(GPU)]
        device: Device = "cuda" if on_gpu else "cpu"
        wanted: list[tuple[str, Device]] = [(address, device) for address in on_gpu or info]
        if all(key in facts for key in wanted):
            return device, tuple(facts[key] for key in wanted)
        for key in wanted:
            if key not in facts and key[0] not in calls.running:
                calls.begin(key[0], key, worker.describe_worker, *key, pipeline)
        facts |= dict(answers.received())


@dataclass(slots=True)
class _Answers:
    """Values that workers return, and the number of workers that ended before they answered."""

    calls: WorkerCalls
    n_lost: int = 0

    def received(self) -> Iterator[tuple[Any, Any]]:
        """Wait for calls to end; yield the name of each and its value.

        Raises
        ------
        MaxslicesError
            An error that a call raised.
        DeviceError
            If too many workers ended before they answered.
        """
        for ended in self.calls.ended():
            if ended.answer is None:
                self.n_lost += 1
                if self.n_lost >= MOST_TRIES:
                    raise DeviceError(
                        f"{self.n_lost} workers ended before they answered, the last one "
                        f"{ended.worker}. Either memory ran out, or a module of the pipeline's "
                        "methods ends the process: run the pipeline in one process to see which"
                    )
            elif ended.answer.error is not None:
                raise ended.answer.error
            else:
                yield ended.name, ended.answer.value
