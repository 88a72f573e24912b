"""Workers on this machine: a process for each GPU, or several on the CPU."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from typing import TYPE_CHECKING, Any, Literal

from ..core.units import format_bytes
from ..devices.cpu import CpuBackend
from ..devices.cuda_copies import count_devices
from ..errors import DeviceError, UsageError
from .worker_calls import END_S

if TYPE_CHECKING:
    from distributed import Client, Security, SpecCluster

GPU = "GPU"
"""Resource of a worker with a GPU."""
SETTINGS = {
    "distributed.worker.daemon": False,  # methods may start processes of their own
    # By default nannies limit NumPy to one thread, so results could differ in the last bit from
    # those of a run in one process.
    "distributed.nanny.pre-spawn-environ": {},
    # Every 10 ms the profiler samples the stack of each running thread. A frame that it holds after
    # its function has returned keeps the function's arrays alive, while the next call allocates as
    # much again. With paganin_filter that was 269 MB beyond an estimate of 2.47 GB, which was exact
    # (H200, 2026-11-27).
    "distributed.worker.profile.enabled": False,
    "distributed.admin.log-format": "%(message)s",
    # Pages are not protected, so other users of this machine could read them.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
"""Configuration of Dask for workers of this machine."""
WORKER_BYTES = 28 * 10**6
"""Memory of an idle worker on the CPU: anonymous memory of each of three, beyond the memory shared
with the process that they are forked from (Python 3.11, 2026-11-27)."""
REPLACE_MS = 2000
"""Milliseconds between two checks for workers to replace, which take about 0.1 ms."""
_LOOPBACK = "127.0.0.1"
"""Interface that schedulers, nannies and workers listen on."""

SAFE_PATH = "PYTHONSAFEPATH"
"""Keeps Python from importing modules from the current folder, such as a file numpy.py."""


def _start_fork_server(on_gpus: bool) -> str:
    """Start the process that workers are forked from, unless it exists.

    It imports the modules that workers need, in the background, once for all workers and their
    replacements. The modules of methods may start to use a GPU, which forked processes could not
    share, so each worker imports these itself.

    Parameters
    ----------
    on_gpus : bool
        Whether workers have GPUs.

    Returns
    -------
    str
        "forkserver", or "spawn" if system libraries do not support forking, or the process cannot
        be started.

    Raises
    ------
    UsageError
        If the current folder does not exist any more, or the program is not in a file, which
        workers import.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError(
            "workers cannot be started, because the current folder does not exist any more: change "
            "to another (cd)"
        ) from None
    if getattr(sys.modules["__main__"], "__file__", None) == "<stdin>":
        raise UsageError(
            "workers import the program, which is not in a file (python -): write it to a file"
        )
    if sys.platform != "linux":
        return "spawn"
    modules = ["distributed", "scipy.ndimage", "maxslices.api.on_workers"]
    forkserver.set_forkserver_preload([*modules, *(["cupy"] if on_gpus else [])])
    is_set = SAFE_PATH in os.environ
    # Ctrl-C is blocked until `worker.dask_setup`. The resource tracker would unblock it when the
    # server starts the tracker, so the tracker is started before.
    os.environ.setdefault(SAFE_PATH, "1")
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    except OSError:  # no folder for its socket (TMPDIR), or its path is too long
        return "spawn"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if not is_set:
            del os.environ[SAFE_PATH]
    return "forkserver"


@contextmanager
def local_client(workers: int | None, gpus: int | Literal["all"] | None) -> Iterator[Client]:
    """Start workers on this machine, each with a nanny that restarts it if it is killed.

    Parameters
    ----------
    workers : int or None
        Number of processes on the CPU.
    gpus : int, "all" or None
        Number of GPUs to use, with a process for each.

    Raises
    ------
    DeviceError
        If there are fewer GPUs, or workers cannot be started.
    UsageError
        If neither or both are given, or there is too little memory.
    """
    if (workers is None) == (gpus is None):
        raise UsageError("give the number of processes on the CPU (workers), or of GPUs (gpus)")
    least_bytes, free_bytes = (workers or 0) * WORKER_BYTES, CpuBackend().free_bytes()
    if least_bytes > free_bytes:
        raise UsageError(
            f"{workers} idle workers take {format_bytes(least_bytes)}, and "
            f"{format_bytes(free_bytes)} are free: start one for each core"
        )
    way = _start_fork_server(on_gpus=gpus is not None)
    names = _gpu_names(gpus) if gpus is not None else []
    count = workers if workers is not None else len(names)
    if count < 1:
        raise UsageError(f"{count} workers were requested: at least one is needed")
    # The process that a worker is forked from may have an older environment.
    own: list[dict[str, Any]] = [{"env": dict(os.environ)} for _ in range(count)]
    for options, name in zip(own, names, strict=False):
        options["env"]["CUDA_VISIBLE_DEVICES"] = name
        options["resources"] = {GPU: 1}
    with ExitStack() as held:
        # Dask sets the level on import, and when it starts a cluster.
        logger = logging.getLogger("distributed")
        held.callback(logger.setLevel, logger.level)
        import dask
        from distributed import Client, Scheduler
        from tornado.ioloop import PeriodicCallback

        listening = {
            "host": _LOOPBACK,
            "dashboard": False,
            "dashboard_address": f"{_LOOPBACK}:0",
            "protocol": "tls://",
            "security": temporary_certificates(),
        }
        common = {
            **listening,
            "nthreads": 1,
            "memory_limit": 0,
            "local_directory": held.enter_context(_own_folder()),
            "silence_logs": logging.CRITICAL,
            "preload": ["maxslices.workers.worker"],
        }
        settings = {**SETTINGS, "distributed.worker.multiprocessing-method": way}
        held.enter_context(dask.config.set(settings))
        scheduler = {"cls": Scheduler, "options": listening}
        cluster = held.enter_context(_started(_nannies(common, own), scheduler))
        client = held.enter_context(Client(cluster, set_as_default=False))
        # A nanny gives up if its worker is killed while it starts. Dask forgets that worker after
        # about 15 s, and then it can be started again.
        replacing = PeriodicCallback(lambda: cluster.scale(count), REPLACE_MS)
        cluster.loop.add_callback(replacing.start)
        held.callback(cluster.loop.add_callback, replacing.stop)
        yield client


def temporary_certificates() -> Security:
    """Make certificates that only this process and its workers have.

    Other users of the machine can connect to a port of the loopback interface.

    Raises
    ------
    UsageError
        If the required package is missing.
    """
    from distributed import Security

    try:
        security: Security = Security.temporary()
    except ImportError as error:
        raise UsageError(
            f"workers need certificates: {error}; pip install 'maxslices[dask]'"
        ) from None
    return security


@contextmanager
def _own_folder() -> Iterator[str]:
    """Make a temporary folder that only this user can enter, while workers run.

    Workers import modules from their folder. Dask's default folder has the same name for all users,
    so anyone may have created it.

    Raises
    ------
    DeviceError
        If there is no folder for temporary files.
    """
    try:
        own = tempfile.TemporaryDirectory(prefix="maxslices-", ignore_cleanup_errors=True)
    except OSError as error:
        raise DeviceError(
            f"workers need a folder for temporary files ({error}): set TMPDIR to a writable one"
        ) from None
    with own as folder:
        yield folder


def _nannies(common: dict[str, Any], own: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Options of a cluster for the nanny of each worker."""
    from distributed import Nanny

    class PatientNanny(Nanny):
        """A nanny that kills a worker that does not end soon, without waiting for its end.

        A worker that ends holds nothing of value, as an unfinished share is repeated. A killed
        process ends once the system has freed its memory. With pinned memory, or pages that wait
        for a disk, that can take longer than Dask waits (9 s by default). It then raises a
        TimeoutError (two H200s, 2026-11-27), although all results are written.
        """

        async def kill(self, timeout: float = END_S, reason: str = "nanny-kill") -> None:
            """End the worker. The system may still free its memory when this returns."""
            with suppress(TimeoutError):
                await super().kill(min(timeout, END_S), reason)

    return {i: {"cls": PatientNanny, "options": {**common, **each}} for i, each in enumerate(own)}


def _started(workers: dict[int, Any], scheduler: dict[str, Any]) -> SpecCluster:
    """Start a cluster.

    Raises
    ------
    DeviceError
        If that fails, with the original error of Dask's chain.
    """
    from distributed import SpecCluster

    try:
        return SpecCluster(
            workers=workers,
            scheduler=scheduler,
            security=scheduler["options"]["security"],
            silence_logs=logging.CRITICAL,
        )
    except (OSError, RuntimeError) as error:
        first: BaseException = error
        while (before := first.__cause__ or first.__context__) is not None:
            first = before
        raise DeviceError(
            f"{len(workers)} workers cannot be started: {type(first).__name__}: {first}. Start "
            "fewer, or check the limits of open files (ulimit -n) and processes (ulimit -u), and "
            "that /dev/shm is writable"
        ) from error


def _gpu_names(gpus: int | Literal["all"]) -> list[str]:
    """Names of visible GPUs, for CUDA_VISIBLE_DEVICES."""
    n_devices = count_devices()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = (
        [str(i) for i in range(n_devices)] if visible is None else visible.split(",")[:n_devices]
    )
    wanted = len(names) if gpus == "all" else gpus
    if wanted < 1 or wanted > len(names):
        raise DeviceError(
            f"gpus is {gpus}, and this machine has {len(names)}: use 1 or more of these, or "
            "processes on the CPU (workers)"
        )
    return names[:wanted]
