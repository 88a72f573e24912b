"""A pipeline of methods that declare nothing: measured once, and not again."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from maxslices import Pipeline, Registry, plan, run
from maxslices.estimate import Records
from maxslices.io import ArrayScan

CALLS: Counter[str] = Counter()
SCAN = np.random.default_rng(3).integers(900, 60_000, (90, 24, 40), dtype=np.uint16)
LIMITS = {"device": "cpu", "memory": "11.15MB"}


def flat_field(data, flats, darks):
    CALLS["flat_field"] += 1
    dark = darks.mean(axis=0, dtype=np.float32)
    return (data - dark) / (flats.mean(axis=0, dtype=np.float32) - dark)


def find_centre(data, ind: int = 0):
    CALLS["find_centre"] += 1
    return float(data.shape[2] // 2)


def minus_log(data):
    CALLS["minus_log"] += 1
    return -np.log(np.maximum(data, np.float32(1e-6)))


def destripe(data, size: int = 3):
    CALLS["destripe"] += 1
    return data - data.mean(axis=0) / np.float32(size)


def backproject(data, angles, center: float, size: int = 20):
    CALLS["backproject"] += 1
    out = np.zeros((size, data.shape[1], size), np.float32)
    out += data.sum(axis=(0, 2))[None, :, None] * np.float32(center)
    return out


def judge(data, level: float = 0.5):
    CALLS["judge"] += 1
    return (data > level).view(np.uint8)


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    monkeypatch.setenv("MAXSLICES_RECORDS", str(tmp_path / "records"))
    CALLS.clear()
    methods = Registry()

    def guess(dtype, **parameters):
        return np.dtype(np.float32) if dtype.kind in "iu" else dtype

    guess.is_guess = True
    for function, declared in (
        (flat_field, {"pattern": "projection", "output_dtype": guess}),
        (find_centre, {"pattern": "projection", "side_results": ("cor",), "combine": max}),
        (minus_log, {"pattern": "all", "output_dtype": guess}),
        (destripe, {"pattern": "sinogram", "output_dtype": guess}),
        (backproject, {"pattern": "sinogram", "output_dims": lambda dims, size=20: (size, size)}),
        (judge, {"pattern": "all", "output_dtype": guess}),
    ):
        methods.register(function, module="lab", **declared)
    centre = {"method": "find_centre", "id": "centre", "side_outputs": {"cor": "cor"}}
    recon = {"center": "${{centre.side_outputs.cor}}"}
    steps = ["flat_field", centre, "minus_log", "destripe"]
    steps += [{"method": "backproject", "parameters": recon}, "judge"]
    return Pipeline.from_steps(steps, methods)


def source() -> ArrayScan:
    flats, darks = SCAN[:5] // 2 + 30_000, SCAN[:5] // 100
    angles = np.linspace(0, np.pi, len(SCAN), endpoint=False)
    return ArrayScan(SCAN, flats=flats, darks=darks, angles=angles)


def planned(pipeline, **given):
    return plan(source(), pipeline, **LIMITS, **given)


def origins(made) -> set[str]:
    return {step.estimator for section in made.sections for step in section.steps}


def test_the_second_plan_runs_no_method(pipeline):
    first = planned(pipeline)
    assert origins(first) == {"probed"}
    assert set(CALLS) == {"flat_field", "find_centre", "minus_log", "destripe", "backproject"} | {
        "judge"
    }
    CALLS.clear()
    second = planned(pipeline)
    assert CALLS == {}
    assert origins(second) == {"recorded"}
    sizes = [[(s.block, s.estimated_bytes) for s in made.sections] for made in (first, second)]
    assert sizes[0] == sizes[1]


def test_a_dtype_that_nobody_declared_is_the_one_that_was_seen(pipeline):
    for made in (planned(pipeline), planned(pipeline)):
        assert made.sections[-1].steps[-1].output.dtype == np.uint8


def test_probing_that_is_asked_for_is_done_anew_and_then_recorded(pipeline):
    planned(pipeline)
    once = dict(CALLS)
    made = planned(pipeline, estimator="probed")
    assert origins(made) == {"probed"}
    assert all(CALLS[name] > count for name, count in once.items())
    CALLS.clear()
    assert origins(planned(pipeline, estimator="recorded")) == {"recorded"}
    assert CALLS == {}
    assert len(Records().entries()) == 6


def test_a_run_after_a_plan_measures_nothing(pipeline, tmp_path):
    made = planned(pipeline)
    CALLS.clear()
    run(source(), pipeline, tmp_path / "out", **LIMITS)
    blocks = [-(-s.n_slices // s.block) for s in made.sections]
    assert CALLS["backproject"] == CALLS["judge"] == blocks[-1]
    assert CALLS["flat_field"] == blocks[0]
