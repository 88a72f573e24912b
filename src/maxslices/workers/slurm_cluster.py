"""Workers that SLURM starts through dask-jobqueue, one per job."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import DeviceError, UsageError
from .local_cluster import GPU, temporary_certificates

if TYPE_CHECKING:
    from dask_jobqueue.slurm import SLURMCluster, SLURMJob
    from distributed import Client, Security

_POLL_S = 0.2
"""Seconds between two checks for connected workers, which need no communication."""
LOOK_S = 30.0
"""Seconds between two calls of squeue, which load the site's controller."""
ANSWER_S = 60.0
"""Time limit of sbatch, squeue and scancel. They themselves wait 10 s for the controller
(``MessageTimeout``), and longer at busy sites."""
_ASKS_FOR_GPU = re.compile(r"(?:^|\s)(?:--gres|--gpus|-G)")
"""Options of sbatch for GPUs. A partition may have the name gpu too."""
NO_PROFILE = "export DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=False"
"""Dask's profiler keeps allocations of methods alive; see `local_cluster.SETTINGS`."""
_UNASKED = ("--cpus-per-task=", "--mem=", "-t ")
"""Directives that dask-jobqueue adds unless configured otherwise. Without them the site's defaults
apply."""


@contextmanager
def slurm_client(
    options: str,
    workers: int | None,
    gpus: int | Literal["all"] | None,
    tell: Callable[[str], None],
) -> Iterator[Client]:
    """Submit a job for each worker, wait for the first worker, and cancel all jobs at the end.

    The scheduler and the workers accept only connections with the certificate of this run. The
    configuration of dask-jobqueue (``jobqueue.yaml``) applies too.

    Parameters
    ----------
    options : str
        Options of sbatch for each job, such as ``"-p gpu -t 02:00:00 -A project"``.
    workers : int or None
        Number of jobs without a GPU.
    gpus : int, "all" or None
        Number of jobs with a GPU each.
    tell : callable
        Called with lines about the jobs.

    Raises
    ------
    UsageError
        If the number of jobs is missing, dask-jobqueue is not installed, or the certificates cannot
        be written.
    DeviceError
        If SLURM refuses all jobs, or all end before a worker has connected.
    """
    count = workers if gpus is None else gpus
    if not isinstance(count, int) or (workers is not None and gpus is not None) or count < 1:
        raise UsageError("with slurm, give the number of jobs: workers (CPU) or gpus, one per job")
    try:
        from dask_jobqueue.slurm import SLURMCluster
        from distributed import Client
    except ModuleNotFoundError:
        raise UsageError("SLURM needs dask-jobqueue: pip install 'maxslices[dask]'") from None
    if shutil.which("sbatch") is None:
        raise DeviceError("sbatch was not found: run this on a host that can submit jobs")
    refused: list[str] = []
    settings = job_settings(options, gpus is not None)
    with (
        _certificates_in_files() as security,
        SLURMCluster(
            job_cls=_job_class(refused),  # type: ignore[arg-type]
            security=security,
            **settings,
        ) as cluster,
    ):
        cluster.scale(count)
        with Client(cluster, set_as_default=False) as client:
            _wait(cluster, client, count, refused, tell)
            yield client


@contextmanager
def _certificates_in_files() -> Iterator[Security]:
    """Make certificates for one run, in a folder that only this user can enter.

    The folder is in the current one, where jobs write their output, or in the
    ``shared-temp-directory`` of dask-jobqueue's configuration. dask-jobqueue itself would keep such
    files until Python collects the cluster.
    """
    import dask
    from distributed import Security

    certificates = temporary_certificates().get_tls_config_for_role("worker")
    configured = dask.config.get("jobqueue.slurm.shared-temp-directory", None) or os.getcwd()
    folder = os.path.expanduser(os.path.expandvars(configured))
    try:
        own = tempfile.TemporaryDirectory(prefix=".maxslices-", dir=folder)
    except OSError as error:
        raise UsageError(
            f"cannot write the jobs' certificate to {folder} ({error.strerror}): change to a "
            "folder that all nodes share, or set jobqueue.slurm.shared-temp-directory"
        ) from None
    with own as name:
        key, cert = Path(name, "key.pem"), Path(name, "cert.pem")
        key.write_text(certificates["key"])
        cert.write_text(certificates["cert"])
        roles = {
            f"tls_{role}_{kind}": str(path)
            for role in ("client", "scheduler", "worker")
            for kind, path in (("key", key), ("cert", cert))
        }
        yield Security(tls_ca_file=str(cert), require_encryption=True, **roles)


def _job_class(refused: list[str]) -> type[SLURMJob]:
    """Class of jobs that append SLURM's reason to `refused` if it rejects them.

    Dask would log the error of a rejected job, and wait for its worker.
    """
    from dask_jobqueue.slurm import SLURMJob
    from distributed.core import Status

    class Job(SLURMJob):
        submit_command = f"timeout {ANSWER_S:g} sbatch"
        cancel_command = f"timeout {ANSWER_S:g} scancel"

        async def start(self) -> None:
            try:
                await super().start()  # type: ignore[no-untyped-call]
            except (RuntimeError, ValueError) as error:  # both texts end with stderr
                refused.append(_reason(str(error)))
                self.status = Status.running  # required by the cluster

    return Job


def _reason(text: str) -> str:
    """SLURM's reason, in a line, from the error of dask-jobqueue."""
    if "Exit code: 124\n" in text:  # of timeout
        return f"sbatch did not answer in {ANSWER_S:g} s. Check the controller with sinfo"
    lines = text.rpartition("stderr:\n")[2].splitlines()
    return "; ".join(filter(None, (line.removeprefix("sbatch: ").strip() for line in lines)))


def job_settings(options: str, on_gpus: bool) -> dict[str, Any]:
    """Arguments of dask-jobqueue for a worker with one thread in each job."""
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
        # any free port, as several users may submit from one machine
        "scheduler_options": {"dashboard_address": ":0", **(configured("scheduler-options") or {})},
        "job_extra_directives": directives,
        "worker_extra_args": [*(configured("worker-extra-args") or []), *extra],
        "python": configured("python") or sys.executable,
        "job_script_prologue": [*(configured("job-script-prologue") or []), NO_PROFILE],
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
    """Wait until a worker connects, as long as jobs wait or run."""
    tell(f"submitting {count} job{'s' * (count > 1)} to SLURM; the run starts with the first one")
    looked_s, n_refused, shown = time.monotonic(), 0, ""
    while not client.scheduler_info(n_workers=-1)["workers"]:
        if len(refused) == count:
            raise DeviceError(f"SLURM rejects the jobs: {refused[0]}")
        if len(refused) > n_refused:
            n_refused = len(refused)
            tell(f"SLURM rejects {n_refused} of {count} jobs: {refused[-1]}")
        if time.monotonic() - looked_s > LOOK_S:
            looked_s = time.monotonic()
            jobs = [job.job_id for job in cluster.workers.values() if job.job_id]
            states = _states(jobs)
            if states == "":
                raise DeviceError(
                    f"all jobs ended before a worker connected ({', '.join(jobs) or 'none began'}):"
                    " see their output, by default slurm-JOB.out"
                )
            if states not in (None, shown):
                shown = str(states)
                tell(f"still waiting for SLURM: {states}")
        time.sleep(_POLL_S)


def _states(jobs: list[str]) -> str | None:
    """States of the jobs that SLURM knows, with its reasons.

    Returns
    -------
    str or None
        For example ``"PENDING (Priority)"``; empty if no job waits or runs, None if SLURM does not
        answer.
    """
    if not jobs:
        return ""
    command = ["squeue", "--noheader", "--format=%T (%r)", f"--jobs={','.join(jobs)}"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode and "Invalid job id" not in answer.stderr:
        return None
    return ", ".join(sorted(set(answer.stdout.splitlines())))
