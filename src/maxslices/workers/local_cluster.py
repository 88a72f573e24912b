"""Workers of this machine: a process for each GPU, or several on the CPU."""

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
"""Resource that a worker with a GPU offers."""
SETTINGS = {
    "distributed.worker.daemon": False,  # methods may start processes of their own
    # By default nannies let NumPy use one thread, so that results could differ in the last bit
    # from those of a run in one process.
    "distributed.nanny.pre-spawn-environ": {},
    # Every 10 ms the profiler takes the stack of each thread at work. A frame that it holds when
    # its function returns keeps what the function allocated, while the next call allocates as much
    # again: of paganin_filter 269 MB, beyond an estimate of 2.47 GB that was right to the byte
    # (H200, 2026-11-27).
    "distributed.worker.profile.enabled": False,
    "distributed.admin.log-format": "%(message)s",
    # Pages have no secret: other users of this machine could read them.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
"""Configuration of Dask for workers of this machine."""
WORKER_BYTES = 28 * 10**6
"""What a worker that does nothing has for itself on the CPU: anonymous memory of each of three,
beside what it shares with the process that it is forked of (Python 3.11, 2026-11-27)."""
REPLACE_MS = 2000
"""Milliseconds between two looks whether workers are to be replaced, which take some 0.1 ms."""
_LOOPBACK = "127.0.0.1"
"""Interface that schedulers, nannies and workers listen on."""


SAFE_PATH = "PYTHONSAFEPATH"
"""Keeps Python from looking for modules in the current folder, where one may be called numpy."""


def _start_fork_server(on_gpus: bool) -> str:
    """Start the process that workers are forked of, unless there is one.

    It imports what workers need, while the caller does something else: once for all workers, and
    not when one is replaced. The modules of methods may begin to use a GPU, which a forked process
    could not continue, so each worker imports these itself.

    Parameters
    ----------
    on_gpus : bool
        Whether workers have GPUs.

    Returns
    -------
    str
        "forkserver", or "spawn" where a system's own libraries do not stand being forked, or the
        process cannot be started.

    Raises
    ------
    UsageError
        If the current folder, which processes are started in, is gone, or the program is in no
        file that they could import.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError(
            "the current folder is gone, and workers cannot be started in it: go to one that is "
            "there (cd)"
        ) from None
    if getattr(sys.modules["__main__"], "__file__", None) == "<stdin>":
        raise UsageError(
            "workers import the program, which is in no file (python -): write it to one"
        )
    if sys.platform != "linux":
        return "spawn"
    modules = ["distributed", "scipy.ndimage", "maxslices.api.on_workers"]
    forkserver.set_forkserver_preload([*modules, *(["cupy"] if on_gpus else [])])
    is_set = SAFE_PATH in os.environ
    # Ctrl-C is blocked until `worker.dask_setup`. The tracker would unblock it when the server
    # starts it, so it is started before.
    os.environ.setdefault(SAFE_PATH, "1")
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    except OSError:  # no folder for its socket (TMPDIR), or too long a path for a socket
        return "spawn"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if not is_set:
            del os.environ[SAFE_PATH]
    return "forkserver"


@contextmanager
def local_client(workers: int | None, gpus: int | Literal["all"] | None) -> Iterator[Client]:
    """Start workers on this machine, each with a nanny that starts it anew if it is killed.

    Parameters
    ----------
    workers : int or None
        Processes on the CPU.
    gpus : int, "all" or None
        GPUs to use, with a process for each.

    Raises
    ------
    DeviceError
        If there are fewer GPUs, or a worker cannot be started.
    UsageError
        If neither or both are given, or memory does not suffice for so many.
    """
    if (workers is None) == (gpus is None):
        raise UsageError("give the number of processes on the CPU (workers), or of GPUs (gpus)")
    least_bytes, free_bytes = (workers or 0) * WORKER_BYTES, CpuBackend().free_bytes()
    if least_bytes > free_bytes:
        raise UsageError(
            f"{workers} workers take {format_bytes(least_bytes)} before they do "
            f"anything; {format_bytes(free_bytes)} are free: ask for one for each core"
        )
    way = _start_fork_server(on_gpus=gpus is not None)
    names = _gpu_names(gpus) if gpus is not None else []
    count = workers if workers is not None else len(names)
    if count < 1:
        raise UsageError(f"{count} workers cannot do anything: at least one is needed")
    # The process that a worker is forked of may be older than what is set here.
    own: list[dict[str, Any]] = [{"env": dict(os.environ)} for _ in range(count)]
    for options, name in zip(own, names, strict=False):
        options["env"]["CUDA_VISIBLE_DEVICES"] = name
        options["resources"] = {GPU: 1}
    with ExitStack() as held:
        # Dask sets the level when it is imported, and when it starts a cluster.
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
        # A nanny whose worker is killed while it starts gives up. Dask forgets that worker some
        # 15 s later, and then it can be started anew.
        replacing = PeriodicCallback(lambda: cluster.scale(count), REPLACE_MS)
        cluster.loop.add_callback(replacing.start)
        held.callback(cluster.loop.add_callback, replacing.stop)
        yield client


def temporary_certificates() -> Security:
    """Make certificates that only this process and its workers know.

    Other users of the machine can connect to a port of the loopback interface.

    Raises
    ------
    UsageError
        If the package that makes them is missing.
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
    """Make a temporary folder that only this user can enter, for as long as workers run.

    Workers import modules from their folder. Dask's default is a folder of one name for all users,
    whoever made it.

    Raises
    ------
    DeviceError
        If there is no place for temporary files.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix="maxslices-", ignore_cleanup_errors=True)
    except OSError as error:
        raise DeviceError(
            f"workers need a folder for temporary files: {error}; set TMPDIR to one"
        ) from None
    with made as folder:
        yield folder


def _nannies(common: dict[str, Any], own: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Describe the nanny of each worker, as a cluster wants it."""
    from distributed import Nanny

    class PatientNanny(Nanny):
        """A nanny that kills a worker that does not end soon, and waits no longer for its end.

        A worker that ends holds nothing that is needed: a share that is not done is done again. A
        process that is killed ends when the system has taken back its memory. With pinned memory,
        or pages of a file that wait for a disk, that can take longer than Dask waits (9 s by
        default) before it raises a TimeoutError (two H200s, 2026-11-27), although all results are
        written by then.
        """

        async def kill(self, timeout: float = END_S, reason: str = "nanny-kill") -> None:
            """End the worker; the system may still be freeing its memory when this returns."""
            with suppress(TimeoutError):
                await super().kill(min(timeout, END_S), reason)

    return {i: {"cls": PatientNanny, "options": {**common, **each}} for i, each in enumerate(own)}


def _started(workers: dict[int, Any], scheduler: dict[str, Any]) -> SpecCluster:
    """Start a cluster.

    Raises
    ------
    DeviceError
        If that fails, with the first error of those that Dask makes of it.
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
            f"{len(workers)} workers cannot be started: {type(first).__name__}: {first}; start "
            "fewer, or see to what they need: open files (ulimit -n), processes (ulimit -u), and "
            "a /dev/shm that can be written to"
        ) from error


def _gpu_names(gpus: int | Literal["all"]) -> list[str]:
    """Names of GPUs for CUDA_VISIBLE_DEVICES: of those that this process may see."""
    there = count_devices()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(i) for i in range(there)] if visible is None else visible.split(",")[:there]
    wanted = len(names) if gpus == "all" else gpus
    if wanted < 1 or wanted > len(names):
        raise DeviceError(
            f"gpus is {gpus}, of {len(names)} that are there: ask for 1 or more of these, or for "
            "processes on the CPU (workers)"
        )
    return names[:wanted]
