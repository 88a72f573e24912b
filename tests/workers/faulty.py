"""Methods that fail or end their process, as files request."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import warnings
from pathlib import Path

from maxslices import Pipeline, Registry, method, run
from tests.planner.ledgers import two
from tests.runner.resumable import content

faulty = Registry()


def _is_due(folder: str) -> bool:
    """True once for each file in a folder, which is removed."""
    for path in Path(folder).glob("due-*"):
        try:
            path.unlink()
        except FileNotFoundError:  # another worker has taken it
            continue
        return True
    return False


@method("projection", calc_max_slices=two, registry=faulty)
def failing(data, first_slice, folder: str, at: int, how: str):
    """Negate. If due, fail, or end or stop the process, at the block that starts with `at`."""
    if first_slice == at and _is_due(folder):
        if how == "failing":
            raise OSError("the table is away")
        os.kill(os.getpid(), signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    return ~data


@method("projection", calc_max_slices=two, registry=faulty)
def waiting(data, first_slice, folder: str, at: int):
    """Negate. From slice `at` on, wait while a file exists, for a minute at most."""
    until_s = time.monotonic() + 60
    while first_slice >= at and Path(folder).exists():
        if time.monotonic() > until_s:
            raise TimeoutError(f"{folder} still exists")
        time.sleep(0.01)
    return ~data


class LockedError(Exception):
    """An error that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("the lock is held")
        self.lock = threading.Lock()


class TwoValuesError(Exception):
    """An error that can be pickled, but not unpickled."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} is not {second}")


@method("projection", calc_max_slices=two, registry=faulty)
def raising(data, how: str):
    """Raise the exception with a name."""
    if how == "locked":
        raise LockedError
    if how == "two values":
        raise TwoValuesError(1, 2)
    if how == "recursion":
        return raising(data, how)
    raise KeyboardInterrupt


@method("projection", calc_max_slices=two, registry=faulty)
def with_processes(data):
    """Negate, with a process of its own."""
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0,))
    process.start()
    process.join()
    return ~data


@method("projection", calc_max_slices=two, registry=faulty)
def with_a_warning(data, first_slice):
    """Negate, and warn on the first slice."""
    if not first_slice:
        warnings.warn("the lamp is weak", stacklevel=1)
    return ~data


def of_faulty(how, folder, at=8):
    """Pipeline of one method that fails at slice `at`, as files in a folder say."""
    step = {"method": "failing", "parameters": {"folder": str(folder), "at": at, "how": how}}
    if how == "waiting":
        step = {"method": how, "parameters": {"folder": str(folder), "at": at}}
    return Pipeline.from_steps([step], faulty)


def check_as_alone(scan, pipeline, folder):
    """Check that results in a folder's ``out`` are those of a run in one process."""
    alone = run(scan, pipeline, folder / "alone", device="cpu", block=2)
    assert len(alone.files) == 1
    assert content(folder / "out") == content(folder / "alone")
