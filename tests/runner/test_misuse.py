"""Wrong arguments of programs: the error names valid ones."""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict

import numpy as np
import pytest

from maxslices import Pipeline, Registry, method, run, run_scans
from maxslices.errors import MethodError, PipelineError, StoreError, UnknownMethodError, UsageError
from maxslices.runner import RunFolder
from maxslices.system.disk_space import wait_until_freed
from tests.planner.fakes import fakes
from tests.planner.ledgers import two
from tests.runner.resumable import results_in

DATA = np.ones((6, 5, 4), np.float32)
methods = Registry()
methods.register(lambda data: data + 1, pattern="projection", name="plus")
PLUS = Pipeline.from_steps(["plus"], methods)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 1.5}, "rows '1.5' is not a part: give mid, START:STOP or one index"),
        ({"plan": "plan.json"}, "plan must be a Plan, not 'plan.json' (str): maxslices.plan makes"),
        ({"scratch": 3}, r"scratch must be the path of a folder, not 3 \(int\)"),
        ({"pixel_size": [1, 2]}, r"the pixel size \[1, 2\] is not a length"),
        ({"out": [[1.0] * 1000]}, "out must be a folder or a NumPy array, not a list$"),
        ({"out": 7}, "a folder or a NumPy array"),
        ({"out": ""}, "no name"),
        ({"device": None}, "unknown device"),
        ({"device": 0}, "unknown device"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_invalid_argument_names_valid_ones(options, message):
    with pytest.raises(UsageError, match=message.replace("(str)", r"\(str\)")):
        run(DATA, PLUS, **{"device": "cpu", **options})


@pytest.mark.parametrize("scans", [None, 3, DATA, [DATA], [None]], ids=type)
def test_scans_must_be_paths(tmp_path, scans):
    with pytest.raises(UsageError, match=r"scans are paths, not a .*: give a list of paths"):
        run_scans(scans, PLUS, tmp_path / "out")


def test_unchecked_steps_are_rejected():
    with pytest.raises(PipelineError, match=r"make a pipeline with Pipeline.from_steps"):
        Pipeline([{"method": "plus"}])


@pytest.mark.parametrize("name", [None, 3])
def test_method_name_must_be_a_string(name):
    with pytest.raises(UnknownMethodError, match="the name of a method must be text, not"):
        methods.get(name)


def test_result_in_reused_memory_is_rejected():
    kept = np.empty(DATA.shape, np.float32)

    def reuses(data):
        return np.add(data, 1, out=kept[: len(data)])

    registry = Registry()
    registry.register(reuses, pattern="projection")
    with pytest.raises(MethodError, match=r"reuses returned the memory .* again.*return a new ar"):
        run(DATA, Pipeline.from_steps(["reuses"], registry), device="cpu", block=2)


def test_second_run_in_the_same_process_is_rejected(tmp_path):
    """Runs that overlapped left warnings.showwarning as one of them had set it."""
    registry, shows = Registry(), warnings.showwarning
    refused = []

    def runs_too(data):
        with pytest.raises(UsageError, match="another run is active in this process") as caught:
            run(np.ones((2, 3, 4), np.float32), ["minus_log"], device="cpu")
        refused.append(caught)
        return data * 2

    registry.register(runs_too, pattern="projection", calc_max_slices=two)
    run(np.ones((2, 3, 4), np.float32), Pipeline.from_steps(["runs_too"], registry), device="cpu")
    assert refused
    assert warnings.showwarning is shows
    run(np.ones((2, 3, 4), np.float32), ["minus_log"], device="cpu")


FRAMES = np.ones((12, 6, 8), np.float32)
NEGATE = Pipeline.from_steps(["negate"], fakes)


@pytest.mark.parametrize("shift", [0, 1], ids=["the scan itself", "shifted by a slice"])
def test_output_array_must_not_overlap_the_scan(shift):
    memory = np.ones((13, 6, 8), np.float32)
    with pytest.raises(UsageError, match="out shares memory with the scan: give a separate array"):
        run(memory[:12], NEGATE, memory[shift : 12 + shift], device="cpu")
    assert np.all(memory == 1)


@pytest.mark.parametrize("pipeline", [None, 7, {"method": "negate"}, OrderedDict(method="negate")])
def test_pipeline_must_be_a_list(pipeline):
    with pytest.raises(PipelineError, match=r"or a list of steps, not .*: write \[step, ...\]"):
        run(FRAMES, pipeline, device="cpu")


def test_second_run_into_a_folder_is_rejected_and_leaves_the_first_intact(tmp_path):
    def during(data):
        with pytest.raises(StoreError, match=r"another run is writing to .*: wait until it ends"):
            RunFolder(tmp_path / "out")
        return -data

    methods = Registry()
    method("all", registry=methods, calc_max_slices=fakes["negate"].estimator)(during)
    open_files = len(os.listdir("/proc/self/fd"))
    run(FRAMES, Pipeline.from_steps(["during"], methods), tmp_path / "out", device="cpu")
    assert results_in(tmp_path / "out") == {"result.h5"}
    run(FRAMES, NEGATE, tmp_path / "out", device="cpu", overwrite=True)
    wait_until_freed()  # the result that was replaced
    assert len(os.listdir("/proc/self/fd")) == open_files
