"""How a run scales with the number of GPUs: time of the whole command, and host memory.

    python docs/scripts/gpu_scaling.py OUT --gpus 1 2 4
    python docs/scripts/gpu_scaling.py OUT --workers 1 2 --size small     # on the CPU

A scan is written once. Each pipeline is run as a command of its own, once in one process and then
with each number of workers, by the same plan; every eighth slice of the results is compared with
those of one process, bit for bit. Host memory is the most that the command and all its children had
by the kernel's count (proportional set size, sampled). The last lines are a table; all figures go
to OUT/table.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import psutil
from kill_workers import BASE, write_scan

SHAPES = {"small": (181, 32, 256), "middle": (901, 1024, 2048), "large": (1801, 2048, 2048)}
STEPS = {
    "compute": """
- method: dark_flat_field_correction
- method: minus_log
- method: remove_stripe_ti
- method: fbp
  save_result: false
- method: nonlocal_means
  parameters: {strength: 0.3, search_size: 25}
""",
    "link": """
- method: dark_flat_field_correction
- method: minus_log
""",
}


def digest(folder: Path) -> str:
    """Hash of every eighth slice of a run's last result."""
    found = hashlib.sha256()
    with h5py.File(folder / "result.h5") as file:
        data = file["entry/data/data"]
        for i in range(0, data.shape[0], 8):
            found.update(data[i].tobytes())
    return found.hexdigest()


def host_bytes(process: psutil.Process) -> int:
    """Memory of a process and its children, pages that they share counted once."""
    total = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            total += each.memory_full_info().pss
        except psutil.Error:
            continue
    return total


def timed(command: list[str], log: Path) -> tuple[float, int]:
    """Seconds that a command takes, and the most memory that it has."""
    began, most = time.perf_counter(), 0
    with log.open("w") as file:
        child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        process = psutil.Process(child.pid)
        while child.poll() is None:
            most = max(most, host_bytes(process))
            time.sleep(0.2)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{log.read_text()[-3000:]}")
    return time.perf_counter() - began, most


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", type=int, nargs="*", default=[])
    parser.add_argument("--workers", type=int, nargs="*", default=[])
    parser.add_argument("--size", default="large", choices=sorted(SHAPES))
    parser.add_argument("--pipelines", nargs="*", default=list(STEPS), choices=list(STEPS))
    given = parser.parse_args()
    folder, shape = given.out, SHAPES[given.size]
    folder.mkdir(parents=True, exist_ok=True)
    scan = folder / "scan.nxs"
    write_scan(scan, shape, 1)
    rows: list[dict[str, Any]] = []
    counts = [("--gpus", n) for n in given.gpus] + [("--workers", n) for n in given.workers]
    for name in given.pipelines:
        pipeline, plan = folder / f"{name}.yaml", folder / f"{name}.json"
        pipeline.write_text(BASE % shape[0] + STEPS[name])
        device = "cuda" if given.gpus else "cpu"
        base = [sys.executable, "-m", "maxslices"]
        files = [str(scan), str(pipeline)]
        most = str(max([n for _, n in counts], default=1))
        made = subprocess.run(
            [*base, "plan", *files, "--device", device, "--workers", most, "--json"],
            check=True,
            capture_output=True,
            text=True,
        )
        plan.write_text(made.stdout)
        wanted, alone_s = "", 0.0
        for option, count in [("", 0), *counts]:
            out = folder / "out"
            shutil.rmtree(out, ignore_errors=True)  # here: a run that replaces it would take longer
            options = [option, str(count)] if option else []
            command = [*base, "run", *files, str(out), "--plan", str(plan), *options]
            took_s, most_bytes = timed(command, folder / f"{name}{option}{count}.log")
            found = digest(out)
            if not option:
                wanted, alone_s = found, took_s
            rows.append(
                {
                    "pipeline": name,
                    "how": f"{option} {count}" if option else "one process",
                    "wall_s": round(took_s, 2),
                    "speedup": round(alone_s / took_s, 2),
                    "host_gb": round(most_bytes / 1e9, 2),
                    "same": found == wanted,
                    "report": json.loads((out / "report.json").read_text())["phases_s"],
                }
            )
            (folder / "table.json").write_text(json.dumps(rows, indent=1))
    print(f"{'pipeline':<10}{'how':<14}{'wall s':>8}{'x':>7}{'host GB':>9}  same")
    for row in rows:
        print(
            f"{row['pipeline']:<10}{row['how']:<14}{row['wall_s']:>8}{row['speedup']:>7}"
            f"{row['host_gb']:>9}  {row['same']}"
        )


if __name__ == "__main__":
    main()
