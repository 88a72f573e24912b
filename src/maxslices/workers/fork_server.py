"""A process that has imported what workers need, of which they are forked.

Dask starts each worker as a new Python by default. Then every worker imports Dask, this package
and CuPy for itself, which takes 3 s of a processor, and holds a copy of all that. Forked
workers share what is imported: it is there once, and a worker that is replaced begins at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker

from ..errors import UsageError

SAFE_PATH = "PYTHONSAFEPATH"
"""What keeps Python from looking for modules in the folder it is started in."""
ON_GPUS = "MAXSLICES_WORKERS_ON_GPUS"
"""Set in the process that workers are forked of if they have GPUs."""


def start_fork_server(on_gpus: bool) -> str:
    """Start the process, unless there is one; the name of the way in which Dask starts workers.

    It imports beside what the caller does next.

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
    forkserver.set_forkserver_preload([f"{__package__}.forked"])
    # Ctrl-C in a terminal goes to all processes, and would end an import with a traceback. What the
    # server would start itself ends with unblocking it, so it is started before.
    with _environment(on_gpus):
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            forkserver.ensure_running()
        except OSError:  # no folder for its socket (TMPDIR), or too long a path for a socket
            return "spawn"
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return "forkserver"


@contextmanager
def _environment(on_gpus: bool) -> Iterator[None]:
    """Have processes that are started find modules where this one does, and know of their GPUs.

    multiprocessing starts them by ``python -c``, which looks into the current folder first: a
    numpy.py or types.py of the user's would be imported in place of what workers need.
    """
    wanted = {ON_GPUS: "1"} if on_gpus else {}
    if SAFE_PATH not in os.environ and os.getcwd() not in map(os.path.abspath, sys.path):
        wanted[SAFE_PATH] = "1"
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in wanted:
            del os.environ[name]


def leave_interrupts() -> None:
    """Leave Ctrl-C to the command, which ends the workers; called when all is imported.

    A worker that ended by itself would do so with a traceback, and be waited for. Programs that
    methods start have Ctrl-C, as a handler of Python's is not theirs.
    """
    if signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        return  # another process that imports these modules
    signal.signal(signal.SIGINT, _nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _nothing(_number: int, _frame: object) -> None:
    """Handle a signal by doing nothing."""
