"""``python -m tests.fuzz [KIND ...] [--seconds N | --cases N] [--seed N]``: run random cases."""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from . import (
    commands,
    estimators,
    folder_machine,
    kills,
    pipelines,
    random_runs,
    scan_files,
    shortages,
)
from .child import Outcome

KINDS = {
    "hdf5": scan_files.scan_cases,
    "npy": scan_files.scan_cases,
    "tiff": scan_files.scan_cases,
    "pipelines": pipelines.pipeline_cases,
    "estimators": estimators.estimator_cases,
    "runs": random_runs.run_cases,
    "kills": kills.kill_cases,
    "disks": shortages.disk_cases,
    "memory": shortages.memory_cases,
    "folders": folder_machine.folder_cases,
    "sweeps": commands.sweep_cases,
    "info": commands.info_cases,
    "plans": commands.plan_cases,
    "tampered": commands.tampered_cases,
}
"""Kind of case -> generator of its cases."""
TURN_S = 5.0
"""Seconds of a kind's turn. A damaged file takes milliseconds, and a stopped and resumed run a
second."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--seconds", type=float, help="end after that time")
    parser.add_argument("--cases", type=int, help="end after that many cases of each kind")
    parser.add_argument("--seed", type=int, help="by default a new one")
    parsed = parser.parse_args()
    kinds = parsed.kinds or list(KINDS)
    unknown = set(kinds) - set(KINDS)
    if unknown:
        parser.error(f"unknown {', '.join(sorted(unknown))}: choose from {', '.join(KINDS)}")
    seed = random.randrange(10**6) if parsed.seed is None else parsed.seed
    print(f"seed {seed}", flush=True)
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # it logs all damage
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # file systems are unmounted, too
    with tempfile.TemporaryDirectory(prefix="maxslices-fuzz-") as folder:
        for name in ("away", "tmp", "records"):
            (Path(folder) / name).mkdir()
        os.environ["MAXSLICES_RECORDS"] = f"{folder}/records"
        os.environ["TMPDIR"] = tempfile.tempdir = f"{folder}/tmp"
        os.chdir(Path(folder) / "away")
        return run_cases(kinds, Path(folder), seed, parsed)


def run_cases(kinds: list[str], folder: Path, seed: int, parsed: argparse.Namespace) -> int:
    """Run cases of all kinds in turns up to the limits; 1 if there were faults."""
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    end_s = time.monotonic() + (parsed.seconds or float("inf"))
    limit = parsed.cases or (None if parsed.seconds else 100)
    with ExitStack() as held:
        running = {
            kind: held.enter_context(closing(KINDS[kind](kind, folder / kind, seed)))
            for kind in kinds
        }
        with suppress(KeyboardInterrupt):
            while running and time.monotonic() < end_s:
                for kind in list(running):
                    if not _turn(running[kind], folder, counts[kind], limit, end_s):
                        del running[kind]
    for kind, count in counts.items():
        print(
            f"{kind:<12}{sum(count.values()):>7}", ", ".join(f"{n} {k}" for k, n in count.items())
        )
    return int(any(k not in ("fine", "refused") for count in counts.values() for k in count))


def _turn(
    cases: Iterator[tuple[str, Outcome]],
    folder: Path,
    count: Counter[str],
    limit: int | None,
    end_s: float,
) -> bool:
    """Run cases of a kind for a while; False if none are left."""
    until_s = min(end_s, time.monotonic() + TURN_S)
    while time.monotonic() < until_s:
        if limit is not None and sum(count.values()) >= limit:
            return False
        try:
            name, outcome = next(cases)
        except StopIteration:
            return False
        if touched := _touched(folder):
            outcome = Outcome("touched", f"outside of its folder: {touched}; {outcome}")
        count[outcome.kind] += 1
        if outcome.is_fault:
            print(f"{name}: {outcome.kind}\n{outcome.text}", flush=True)
    return True


def _touched(folder: Path) -> list[str]:
    """Names in folders to which no case should write; they are removed."""
    paths = [path for name in ("away", "tmp") for path in (folder / name).iterdir()]
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return [str(path.relative_to(folder)) for path in paths]


if __name__ == "__main__":
    sys.exit(main())
