"""Runs in processes of their own: memory as the system sees it, and signals."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from maxslices.core.block_memory import PYTHON_BYTES
from maxslices.system.threads import THREAD_BUFFER_BYTES

SHAPE = (400, 360, 800)  # 230 MB of uint16
BUDGET = 22_600_000
"""Ends little above what 9 projections of the first section need, and 5 sinograms of the second."""

BOUNDED = """
import json, sys, tracemalloc
import numpy as np
from maxslices import Pipeline, run
from maxslices.io import open_source
from tests.planner.fakes import fakes

scan, out, memory = sys.argv[1], sys.argv[2], int(sys.argv[3])
pipeline = Pipeline.from_steps(["negate", "work"], fakes)
run(np.zeros((9, 9, 9), np.uint16), pipeline, out + "/warm", device="cpu", memory="12MB")
with open_source(scan) as source:  # loads the libraries that read it
    source.read(0, 0, 1, np.empty((1, *source.spec.shape[1:]), source.spec.dtype))

tracemalloc.start()
report = run(scan, pipeline, out + "/run", device="cpu", memory=memory, block="max")
traced = tracemalloc.get_traced_memory()[1]
print(json.dumps({
    "resident": report.process_bytes,
    "traced": traced,
    "measured": [s.measured_bytes for s in report.sections],
    "estimated": [s.estimated_bytes for s in report.sections],
    "stores": [s.destination for s in report.plan.sections],
    "splits": [s.n_splits for s in report.sections],
}))
"""


@pytest.mark.parametrize("suffix", ["h5", "npy"])
def test_a_scan_ten_times_the_memory_runs_within_it(tmp_path, suffix):
    scan = tmp_path / f"scan.{suffix}"
    if suffix == "h5":  # chunks of a projection, as detectors write them
        with h5py.File(scan, "w") as file:
            data = file.create_dataset("entry/data/data", SHAPE, np.uint16, chunks=(1, *SHAPE[1:]))
            for i in range(SHAPE[0]):
                data[i] = i
    else:
        np.lib.format.open_memmap(scan, "w+", np.uint16, SHAPE).flush()
    command = [sys.executable, "-c", BOUNDED, str(scan), str(tmp_path), str(BUDGET)]
    # The C library keeps some freed memory, more the more is freed at one time. Here it does not,
    # so resident memory is that of the run.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["stores"] == ["scratch file", "result"]
    assert figures["splits"] == [0, 0]
    assert max(figures["estimated"]) <= BUDGET
    assert min(figures["estimated"]) > 0.9 * BUDGET
    for measured, estimated in zip(figures["measured"], figures["estimated"], strict=True):
        # What Python takes is not measured, and the thread that writes made its buffer before.
        assert 0.95 * (estimated - PYTHON_BYTES - THREAD_BUFFER_BYTES) < measured <= estimated
    assert figures["traced"] <= BUDGET
    # Less than measured: some buffers are not filled, and earlier pages are reused.
    assert 0.5 * max(figures["measured"]) < figures["resident"] <= BUDGET
