"""Run a function in a forked child with limits of time and memory."""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from maxslices.errors import MaxslicesError

CPU_S = 5
"""CPU seconds that a case may take. Small files take less than a tenth of that."""
WALL_S = 60
"""Wall-clock seconds after which a waiting case counts as hanging. A case that only waits for a
core of a busy machine has ten times as long."""
GROWTH_BYTES = 300_000_000
"""Memory that a case may add to the process. The files have kilobytes."""
MAPPED_BYTES = 2**31
"""Address space that a case may add: beyond it an allocation fails instead of the machine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case ended."""

    kind: str
    """"fine", "refused", or a fault: "traceback", "hang", "died", "memory", "difference"."""
    text: str = ""
    """The error's message, or the traceback."""

    @property
    def is_fault(self) -> bool:
        """True unless the case ended well or was refused in one clear message."""
        return self.kind not in ("fine", "refused")


class Difference(Exception):
    """The result is wrong and no error was reported."""


def in_child(case: Callable[[], object], wall_s: float | None = None) -> Outcome:
    """Run a case in a child process and return its outcome.

    Parameters
    ----------
    case : callable
        The case.
    wall_s : float, optional
        Wall-clock seconds after which it counts as hanging; `WALL_S` if not given.
    """
    wall_s = WALL_S if wall_s is None else wall_s
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            outcome = _limited(case)
        except BaseException:  # noqa: BLE001  (a fault of this file)
            outcome = Outcome("traceback", traceback.format_exc())
        with suppress(OSError):
            os.write(writing, json.dumps([outcome.kind, outcome.text[-60_000:]]).encode())
        os._exit(0)
    os.close(writing)
    try:
        output = _output(reading, child, wall_s)
    finally:
        os.close(reading)
    _, status = os.waitpid(child, 0)
    if output is None:
        return Outcome("hang", f"it did not end within {wall_s} s")
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        kind = "hang" if number == signal.SIGXCPU else "died"
        return Outcome(kind, f"ended by {signal.Signals(number).name}")
    if not output:
        return Outcome("died", f"ended with status {status}")
    return Outcome(*json.loads(output))


def cases(
    kind: str, seed: int, case: Callable[[random.Random], object], wall_s: float | None = None
) -> Iterator[tuple[str, Outcome]]:
    """Run a case endlessly with new random numbers; yield its name and outcome."""
    for number in itertools.count():
        name = f"{kind} {seed} {number}"
        yield name, in_child(lambda: case(random.Random(name)), wall_s)  # noqa: B023


def _output(reading: int, child: int, wall_s: float) -> bytes | None:
    """Output of the child, or None if it hung and was killed."""
    output = b""
    while True:
        if not wait_for(reading, child, wall_s):
            os.kill(child, signal.SIGKILL)
            return None
        part = os.read(reading, 65536)
        if not part:
            return output
        output += part


def wait_for(file: int, child: int, wall_s: float) -> bool:
    """Wait until a file can be read; False if the child that writes it hangs."""
    for _ in range(10):
        ready, _, _ = select.select([file], [], [], wall_s)
        if ready:
            return True
        if not any(_wants_a_core(child) or time.sleep(0.1) for _ in range(10)):
            return False
    return False


def _wants_a_core(process: int) -> bool:
    """True if a thread of a process or of its children is runnable or waits for a disk."""
    with suppress(OSError):  # the process has ended meanwhile
        for thread in Path(f"/proc/{process}/task").iterdir():
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
            children = (thread / "children").read_text().split()
            if state in "RD" or any(_wants_a_core(int(each)) for each in children):
                return True
    return False


def _limited(case: Callable[[], object]) -> Outcome:
    """Run a case within limits, in this process."""
    used_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used_s) + CPU_S, int(used_s) + CPU_S + 1))
    resident = _statm(1)
    resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes() + MAPPED_BYTES,) * 2)
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the high-water mark begins here, not with the parent's
    try:
        case()
        outcome = Outcome("fine")
    except MaxslicesError as error:
        outcome = Outcome("refused", str(error))
    except Difference as error:
        outcome = Outcome("difference", str(error))
    except MemoryError:
        outcome = Outcome("memory", traceback.format_exc())
    except BaseException:  # noqa: BLE001  (any exception is a fault to report)
        outcome = Outcome("traceback", traceback.format_exc())
    grown = _peak() - resident
    if grown > GROWTH_BYTES and not outcome.is_fault:
        return Outcome("memory", f"it took {grown / 1e6:.0f} MB, then: {outcome}")
    return outcome


def mapped_bytes() -> int:
    """Address space of this process."""
    return _statm(0)


def _statm(field: int) -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[field]) * resource.getpagesize()


def _peak() -> int:
    """Highest resident bytes of this process."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
