"""Random runs that are stopped by signals at random moments and resumed."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from maxslices import run
from maxslices.cli.main import _stoppable
from maxslices.errors import MaxslicesError
from maxslices.runner.folder.folder_place import PAGE_NAME
from maxslices.runner.folder.unfinished_run import find_unfinished
from maxslices.system.threads import NO_THREAD

from .child import WALL_S, Difference, Outcome, cases, wait_for
from .random_runs import (
    RandomRun,
    carry_out,
    draw_run,
    empty,
    import_what_runs_need,
    results_in,
)

ON_DISK = ("npy", "dls", "chunked", "zipped", "exchange", "tiffs", "pages")
"""Layouts of scans whose runs can be resumed."""
STOPS = 4
"""Most times that a run is stopped."""
N_CHILDREN = STOPS + 2
"""Most processes that a case starts one after another. Each may take `WALL_S`."""
STOPPED, REFUSED, FAULTY = 130, 1, 70
"""Exit status of a run that was stopped, that ended with an error of ours, and any other."""


def attempt(
    run_: RandomRun,
    out: Path,
    log: Path,
    delay_s: float | None = None,
    number: int = 0,
    prepare: Callable[[], object] = int,
) -> int:
    """Run or resume in a child, and return its exit status.

    Parameters
    ----------
    run_, out
        The run, and its folder.
    log : Path
        File to which its output is appended.
    delay_s, number
        Seconds after which it is sent a signal, and the signal.
    prepare : callable
        Is called in the child first.
    """
    resume = find_unfinished(out) is not None
    options = {"resume": True} if resume else run_.options

    def go() -> None:
        prepare()
        run(run_.scan, run_.pipeline(), out, device="cpu", **options)

    child = fork(go, log)
    if delay_s is not None:
        time.sleep(delay_s)
        with suppress(ProcessLookupError):
            os.kill(child, number)
    return ended(child, log)


def fork(go: Callable[[], None], log: Path) -> int:
    """Call a function in a child, with exit statuses as those of the command line."""
    child = os.fork()
    if child:
        return child
    status = FAULTY
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        faulthandler.enable()  # says where a library broke off
        faulthandler.dump_traceback_later(WALL_S - 5)  # and what hangs
        with _stoppable():
            go()
        status = 0
    except KeyboardInterrupt:
        status = STOPPED
    except (MaxslicesError, MemoryError) as error:
        print(f"error: {error}", flush=True)
        status = REFUSED
    except RuntimeError as error:
        if str(error) != NO_THREAD:
            traceback.print_exc()
        else:
            status = REFUSED
    except BaseException:  # noqa: BLE001 - what this is all for
        traceback.print_exc()
    finally:
        os._exit(status)


def ended(child: int, log: Path) -> int:
    """Wait for a child that prints to `log`; its exit status, negative for a signal.

    Raises
    ------
    Difference
        If it hangs.
    """
    waited = os.pidfd_open(child)
    try:
        ended_itself = wait_for(waited, child, WALL_S)
        if not ended_itself:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(waited)
    _, status = os.waitpid(child, 0)
    if not ended_itself:
        raise Difference(f"it did not end within {WALL_S} s: {log.read_text()[-6000:]}")
    return os.waitstatus_to_exitcode(status)


def stop_and_go_on(run_: RandomRun, place: Path, random_: random.Random) -> None:
    """Stop a run several times, resume it to its end, and compare its folder."""
    out, log = place / "out", place / "log.txt"
    began = time.monotonic()
    undisturbed(run_, place)
    took_s = time.monotonic() - began
    for _ in range(random_.randint(1, STOPS)):
        number = random_.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        status = attempt(run_, out, log, random_.uniform(0, 1.1 * took_s), number)
        check_status(status, log, (0, STOPPED, -signal.SIGKILL, -number))
        if finished(out):
            break
    end_and_compare(run_, place, out)


def undisturbed(run_: RandomRun, place: Path) -> None:
    """Run in a child, and compare what comes out with the oracle.

    Raises
    ------
    MaxslicesError
        If the run is refused.
    """
    log = place / "log.txt"
    status = ended(fork(lambda: carry_out(run_, place / "whole"), log), log)
    if status == REFUSED:
        raise MaxslicesError(log.read_text())
    check_status(status, log, (0,))
    log.unlink()


def end_and_compare(run_: RandomRun, place: Path, out: Path) -> None:
    """Resume a run until it is complete, and compare its folder."""
    log = place / "log.txt"
    if not finished(out):
        check_status(attempt(run_, out, log), log, (0,))
    check_same(place / "whole", out, log, run_)


def finished(out: Path) -> bool:
    """True if a folder holds a finished run, and no unfinished one."""
    return (out / "report.json").exists() and find_unfinished(out) is None


def check_status(status: int, log: Path, allowed: tuple[int, ...]) -> None:
    """Check how a run ended, and that it printed no traceback."""
    text = log.read_text() if log.exists() else ""
    if status not in allowed or "Traceback" in text:
        raise Difference(f"it ended with status {status}: {text[-6000:]}")


def check_same(whole: Path, out: Path, log: Path, run_: RandomRun) -> None:
    """Check that a folder has the names and the results of another, and nothing else."""
    names = [sorted(str(p.relative_to(f)) for p in f.rglob("*")) for f in (whole, out)]
    if find_unfinished(out) is None:  # killed when its report had its place, so it is whole
        names[1] = [name for name in names[1] if name not in (".run", ".run/journal")]
    if (
        PAGE_NAME not in names[1] and "no page of the run" in log.read_text()
    ):  # reported, thus not a fault
        names[0].remove(PAGE_NAME)
    if names[0] != names[1]:
        raise Difference(f"the folder holds {names[1]}, and not {names[0]}: {run_} {log}")
    right, found = results_in(whole), results_in(out)
    for name, array in right.items():
        if found[name].tobytes() != array.tobytes():
            raise Difference(f"{name} is another one after it went on: {run_}")


def kill_cases(kind: str, folder: Path, seed: int) -> Iterator[tuple[str, Outcome]]:
    """Stop random runs."""
    return disturbed(kind, folder, seed, stop_and_go_on)


def disturbed(
    kind: str, folder: Path, seed: int, go: Callable[[RandomRun, Path, random.Random], None]
) -> Iterator[tuple[str, Outcome]]:
    """Have random runs disturbed."""
    import_what_runs_need(folder)

    def case(random_: random.Random) -> None:
        place = empty(folder / "case")
        go(draw_run(random_, place, ON_DISK), place, random_)

    return cases(kind, seed, case, N_CHILDREN * WALL_S)
