"""What `run` is given: arrays to be filled, folders, names, and more than one run at once."""

from __future__ import annotations

import os
from collections import OrderedDict

import numpy as np
import pytest

from maxslices import Pipeline, Registry, method, run
from maxslices.errors import PipelineError, StoreError, UsageError
from maxslices.runner import RunFolder
from maxslices.system.disk_space import wait_until_freed
from tests.planner.fakes import fakes

FRAMES = np.ones((12, 6, 8), np.float32)
NEGATE = Pipeline.from_steps(["negate"], fakes)


@pytest.mark.parametrize("shift", [0, 1], ids=["the scan itself", "shifted by a slice"])
def test_the_result_cannot_lie_in_the_scan(shift):
    memory = np.ones((13, 6, 8), np.float32)
    with pytest.raises(UsageError, match="out shares memory with the scan: give an array of its"):
        run(memory[:12], NEGATE, memory[shift : 12 + shift], device="cpu")
    assert np.all(memory == 1)


@pytest.mark.parametrize(("out", "message"), [(7, "a folder or a NumPy array"), ("", "no name")])
def test_results_go_to_a_folder_or_an_array(out, message):
    with pytest.raises(UsageError, match=message):
        run(FRAMES, NEGATE, out, device="cpu")


@pytest.mark.parametrize("pipeline", [None, 7, {"method": "negate"}, OrderedDict(method="negate")])
def test_a_pipeline_is_a_list(pipeline):
    with pytest.raises(PipelineError, match=r"not .*: write it as \[step, ...\]"):
        run(FRAMES, pipeline, device="cpu")


@pytest.mark.parametrize("device", [None, 0])
def test_a_device_is_a_name(device):
    with pytest.raises(UsageError, match="unknown device"):
        run(FRAMES, NEGATE, device=device)


def test_a_second_run_into_a_folder_is_refused_and_costs_the_first_nothing(tmp_path):
    def during(data):
        with pytest.raises(StoreError, match=r"another run is writing to .*: wait for its"):
            RunFolder(tmp_path / "out")
        return -data

    methods = Registry()
    method("all", registry=methods, calc_max_slices=fakes["negate"].estimator)(during)
    open_files = len(os.listdir("/proc/self/fd"))
    run(FRAMES, Pipeline.from_steps(["during"], methods), tmp_path / "out", device="cpu")
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "pipeline_as_run.yaml",
        "report.html",
        "report.json",
        "result.h5",
        "run.log",
    }
    run(FRAMES, NEGATE, tmp_path / "out", device="cpu", overwrite=True)
    wait_until_freed()  # the result that was replaced
    assert len(os.listdir("/proc/self/fd")) == open_files
