"""Refuse one allocation after another to a run: it ends well or in one clear line, and goes on.

``python -m tests.fuzz.refusals`` does so for every allocation of some runs, and prints a table. An
allocation is what a library or Python itself asks of the system, of `LEAST_BYTES` or more, and each
is refused once alone, and once with all that follow. Needs a C compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

import h5py
import numpy as np

from maxslices import registry
from maxslices.cli.main import main

from .child import Difference, mapped_bytes
from .kills import check_status, ended, finished, fork
from .random_runs import import_what_runs_need, results_in

SOURCE = Path(__file__).with_name("refuse_memory.c")
LEAST_BYTES = 2**16
PIPELINES = {
    "small": ["minus_log"],
    "fbp": ["dark_flat_field_correction", "minus_log", "fbp"],
    "filters": ["median_filter", "remove_stripe_ti", "remove_stripe_based_sorting"],
    "scratch files": ["paganin_filter", "remove_stripe_ti", "median_filter"],
}
FORMATS = {"small": "hdf5", "fbp": "hdf5", "filters": "tiff", "scratch files": "hdf5"}
MEMORY = {"scratch files": "6.5MB"}
MOST_BYTES = 200 * 10**6
"""Largest limit of the address space: with it runs end well."""
OUTCOMES = {
    0: "well",
    1: "an error",
    3: "an error",
    -signal.SIGABRT: "aborted",
    -signal.SIGSEGV: "broken off",
}
"""Exit status of a run -> how it ended. FFTW and HDF5 end a process to which they are refused
memory. It is asked for before they are called, so this takes memory that is refused a moment later.
"""
_BROKE_OFF = re.compile(r"Current thread.*?File \"[^\"]*?(\w+/\w+\.py\", line \d+)", re.DOTALL)
"""Where a process broke off, in what `faulthandler` says."""
SHAPE = (40, 24, 160)


def build(folder: Path) -> Path:
    """Compile the library that refuses."""
    library = folder / "refuse_memory.so"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise FileNotFoundError("there is no C compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True)
    return library


def write_scan(path: Path) -> None:
    """Write a scan with flats and darks."""
    with h5py.File(path, "w") as file:
        group = file.create_group("exchange")
        random = np.random.default_rng(0)
        group["data"] = random.integers(100, 4000, SHAPE, np.uint16)
        group["data_white"] = np.full((3, *SHAPE[1:]), 4000, np.uint16)
        group["data_dark"] = np.full((3, *SHAPE[1:]), 10, np.uint16)
        group["theta"] = np.linspace(0, 180, SHAPE[0])


class Refusing:
    """Runs to which allocations are refused; in a process with the library loaded."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder, self.out, self.log = folder, folder / "out", folder / "log.txt"
        registry.get("fbp")  # packages of methods are imported here: not all survive it
        shutil.rmtree(self.out, ignore_errors=True)
        self.name, self.library = name, ctypes.CDLL(None)
        self.library.refuse.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_size_t]
        steps = "".join(f"- method: {method}\n" for method in PIPELINES[name])
        (folder / "pipeline.yaml").write_text(steps)
        self.options = ["--block", "7", "--format", FORMATS[name]]
        self.options += ["--memory", MEMORY[name]] if name in MEMORY else []

    def run(self, first: int, last: int, *options: str, most_bytes: int | None = None) -> int:
        """Run in a child, without the allocations `first` to `last`; its exit status.

        With `most_bytes`, the address space may grow by so much, whatever plans know of it.
        """
        paths = [str(self.folder / each) for each in ("scan.h5", "pipeline.yaml", "out")]

        def go() -> None:
            if most_bytes is not None:
                for module in ("devices.cpu", "api.resources"):
                    mock.patch(f"maxslices.{module}.memory_limits", return_value=[]).start()
                limit = mapped_bytes() + most_bytes
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            self.library.refuse(first, last, LEAST_BYTES)
            status = main(["run", *paths, "--device", "cpu", *options])
            n_seen = self.library.allocations_seen()
            self.library.refuse(1, 0, LEAST_BYTES)
            (self.folder / "seen").write_text(str(n_seen))
            sys.stdout.flush()
            os._exit(status)

        self.log.unlink(missing_ok=True)
        return ended(fork(go, self.log), self.log)

    def refuse_each(self, step: int) -> Counter[str]:
        """Refuse every `step`-th allocation, alone and with all after it; counts of outcomes.

        A run that ends otherwise than well or in a clear line, or comes out otherwise once it has
        gone on, is a fault.
        """
        check_status(self.run(1, 0, *self.options), self.log, (0,))
        wanted = self.results()
        n_seen = int((self.folder / "seen").read_text())
        counts: Counter[str] = Counter()
        for first in range(1, n_seen + 1, step):
            for last in (first, 2**40):
                shutil.rmtree(self.out, ignore_errors=True)
                status = self.run(first, last, *self.options)
                self.check_one(f"{first} to {last} refused", status, wanted, counts)
        return counts

    def limit_each(self, step_bytes: int, most_bytes: int) -> Counter[str]:
        """Limit the address space to one amount after the other; counts of outcomes."""
        check_status(self.run(1, 0, *self.options), self.log, (0,))
        wanted, counts = self.results(), Counter[str]()
        for more in range(0, most_bytes, step_bytes):
            shutil.rmtree(self.out, ignore_errors=True)
            status = self.run(1, 0, *self.options, most_bytes=more)
            self.check_one(f"{more} bytes allowed", status, wanted, counts)
        return counts

    def check_one(
        self, what: str, status: int, wanted: dict[str, bytes], counts: Counter[str]
    ) -> None:
        """Check how a run ended; a fault is printed and counted."""
        try:
            self.check(what, status, wanted, counts)
        except Difference as fault:
            counts["fault"] += 1
            print(fault, flush=True)

    def check(self, what: str, status: int, wanted: dict[str, bytes], counts: Counter[str]) -> None:
        """Count how a run ended, have it go on if it did not end well, and compare."""
        said, text = f"{self.name}, {what}: ", self.log.read_text()
        if status not in OUTCOMES or "Traceback" in text or (status and not text):
            raise Difference(f"{said}it ended with {status}: {text[-4000:]}")
        place = _BROKE_OFF.search(text)
        counts[OUTCOMES[status] + (f" in {place[1]}" if place else "")] += 1
        if not finished(self.out):
            unfinished = (self.out / ".run/journal").exists()
            counts["went on" if unfinished else "began anew"] += 1
            status = self.run(1, 0, *(["--resume"] if unfinished else self.options))
            check_status(status, self.log, (0,))
        if self.results() != wanted:
            raise Difference(f"{said}the results are others")
        names = [p.name for p in self.out.iterdir() if p.name.startswith(".")]
        if names:
            raise Difference(f"{said}{names} are left")

    def results(self) -> dict[str, bytes]:
        """Content of the results."""
        return {name: array.tobytes() for name, array in results_in(self.out).items()}


def main_() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.refusals", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(PIPELINES))
    parser.add_argument("--step", type=int, default=1, help="allocations from one to the next")
    parser.add_argument("--limit", type=int, metavar="MB", help="limit the address space instead")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="maxslices-refusals-") as name:
        folder = Path(name)
        if "LD_PRELOAD" not in os.environ:
            environment = {**os.environ, "LD_PRELOAD": str(build(folder))}
            environment["MAXSLICES_RECORDS"] = str(folder / "records")
            return subprocess.run([sys.executable, "-m", "tests.fuzz.refusals", *sys.argv[1:]],
                                  env=environment, check=False).returncode  # fmt: skip
        import_what_runs_need(folder)
        write_scan(folder / "scan.h5")
        faults = 0
        for each in parsed.names:
            if parsed.limit:
                counts = Refusing(each, folder).limit_each(parsed.limit * 10**6, MOST_BYTES)
            else:
                counts = Refusing(each, folder).refuse_each(parsed.step)
            faults += counts["fault"]
            print(f"{each:<16}", ", ".join(f"{n} {k}" for k, n in counts.items()), flush=True)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main_())
