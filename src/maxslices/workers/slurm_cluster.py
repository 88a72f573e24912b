"""Workers that SLURM starts, a job for each."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from ..errors import DeviceError, UsageError
from .local_cluster import GPU

if TYPE_CHECKING:
    from dask_jobqueue.slurm import SLURMCluster, SLURMJob
    from distributed import Client

_POLL_S = 1.0
"""Seconds between two looks whether a worker is there; each is a question to this process alone."""
_LOOK_S = 30.0
"""Seconds between two calls of squeue, a load on the site's controller."""
ANSWER_S = 60.0
"""Seconds for which sbatch and squeue are waited for: their own limit for the controller's answer
is 10 to 20 (``MessageTimeout``), and a busy site raises it."""
_ASKS_FOR_GPU = re.compile(r"(?:^|\s)(?:--gres|--gpus|-G)")
"""Options of sbatch for GPUs; a partition may be called gpu as well."""
_UNASKED = ("--cpus-per-task=", "--mem=", "-t ")
"""Directives that dask-jobqueue makes up where nobody has configured it; without them the site's
own defaults hold."""


@contextmanager
def slurm_client(
    options: str,
    workers: int | None,
    gpus: int | Literal["all"] | None,
    tell: Callable[[str], None],
) -> Iterator[Client]:
    """Submit a job for each worker, wait for the first one, and cancel them at the end.

    What is in dask-jobqueue's configuration (``jobqueue.yaml``) holds too.

    Parameters
    ----------
    options : str
        Options of sbatch for each job, such as ``"-p gpu -t 02:00:00 -A project"``.
    workers : int or None
        Jobs without a GPU.
    gpus : int, "all" or None
        Jobs with a GPU each.
    tell : callable
        Called with a line on the jobs.

    Raises
    ------
    UsageError
        If their number is missing, or dask-jobqueue is not installed.
    DeviceError
        If SLURM refuses them, or all end before a worker is there.
    """
    count = workers if gpus is None else gpus
    if not isinstance(count, int) or (workers is not None and gpus is not None) or count < 1:
        raise UsageError("with slurm give the number of jobs: workers (CPU) or gpus, one a job")
    try:
        from dask_jobqueue.slurm import SLURMCluster
        from distributed import Client
    except ModuleNotFoundError:
        raise UsageError("SLURM needs dask-jobqueue: pip install 'maxslices[dask]'") from None
    refused: list[str] = []
    settings = _settings(options, gpus is not None)
    with SLURMCluster(job_cls=_job_class(refused), **settings) as cluster:  # type: ignore[arg-type]
        _check(cluster.job_script())
        cluster.scale(count)
        with Client(cluster, set_as_default=False) as client:
            _wait(cluster, client, count, refused, tell)
            yield client


def _job_class(refused: list[str]) -> type[SLURMJob]:
    """Class of jobs that add to `refused` why SLURM did not take them.

    An error in `start` reaches nobody but asyncio, which logs it.
    """
    from dask_jobqueue.slurm import SLURMJob
    from distributed.core import Status

    class Job(SLURMJob):
        async def start(self) -> None:
            try:
                await super().start()  # type: ignore[no-untyped-call]
            except (RuntimeError, ValueError) as error:  # of sbatch; its answer has no number
                refused.append(_said_by_sbatch(str(error).rpartition("stderr:\n")[2]))
                self.status = Status.running  # the cluster insists; without a number it is no job

    return Job


def _said_by_sbatch(text: str) -> str:
    """What sbatch wrote, in a line."""
    lines = [line.removeprefix("sbatch: ").strip() for line in text.splitlines()]
    return "; ".join(filter(None, lines)) or "it does not say why"


def _check(script: str) -> None:
    """Have SLURM look at a job without running it: what sbatch says later only goes to a log.

    Raises
    ------
    DeviceError
        If SLURM would refuse it.
    """
    try:
        tried = subprocess.run(
            ["sbatch", "--test-only"],
            input=script,
            capture_output=True,
            text=True,
            check=False,
            timeout=ANSWER_S,
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"sbatch did not answer in {ANSWER_S:.0f} s: is the site's SLURM controller at work "
            "(sinfo)?"
        ) from None
    except FileNotFoundError:
        raise DeviceError("there is no sbatch here: run this where jobs are submitted") from None
    except OSError as error:
        raise DeviceError(f"sbatch cannot be run: {error.strerror}") from None
    if tried.returncode:
        raise DeviceError(f"SLURM refuses the jobs: {_said_by_sbatch(tried.stderr)}")


def _settings(options: str, on_gpus: bool) -> dict[str, Any]:
    """Arguments of dask-jobqueue: a worker with one thread in each job."""
    import dask

    def configured(name: str) -> Any:
        return dask.config.get(f"jobqueue.slurm.{name}", None)

    extra = ["--nthreads", "1", "--memory-limit", "0"]
    directives = [*(configured("job-extra-directives") or [])]
    if on_gpus:
        extra += ["--resources", f"{GPU}=1"]
        if not any(_ASKS_FOR_GPU.search(each) for each in (*directives, options)):
            directives.append("--gres=gpu:1")
    if options.strip():
        directives.append(options)
    settings = {
        "processes": 1,
        "job_name": "maxslices",
        # on any free port: several people submit from one machine
        "scheduler_options": {"dashboard_address": ":0", **(configured("scheduler-options") or {})},
        "job_extra_directives": directives,
        "worker_extra_args": [*(configured("worker-extra-args") or []), *extra],
        "python": configured("python") or sys.executable,
    }
    if configured("cores") is None:
        settings |= {"cores": 1, "memory": "1GB", "job_directives_skip": _UNASKED}
    return settings


def _wait(
    cluster: SLURMCluster,
    client: Client,
    count: int,
    refused: list[str],
    tell: Callable[[str], None],
) -> None:
    """Wait until a worker is there, as long as jobs wait or run."""
    tell(f"SLURM is asked for {count} job{'s' * (count > 1)}; the run begins with the first")
    looked_s, n_told = time.monotonic(), 0
    while not client.scheduler_info(n_workers=-1)["workers"]:
        if len(refused) == count:
            raise DeviceError(f"SLURM refuses the jobs: {refused[0]}")
        if len(refused) > n_told:
            n_told = len(refused)
            tell(f"SLURM refuses {n_told} of {count} jobs: {refused[-1]}")
        if time.monotonic() - looked_s > _LOOK_S:
            looked_s = time.monotonic()
            jobs = [job.job_id for job in cluster.workers.values() if job.job_id]
            if not _are_queued(jobs):
                raise DeviceError(
                    f"all jobs ended before a worker was there ({', '.join(jobs) or 'none began'}):"
                    " see what they wrote, slurm-JOB.out if nothing else was asked for"
                )
        time.sleep(_POLL_S)


def _are_queued(jobs: list[str]) -> bool:
    """True if SLURM knows one of the jobs as waiting or running, or does not answer."""
    asked = ["squeue", "--noheader", "--format=%i", f"--jobs={','.join(jobs)}"]
    if not jobs:
        return False
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=ANSWER_S)
    except (OSError, subprocess.TimeoutExpired):
        return True
    if found.returncode and "Invalid job id" not in found.stderr:
        return True
    return bool(found.stdout.strip())
