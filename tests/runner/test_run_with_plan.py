"""A plan for any GPU, executed on a simulated one."""

from __future__ import annotations

import numpy as np
import pytest

import maxslices
from maxslices import ArraySpec, Pipeline, Plan
from maxslices.errors import PlanError
from tests.planner.fakes import fakes

DATA = np.random.default_rng(4).integers(1, 99, (31, 17, 13)).astype("uint16")
STEPS = ["to_float", "work", "neighbours"]


def of(steps):
    return Pipeline.from_steps(steps, fakes)


def planned(**kwargs):
    spec = ArraySpec(DATA.shape, DATA.dtype)
    kwargs = {"memory": "900MB", "host_memory": "100MB", **kwargs}
    plan = maxslices.plan(spec, of(STEPS), device="cuda", **kwargs)
    assert plan.device == "cuda"
    return Plan.from_json(plan.to_json())


@pytest.mark.parametrize("block", ["auto", "max", 3])
def test_a_plan_for_any_gpu_runs_on_a_certain_one(on_fake_gpu, tmp_path, block):
    with on_fake_gpu() as gpu:
        report = maxslices.run(DATA, of(STEPS), tmp_path / "out", plan=planned(block=block))
    assert report.device == gpu.name
    expected = maxslices.run(DATA, of(STEPS), device="cpu").result
    with on_fake_gpu():
        in_memory = maxslices.run(DATA, of(STEPS), memory="900MB", host_memory="100MB", block=block)
    assert in_memory.result.tobytes() == expected.tobytes()
    with on_fake_gpu():
        again = maxslices.run(DATA, of(STEPS), plan=in_memory.plan)
    assert again.result.tobytes() == expected.tobytes()


def test_a_plan_that_needs_more_host_memory_than_is_free_is_refused(
    on_fake_gpu, tmp_path, monkeypatch
):
    plan = planned()
    needed = max(each.host_bytes for each in plan.sections)
    monkeypatch.setattr("maxslices.devices.cpu.CpuBackend.free_bytes", lambda self: needed - 1)
    with on_fake_gpu(), pytest.raises(PlanError, match=r"of host memory, and .* are free"):
        maxslices.run(DATA, of(STEPS), tmp_path / "out", plan=plan)
    monkeypatch.setattr("maxslices.devices.cpu.CpuBackend.free_bytes", lambda self: needed)
    with on_fake_gpu() as gpu:
        maxslices.run(DATA, of(STEPS), tmp_path / "out", plan=plan)
        monkeypatch.setattr(gpu, "free_bytes", lambda: 10**6)
        with pytest.raises(PlanError, match=r"on cuda.*, where 1.00 MB are free"):
            maxslices.run(DATA, of(STEPS), tmp_path / "other", plan=plan)
