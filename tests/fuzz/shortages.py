"""Random runs that fail on a full disk or without memory, and are resumed with enough."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from .child import Outcome, mapped_bytes
from .kills import REFUSED, attempt, check_status, disturbed, end_and_compare, undisturbed
from .random_runs import RandomRun

DISK_BYTES = 2**22
"""Size of the disk that fills: some results with their report and journal, and not many."""
OF_A_LIBRARY = (-signal.SIGSEGV, -signal.SIGABRT)
"""Status of a process that HDF5 or FFTW ended, as they do where they find no memory."""
STACK_BYTES = 2**23
"""Address space of a thread's stack: a run starts a few threads and needs little else."""


def disk_cases(kind: str, folder: Path, seed: int) -> Iterator[tuple[str, Outcome]]:
    """Fill the disk of random runs without end; nothing where no small disk can be made."""
    disk = folder / "disk"
    disk.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        print(f"{kind}: left out, as no small disk can be mounted: {made.stderr.strip()}")
        return

    def fill(run_: RandomRun, place: Path, random_: random.Random) -> None:
        shutil.rmtree(disk / "out", ignore_errors=True)
        (disk / "filler").unlink(missing_ok=True)
        _fill_and_go_on(run_, place, disk, random_)

    try:
        yield from disturbed(kind, folder, seed, fill)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def _fill_and_go_on(run_: RandomRun, place: Path, disk: Path, random_: random.Random) -> None:
    """Run on a full disk, then with room, and compare the folder."""
    out, log, filler = disk / "out", place / "log.txt", disk / "filler"
    undisturbed(run_, place)
    needed = sum(p.stat().st_size for p in (place / "whole").rglob("*")) + 2**14
    room = random_.randrange(2 * needed)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, shutil.disk_usage(disk).free - room))
    # Mostly the disk is filled by another program after it was looked at.
    usage = shutil.disk_usage(disk)
    seen = usage._replace(free=10**12 if random_.random() < 0.8 else usage.free)
    with mock.patch("shutil.disk_usage", return_value=seen):
        status = attempt(run_, out, log)
    check_status(status, log, (0, REFUSED))
    filler.unlink()
    end_and_compare(run_, place, out)


def memory_cases(kind: str, folder: Path, seed: int) -> Iterator[tuple[str, Outcome]]:
    """Refuse memory to random runs, from some amount on."""
    return disturbed(kind, folder, seed, _refuse_and_go_on)


def _refuse_and_go_on(run_: RandomRun, place: Path, random_: random.Random) -> None:
    """Run with too small an address space, then with room, and compare the folder."""
    out, log = place / "out", place / "log.txt"
    undisturbed(run_, place)
    more = int(random_.uniform(0, 6 * STACK_BYTES))

    def refuse() -> None:
        # The limit itself is not seen, or nothing would begin.
        mock.patch("maxslices.devices.cpu.memory_limits", return_value=[]).start()
        mock.patch("maxslices.api.resources.memory_limits", return_value=[]).start()
        limit = mapped_bytes() + more
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    status = attempt(run_, out, log, prepare=refuse)
    check_status(status, log, (0, REFUSED, *OF_A_LIBRARY))
    end_and_compare(run_, place, out)
