"""Stop runs at random moments, have them go on, and compare what comes out with a whole run.

    python docs/scripts/kill_resume.py OUT --device cpu --kills 200 --seed 1
    python docs/scripts/kill_resume.py OUT --device cuda:0 --kills 20 --size middle
    python docs/scripts/kill_resume.py OUT --device cuda:0 --kills 0 --overhead 3 --size benchmark

Each case is one of three pipelines, in HDF5 or TIFF. A run is stopped at a moment that is drawn
from the time that it takes; half of those that go on are stopped again. In the end files, side
results and names in the folder have to be those of a run that nobody disturbed. `--how` stops by
SIGKILL, by SIGTERM, by a disk that fills and is given room (a small tmpfs, needs root), or by
memory that is refused at one allocation after the other. The last lines are a table.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest import mock

import h5py
import numpy as np

from maxslices.api import carry_out
from maxslices.cli.main import main
from maxslices.runner.folder import journal

BASE = """
- method: standard_tomo
  parameters: {rotation_angles: {user_defined: {start_angle: 0, stop_angle: 180, angles_total: %d}}}
"""
STEPS = {
    "one section": """
- method: dark_flat_field_correction
- method: minus_log
- method: median_filter
  parameters: {kernel_size: 3}
""",
    "in memory between": """
- method: dark_flat_field_correction
- method: minus_log
  save_result: true
- method: remove_stripe_ti
- method: fbp
""",
    "scratch files": """
- method: dark_flat_field_correction
- method: minus_log
- method: find_center_vo
  id: centering
  side_outputs: {cor: axis}
- method: fbp
  parameters: {center: "${{centering.side_outputs.axis}}"}
- method: calculate_stats
  id: stats
  side_outputs: {glob_stats: glob_stats}
- method: rescale_to_int
  parameters: {bits: 16, glob_stats: "${{stats.side_outputs.glob_stats}}"}
""",
}
BENCHMARK = """
- method: dark_flat_field_correction
- method: minus_log
- method: remove_stripe_ti
- method: fbp
"""
"""Steps of the benchmark's row whose result is saved (`tests/benchmarks/goals/part_httomo.py`)."""
SHAPES = {
    "small": (121, 24, 96),
    "middle": (361, 64, 256),
    "large": (901, 256, 1024),
    "benchmark": (1801, 512, 2560),
}
MEMORY = {"small": "14.5MB", "middle": "34MB", "large": "3GB"}
"""Budget on the CPU with which data between sections go to scratch files."""
HOST_MEMORY = {"small": "6MB", "middle": "40MB", "large": "1GB"}
"""The same beside a GPU."""


@dataclass
class Case:
    """A pipeline, a format of results, and what an undisturbed run makes of them."""

    name: str
    arguments: list[str]
    took_s: float = 0.0
    wrote_s: float = 0.0
    disk_bytes: int = 0
    wanted: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, what: str) -> None:
        """Count what happened."""
        self.counts[what] = self.counts.get(what, 0) + 1


def write_scan(path: Path, shape: tuple[int, int, int], seed: int) -> None:
    """Write an NXtomo file with flats and darks."""
    rng = np.random.default_rng(seed)
    keys = np.array([1] * 5 + [2] * 5 + [0] * shape[0])
    with h5py.File(path, "w") as file:
        data = file.create_dataset(
            "entry1/tomo_entry/data/data", (len(keys), *shape[1:]), np.uint16
        )
        for number, key in enumerate(keys):
            low, high = {0: (500, 3000), 1: (3900, 4100), 2: (0, 90)}[int(key)]
            data[number] = rng.integers(low, high, shape[1:], np.uint16)
        file["entry1/tomo_entry/instrument/detector/image_key"] = keys


def in_child(arguments: list[str], prepare: Callable[[], object], log: Path) -> int:
    """Run the command line in a process forked from this one, which has all modules loaded."""
    process = os.fork()
    if process:
        return process
    status = 70
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        prepare()
        status = main(arguments)
    except SystemExit as ended:
        status = int(ended.code or 0)
    except BaseException:  # noqa: BLE001 - the process ends below, whatever it is
        traceback.print_exc()
    finally:
        if not log.with_name("modules.txt").exists():
            log.with_name("modules.txt").write_text("\n".join(sys.modules))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def import_what_ran(path: Path) -> None:
    """Import what a run imported, so that the processes to come need not.

    Of CuPy only the package itself: a process that has used CUDA cannot be forked.
    """
    for name in path.read_text().split("\n"):
        if name == "cupy" or name.partition(".")[0] in ("maxslices", "maxslices_methods", "scipy"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    path.unlink()


def ended(process: int) -> int:
    """Wait for a process; its exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def wait_for(process: int, path: Path) -> None:
    """Wait until a process has made a file, or has ended."""
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while not path.exists() and os.waitid(os.P_PID, process, options) is None:
        time.sleep(0.001)


def outcome(folder: Path) -> dict[str, str]:
    """Hash of each result, the side results, and the names in a folder."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".h5":
            with h5py.File(path) as file:
                data = file["entry/data/data"]
                digest = hashlib.sha256(f"{data.shape} {data.dtype}".encode())
                for piece in data:
                    digest.update(np.ascontiguousarray(piece).tobytes())
            found[path.name] = digest.hexdigest()[:16]
        elif path.is_dir():
            digest = hashlib.sha256()
            for each in sorted(path.iterdir()):
                digest.update(each.name.encode() + each.read_bytes())
            found[path.name] = digest.hexdigest()[:16]
        else:
            found[path.name] = "there"
    report = json.loads((folder / "report.json").read_text())
    found["side results"] = json.dumps(report["side_results"])
    return found


class Stopping:
    """Runs cases, stops them, and has them go on."""

    def __init__(self, out: Path, how: str, rng: random.Random) -> None:
        self.out, self.how, self.rng = out, how, rng
        self.log = out / "log.txt"
        self.failures: list[str] = []
        self.first_refused = 0

    def undisturbed(self, case: Case) -> None:
        """Find what a case makes, and how long it takes."""
        for folder in ("whole", "again"):
            began = time.perf_counter()
            arguments = [*case.arguments, str(self.out / folder), "--overwrite"]
            process = in_child(with_out(arguments), int, self.log)
            wait_for(process, self.out / folder / ".run/journal")
            wrote = time.perf_counter()
            if status := ended(process):
                sys.exit(f"{case.name} ended with {status}: see {self.log}")
            case.wrote_s = time.perf_counter() - wrote
            if (self.out / "modules.txt").exists():
                import_what_ran(self.out / "modules.txt")
            case.took_s = time.perf_counter() - began
        case.wanted = outcome(self.out / "again")
        case.disk_bytes = 2 * disk_bytes(self.out / "again")
        shutil.rmtree(self.out / "whole")
        shutil.rmtree(self.out / "again")

    def disturbed(self, case: Case) -> None:
        """Stop a run, once or more, have it go on to its end, and compare."""
        folder = self.out / "run"
        shutil.rmtree(folder, ignore_errors=True)
        option: list[str] = []
        stops = 1 + (self.rng.random() < 0.5)
        for number in range(stops + 1):
            last = number == stops
            arguments = with_out([*case.arguments, str(folder), *option])
            if "--resume" in option:
                arguments = without_budgets(arguments)
            status = self.attempt(arguments, case, last)
            case.count("runs")
            if status == 0:
                break
            if last:
                self.failures.append(f"{case.name}: {' '.join(arguments)} ended with {status}")
                return
            is_unfinished = (folder / ".run/journal").exists()
            if not is_unfinished and (folder / "report.json").exists():
                break  # stopped when all was done, on its way out
            option = ["--resume"] if is_unfinished else []
            case.count("went on" if is_unfinished else "began anew")
        found = outcome(folder)
        if "no page of the run" in self.log.read_text():  # its disk was full, and it said so
            found.setdefault("report.html", "there")
        if found != case.wanted:
            different = {
                name: (found.get(name), case.wanted.get(name))
                for name in {*found, *case.wanted}
                if found.get(name) != case.wanted.get(name)
            }
            self.failures.append(f"{case.name}: {different}")
        hidden = [p.name for p in folder.iterdir() if p.name.startswith(".")]
        if hidden:
            self.failures.append(f"{case.name}: left {hidden}")
        case.count("compared")

    def attempt(self, arguments: list[str], case: Case, last: bool) -> int:
        """Run once, to be stopped unless it is the last time; its exit status."""
        if last:
            return ended(in_child(arguments, int, self.log))
        if self.how == "memory":
            return ended(in_child(arguments, self.refuse_memory, self.log))
        if self.how == "disk":
            return self.on_full_disk(arguments, case)
        process = in_child(arguments, int, self.log)
        if self.rng.random() < 0.2:
            time.sleep(self.rng.uniform(0, case.took_s))
        else:
            wait_for(process, self.out / "run" / ".run/journal")
            time.sleep(self.rng.uniform(0, case.wrote_s))
        number = {"kill": signal.SIGKILL, "term": signal.SIGTERM}[self.how]
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)
        return ended(process)

    def refuse_memory(self) -> None:
        """Have all allocations of arrays fail from one on: the next one at each call."""
        seen = [0]
        for name in ("empty", "zeros", "empty_like", "zeros_like", "full"):
            mock.patch(f"numpy.{name}", partial(self.allocate, getattr(np, name), seen)).start()

    def allocate(
        self, original: Callable[..., object], seen: list[int], *args: object, **kwargs: object
    ) -> object:
        """Allocate an array, unless that is refused."""
        seen[0] += 1
        if seen[0] >= self.first_refused:
            raise MemoryError("refused")
        return original(*args, **kwargs)

    def on_full_disk(self, arguments: list[str], case: Case) -> int:
        """Run with a disk that has a part of the room that the run needs."""
        filler = self.out / "filler"
        room = int(self.rng.uniform(0, 1) * case.disk_bytes)
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(self.out).free - room)
        # What the disk has is found out by writing, as where another program fills it meanwhile.
        unseen = mock.patch("maxslices.system.disk_space._free_bytes", return_value=10**12)
        status = ended(in_child(arguments, unseen.start, self.log))
        filler.unlink()
        return status


def disk_bytes(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*"))


def with_out(arguments: list[str]) -> list[str]:
    """Command line with the folder, the first of what follows the options, in its place."""
    command, scan, pipeline, *rest = arguments
    folder = next(each for each in rest if each.startswith("/"))
    rest.remove(folder)
    return [command, scan, pipeline, folder, *rest]


def without_budgets(arguments: list[str]) -> list[str]:
    """Command line without what a run that goes on has from its plan."""
    kept, skips = [], False
    for each in arguments:
        if skips:
            skips = False
        elif each in ("--memory", "--host-memory", "--block", "--format"):
            skips = True
        else:
            kept.append(each)
    return kept


def make_cases(out: Path, device: str, size: str, formats: list[str]) -> list[Case]:
    """Write the scan and the pipelines; all cases."""
    shape = SHAPES[size]
    write_scan(out / "scan.nxs", shape, 5)
    cases = []
    chosen = {"benchmark": BENCHMARK} if size == "benchmark" else STEPS
    for number, (name, steps) in enumerate(chosen.items()):
        path = out / f"pipeline{number}.yaml"
        path.write_text(BASE % shape[0] + steps)
        budget = [] if name == "benchmark" else ["--block", str(max(3, shape[1] // 12))]
        if name == "scratch files":
            budget += ["--memory", MEMORY[size] if device == "cpu" else "2GB"]
            budget += [] if device == "cpu" else ["--host-memory", HOST_MEMORY[size]]
        for form in formats:
            arguments = ["run", str(out / "scan.nxs"), str(path), "--device", device, *budget]
            cases.append(Case(f"{name}, {form}", [*arguments, "--format", form]))
    return cases


@contextlib.contextmanager
def small_disk(out: Path, megabytes: int) -> Iterator[Path]:
    """Folder on a disk of its own."""
    out.mkdir(parents=True, exist_ok=True)
    size = f"size={megabytes}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(out)], check=True)
    try:
        yield out
    finally:
        subprocess.run(["umount", str(out)], check=True)


def without_journal() -> None:
    """Have nothing noted in this process, and nothing of the input looked up."""
    for name in ("begin", "store", "side", "done", "finish", "whole", "went_on"):
        mock.patch(f"maxslices.runner.folder.journal.Journal.{name}", return_value=True).start()
    mock.patch("maxslices.api.team.run_identity", return_value={}).start()
    mock.patch("maxslices.runner.folder.journal.SYNC_INTERVAL_S", 1e9).start()


def timed_journal(path: Path) -> None:
    """Have the seconds that are spent for the journal written to a file, one call a line."""

    def watch(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def watched(*args: object, **kwargs: object) -> object:
            began = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                with path.open("a") as file:
                    file.write(f"{time.perf_counter() - began}\n")

        setattr(owner, name, watched)

    watch(journal.Journal, "_add")
    watch(journal.Journal, "close")
    watch(carry_out, "run_identity")
    journal.Journal.create = _timed_create(journal.Journal.create, path)  # type: ignore[method-assign]


def _timed_create(original: Callable[..., object], path: Path) -> Callable[..., object]:
    def create(*args: object) -> object:
        began = time.perf_counter()
        made = original(*args)
        with path.open("a") as file:
            file.write(f"{time.perf_counter() - began}\n")
        return made

    return create


def overhead(cases: list[Case], out: Path, rounds: int, log: Path) -> list[str]:
    """Lines with the time of runs with the journal and without, by turns, and of the journal."""
    spent = out / "spent.txt"
    ways: dict[str, Callable[[], object]] = {
        "without": without_journal,
        "with": int,
        "timed": partial(timed_journal, spent),
        "syncing": lambda: mock.patch(
            "maxslices.runner.folder.journal.SYNC_INTERVAL_S", 0.5
        ).start(),
    }
    titles = ("without", "with", "difference", "in journal", "share", "sync/0.5 s")
    lines = [f"{'least seconds of ' + str(rounds):<28}" + "".join(f"{t:>12}" for t in titles)]
    for case in cases:
        times: dict[str, list[float]] = {name: [] for name in ways}
        in_journal = []
        for _ in range(rounds):
            for name, prepare in ways.items():
                shutil.rmtree(out / "timed", ignore_errors=True)
                spent.unlink(missing_ok=True)
                process = in_child(with_out([*case.arguments, str(out / "timed")]), prepare, log)
                if ended(process):
                    sys.exit(f"{case.name} failed: see {log}")
                report = json.loads((out / "timed" / "report.json").read_text())
                times[name].append(report["duration_s"])
                if name == "timed":
                    in_journal.append(sum(map(float, spent.read_text().split())))
        least = {name: min(each) for name, each in times.items()}
        share = statistics.median(in_journal) / least["with"]
        lines.append(
            f"{case.name:<28}{least['without']:>12.3f}{least['with']:>12.3f}"
            f"{100 * (least['with'] / least['without'] - 1):>+10.1f} %"
            f"{statistics.median(in_journal):>12.4f}{100 * share:>10.2f} %{least['syncing']:>12.3f}"
        )
    return lines


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kills", type=int, default=200, help="runs that are stopped")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--how", default="kill", choices=["kill", "term", "disk", "memory"])
    parser.add_argument("--size", default="small", choices=list(SHAPES))
    parser.add_argument("--formats", nargs="+", default=["hdf5", "tiff"])
    parser.add_argument("--overhead", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--seconds", type=float, default=1e9, help="no run begins after these")
    return parser.parse_args()


def stop_runs(given: argparse.Namespace, out: Path) -> Stopping:
    """Carry out what the command line asks for; prints a table."""
    began = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    os.environ["MAXSLICES_RECORDS"] = str(out / "cache")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stopping = Stopping(out, given.how, random.Random(given.seed))
    cases = make_cases(out, given.device, given.size, given.formats)
    if given.kills:
        for case in cases:
            stopping.undisturbed(case)
        (out / "modules.txt").touch()
    n_stopped = 0
    while n_stopped < given.kills and time.perf_counter() - began < given.seconds:
        stopping.first_refused = 1 + n_stopped // len(cases)
        stopping.disturbed(cases[n_stopped % len(cases)])
        n_stopped += 1
    lines = []
    if given.overhead:
        lines = overhead(cases, out, given.overhead, stopping.log)
    if b"Traceback" in stopping.log.read_bytes():
        stopping.failures.append(f"a traceback in {stopping.log}")
    kinds = ("runs", "went on", "began anew", "compared")
    print(f"{given.how}, {given.device}, {given.size}, seed {given.seed}: {n_stopped} runs stopped")
    print(f"{'case':<28}{'takes s':>9}" + "".join(f"{kind:>12}" for kind in kinds))
    for case in cases:
        counts = "".join(f"{case.counts.get(kind, 0):>12}" for kind in kinds)
        print(f"{case.name:<28}{case.took_s:>9.2f}{counts}")
    print(*lines, sep="\n")
    print(*stopping.failures, f"{len(stopping.failures)} failures", sep="\n")
    return stopping


def run_script() -> int:
    """Exit status: 1 if anything came out otherwise."""
    given = parse()
    if given.how == "disk":
        with small_disk(given.out, 100) as out:
            return bool(stop_runs(given, out).failures)
    return bool(stop_runs(given, given.out.absolute()).failures)


if __name__ == "__main__":
    sys.exit(run_script())
