"""Kill workers of runs at random moments, and compare what comes out with a run in one process.

    python docs/scripts/kill_workers.py OUT --kills 50 --seed 1
    python docs/scripts/kill_workers.py OUT --kills 10 --who coordinator
    python docs/scripts/kill_workers.py OUT --kills 20 --gpus 2

Each run has two workers. With `--who worker`, one of them is killed by SIGKILL at a moment drawn
from the time that a run takes. With `--who coordinator`, the process that has the scheduler is
killed and the run goes on with `--resume`, by turns with workers and in one process. Three
pipelines, in HDF5 or TIFF; the last lines are a table.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from maxslices import run
from maxslices.planner import Plan
from maxslices.workers.worker_calls import WorkerCalls
from maxslices.workers.workers import wait_for_workers

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
SHAPES = {"small": (121, 24, 96), "middle": (361, 64, 256), "large": (901, 256, 1024)}
MEMORY = {"cpu": "100MB", "cuda": "2GB"}


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


def content(folder: Path) -> dict[str, str]:
    """Hashes of the results in a folder, and the names of what else is there."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".h5":
            with h5py.File(path) as file:
                found[name] = hashlib.sha256(file["entry/data/data"][()].tobytes()).hexdigest()
        else:
            is_image = path.suffix == ".tif"
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if is_image else ""
    return found


def kill_later(client: Any, delay_s: float) -> threading.Timer:
    """Kill one of the workers after some seconds."""

    def kill() -> None:
        pids = list(client.run(os.getpid, on_error="ignore").values())
        if pids:
            os.kill(random.choice(pids), signal.SIGKILL)

    timer = threading.Timer(delay_s, kill)
    timer.start()
    return timer


def with_killed_worker(case: tuple[Any, ...], out: Path, client: Any, rng: random.Random) -> str:
    """Do a run of which a worker is killed."""
    scan, pipeline, plan, format, took_s = case
    timer = kill_later(client, rng.uniform(0, took_s))
    run(scan, pipeline, out, engine=client, plan=plan, format=format)
    timer.join()
    wait_for_workers(WorkerCalls(client), 2)
    return "finished"


def with_killed_coordinator(case: tuple[Any, ...], out: Path, rng: random.Random) -> str:
    """Start a run in a process that is killed, and resume it."""
    scan, pipeline, plan, format, took_s = case
    workers = ["--gpus" if plan.device == "cuda" else "--workers", "2"]
    plan_file = out.with_suffix(".json")
    plan_file.write_text(plan.to_json())
    command = [sys.executable, "-m", "maxslices", "run", str(scan), str(pipeline), str(out)]
    first = [*command, "--plan", str(plan_file), *workers, "--format", format, "-q"]
    process = subprocess.Popen(first)
    journal = out / ".run/journal"
    while not journal.exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(rng.uniform(0, took_s))
    process.kill()
    process.wait()
    time.sleep(1)  # the workers see that their parent is gone
    if (out / "report.json").exists():
        return "finished before"
    again = [*command, "--resume"] if journal.exists() else first
    how = rng.choice([[], workers]) if journal.exists() else []
    subprocess.run([*again, *how, "-q"], check=True)
    return "went on" if journal != again else "began anew"


def main() -> None:
    """Run all."""
    from maxslices.workers.local_cluster import local_client

    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", default="middle", choices=sorted(SHAPES))
    parser.add_argument("--who", default="worker", choices=["worker", "coordinator"])
    parser.add_argument("--gpus", type=int, help="GPUs for the workers; default: two on the CPU")
    given = parser.parse_args()
    device = "cpu" if given.gpus is None else "cuda"
    rng, folder = random.Random(given.seed), given.out
    folder.mkdir(parents=True, exist_ok=True)
    shape = SHAPES[given.size]
    scan = folder / "scan.nxs"
    write_scan(scan, shape, given.seed)
    counts: Counter[str] = Counter()
    with local_client(2 if given.gpus is None else None, given.gpus) as client:
        cases = []
        for number, (name, steps) in enumerate(STEPS.items()):
            pipeline = folder / f"{number}.yaml"
            pipeline.write_text(BASE % shape[0] + steps)
            for format in ("hdf5", "tiff"):
                first = folder / f"first-{number}-{format}"
                began = time.perf_counter()
                options = {"memory": MEMORY[device], "format": format, "block": 4}
                report = run(scan, pipeline, first, engine=client, **options)
                took_s = time.perf_counter() - began
                plan = Plan.from_json(report.plan.to_json())
                alone = folder / f"alone-{number}-{format}"
                run(scan, pipeline, alone, plan=plan, device=device, format=format)
                wanted = content(alone)
                assert content(first) == wanted, name
                cases.append(((scan, pipeline, plan, format, took_s), wanted))
                print(f"{name}, {format}: {took_s:.1f} s", flush=True)
        for number in range(given.kills):
            case, wanted = rng.choice(cases)
            out = folder / f"run-{number}"
            if given.who == "worker":
                ended = with_killed_worker(case, out, client, rng)
            else:
                ended = with_killed_coordinator(case, out, rng)
            is_same = content(out) == wanted
            counts[ended] += 1
            counts["different"] += not is_same
            print(f"{number + 1}: {ended}, {'same' if is_same else 'DIFFERENT'}", flush=True)
            if is_same:
                shutil.rmtree(out)
    print(f"\nkilled {given.who}: {given.kills} runs, {dict(counts)}")


if __name__ == "__main__":
    main()
