"""Random runs stay within a control group's limit, and within budgets, by the kernel's count.

One run of each by default; MAXSLICES_LIMIT_RUNS asks for more. Each is a process of its own.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import contextmanager

import h5py
import numpy as np
import pytest

from maxslices.system import resource_limits

MB = 10**6
N_RUNS = int(os.environ.get("MAXSLICES_LIMIT_RUNS", "1"))
SHAPES = ((60, 40, 100), (120, 200, 320), (361, 30, 512), (200, 300, 150))
METHODS = (
    "dark_flat_field_correction",
    "minus_log",
    "median_filter",
    "remove_stripe_based_sorting",
    "remove_stripe_ti",
    "total_variation_rof",
    "fbp",
)
RUN = """
import json, os, sys
folder, scan, steps, out, budget, block, form = json.loads(sys.argv[1])
if folder:
    with open(os.path.join(folder, "cgroup.procs"), "w") as file:
        file.write(str(os.getpid()))
import maxslices
try:
    report = maxslices.run(scan, steps, out, device="cpu", block=block, memory=budget, format=form)
except maxslices.errors.DoesNotFitError as error:
    print(json.dumps(str(error)))
else:
    counted = report.process_bytes, report.plan.budget_bytes
    print(json.dumps([*counted, max(s.estimated_bytes for s in report.sections)]))
"""


def scan_of(folder, shape):
    """A scan with flats and darks."""
    path = folder / f"{shape}.h5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            group = file.create_group("exchange")
            group["data"] = np.random.default_rng(0).integers(100, 4000, shape, np.uint16)
            group["data_white"] = np.full((5, *shape[1:]), 4000, np.uint16)
            group["data_dark"] = np.full((5, *shape[1:]), 10, np.uint16)
            group["theta"] = np.linspace(0, 180, shape[0])
    return path


def draw(rng, folder):
    """A random scan and pipeline."""
    names = [name for name in METHODS if rng.random() < 0.45] or ["fbp"]
    few = {"total_variation_rof": {"iterations": 5}}
    steps = [{"method": name, "parameters": few.get(name, {})} for name in names]
    return [str(scan_of(folder, rng.choice(SHAPES))), steps]


def run_alone(arguments):
    """Run in its own process; its output."""
    command = [sys.executable, "-W", "ignore", "-c", RUN, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{arguments}: {done.returncode} {done.stderr[-2000:]}"
    return json.loads(done.stdout)


@contextmanager
def control_group(limit_bytes):
    """A control group below this process's own, with a limit; skips where none can be made."""
    folders = [f for f in resource_limits.group_folders("memory") if f.is_dir()]
    if not folders:
        pytest.skip("there are no control groups here")
    folder = folders[0] / f"maxslices-test-{os.getpid()}"
    names = ("memory.limit_in_bytes", "memory.max")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        name = next((name for name in names if (folder / name).exists()), None)
        if name is None:
            pytest.skip("the control group has no limit on memory")
        (folder / name).write_text(str(limit_bytes))
        yield folder
    finally:
        folder.rmdir()


@pytest.mark.parametrize("limit_bytes", [220 * MB, 1000 * MB])
def test_runs_in_a_control_group_are_not_killed(tmp_path, limit_bytes):
    rng = random.Random(limit_bytes)
    with control_group(limit_bytes) as folder:
        for number in range(N_RUNS):
            drawn = draw(rng, tmp_path)
            block, form = rng.choice(["auto", "max"]), rng.choice(["hdf5", "tiff"])
            out = str(tmp_path / f"out{number}")
            taken, budget, _ = run_alone([str(folder), *drawn, out, None, block, form])
            print(number, *drawn, block, form, taken / MB, budget / MB, limit_bytes / MB)
            assert 0 < taken <= budget < limit_bytes  # the kernel kills what exceeds its limit


def test_runs_within_a_budget(tmp_path):
    rng = random.Random(5)
    for number in range(N_RUNS):
        drawn = draw(rng, tmp_path)
        block, form = rng.choice(["auto", "max"]), rng.choice(["hdf5", "tiff"])
        budget = int(10 ** rng.uniform(7, 8.6))
        while True:
            out = str(tmp_path / f"out{number}")
            result = run_alone([None, *drawn, out, budget, block, form])
            if isinstance(result, list):
                break
            budget = int(budget * 1.2)
        taken, _, estimated = result
        print(number, *drawn, block, form, taken / MB, budget / MB, estimated / MB)
        assert taken <= budget
