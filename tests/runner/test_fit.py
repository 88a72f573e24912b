"""Slices that do not fit: in tiles, on the host, flats and darks on the host; the same bits."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import ndimage

from maxslices import Pipeline, Registry, from_ledger, method, plan, run
from maxslices.core.block_memory import PYTHON_BYTES
from maxslices.errors import DoesNotFitError, MethodError
from maxslices.io.scans.array_source import ArrayScan
from tests.planner.fakes import fakes

fit_fakes = Registry()
for known in fakes:
    fit_fakes.add(known)

SHAPE = (24, 160, 200)
DATA = np.random.default_rng(3).random(SHAPE, np.float32)
SLICE = 4 * 160 * 200


@from_ledger
def _heavy(m, shape, dtype):
    for _ in range(12):
        m.alloc(shape, dtype)


@from_ledger
def _two(m, shape, dtype):
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)


def _held(data):
    return [data.copy() for _ in range(9)]


@method("projection", calc_max_slices=_heavy, tile_halo=lambda size: size // 2, registry=fit_fakes)
def median(data, size: int = 5):
    """A median of each frame, wasteful with memory."""
    held = _held(data)
    out = np.empty_like(data)
    for frame, result in zip(held[-1], out, strict=True):
        ndimage.median_filter(frame, size, output=result)
    return out


@method("all", calc_max_slices=_heavy, halo=6, tile_halo=6, registry=fit_fakes)
def spread(data):
    """Six steps of diffusion along all axes: float32, so any change of order would show."""
    held = _held(data)
    now = held[0]
    for _ in range(6):
        padded = np.pad(now, 1, mode="edge")
        now = now.copy()
        for axis in range(3):
            around = [slice(1, -1)] * 3
            for end in (slice(None, -2), slice(2, None)):
                around[axis] = end
                now += np.float32(0.1) * (padded[tuple(around)] - padded[1:-1, 1:-1, 1:-1])
    return now


@method("sinogram", calc_max_slices=_heavy, tile_halo=(0, 3), registry=fit_fakes)
def turned(data, angles, flats, detector_start):
    """Use all that is cut with the data."""
    out = _held(data)[0]
    out += angles[:, np.newaxis, np.newaxis].astype(np.float32)
    out += flats[0]
    columns = np.arange(data.shape[2]) + detector_start[1]
    out *= columns.astype(np.float32)
    return out


@method("projection", calc_max_slices=_heavy, tile_halo=0, registry=fit_fakes)
def correct(data, flats, darks):
    """Divide by the mean flat."""
    mean = flats.mean(axis=0, dtype=np.float32) - darks.mean(axis=0, dtype=np.float32)
    return _held(data)[0] / mean


@method("projection", calc_max_slices=_heavy, registry=fit_fakes)
def whole(data):
    """Need whole slices."""
    return _held(data)[0] - data.mean(axis=(1, 2), keepdims=True)


@method("projection", calc_max_slices=_heavy, tile_halo=0, registry=fit_fakes)
def in_place(data):
    """Write to the data."""
    data *= np.float32(2)
    return data


def _n_looked(n_slices):
    return [n_slices // 2]


@method("projection", calc_max_slices=_heavy, side_results=("low",), sample_slices=_n_looked,
        registry=fit_fakes)  # fmt: skip
def lowest(data):
    """Look at the middle frame."""
    return float(data.min())


def pipeline(*names):
    return Pipeline.from_steps(names, fit_fakes)


def unfitted(names, source=DATA):
    return run(source, pipeline(*names), device="cpu", memory="200MB").result


def source():
    rng = np.random.default_rng(4)
    frames = [rng.integers(1, 9, (7, *SHAPE[1:])).astype(np.uint16) for _ in range(2)]
    flats, darks = frames[0] + 1000, frames[1]
    return ArrayScan(DATA, flats=flats, darks=darks, angles=np.linspace(0, 3, SHAPE[0]))


BESIDE = PYTHON_BYTES + SHAPE[0] * SLICE
"""What a run takes on the CPU that keeps its result in memory."""
CASES = [["median"], ["spread"], ["negate", "median"], ["in_place"], ["negate", "spread", "work"]]


@pytest.mark.parametrize("names", CASES)
def test_tiles_give_the_same_bits(names):
    memory = BESIDE + (40 if "spread" in names else 7) * SLICE
    report = run(DATA, pipeline(*names), device="cpu", memory=memory, fit="auto")
    steps = [step for section in report.plan.sections for step in section.steps]
    assert [step.name for step in steps if step.tile] == [n for n in names if n in TILED]
    np.testing.assert_array_equal(report.result, unfitted(names))
    for section in report.sections:
        assert section.measured_bytes <= section.estimated_bytes
        assert section.n_splits == 0


TILED = ("median", "spread", "in_place")


def test_what_is_done_is_said():
    memory = BESIDE + 7 * SLICE
    with pytest.raises(DoesNotFitError) as failed:
        run(DATA, pipeline("median"), device="cpu", memory=memory)
    assert "--fit auto makes it fit, with blocks of up to" in str(failed.value)
    report = run(DATA, pipeline("median"), device="cpu", memory=memory, fit="auto")
    (section,) = report.plan.sections
    assert section.steps[0].tile_halo == (2, 2)
    assert "median works in" in section.fitted[0]
    assert report.sections[0].notes[0] == section.fitted[0]
    assert "  to fit: median works in" in str(report.plan)
    assert ", in tiles" in str(report.plan)
    assert "median works in" in str(report)
    assert json.loads(report.plan.to_json())["sections"][0]["steps"][0]["tile"] is not None


def test_nothing_is_changed_that_fits():
    made = plan(DATA, pipeline("median", "whole"), device="cpu", memory="200MB", fit="auto")
    assert made == plan(DATA, pipeline("median", "whole"), device="cpu", memory="200MB")
    assert made.sections[0].fitted == ()


def test_whole_slices_do_not_fit_on_the_cpu():
    with pytest.raises(DoesNotFitError, match="Neither tiles nor the host would make it fit"):
        plan(DATA, pipeline("whole"), device="cpu", memory=10 * SLICE)
    with pytest.raises(DoesNotFitError, match="whole needs"):
        plan(DATA, pipeline("whole"), device="cpu", memory=10 * SLICE, fit="auto")


def test_a_halo_that_is_most_of_the_work_is_said():
    memory = BESIDE + 12 * 15 * SLICE
    args = {"device": "cpu", "memory": memory}
    made = plan(DATA, pipeline("spread"), **args, block="max")
    assert made.sections[0].block < 8
    assert made.sections[0].would_fit[-1].startswith("blocks of ")
    assert "  --fit auto: spread works in" in str(made)
    better = plan(DATA, pipeline("spread"), **args, block="max", fit="auto")
    assert better.sections[0].block > 2 * made.sections[0].block


def test_angles_flats_and_columns_are_cut_with_the_data():
    names = ["turned"]
    memory = BESIDE + 11 * 11 * 24 * 200 * 4
    report = run(source(), pipeline(*names), device="cpu", memory=memory, fit="auto", block=11)
    assert report.plan.sections[0].steps[0].tile is not None
    np.testing.assert_array_equal(report.result, unfitted(names, source()))


def test_a_tile_of_another_shape_is_an_error():
    def grows(data):
        return np.concatenate([data, data])

    registry = Registry()
    registry.register(grows, pattern="projection", calc_max_slices=_heavy, tile_halo=1)
    steps = Pipeline.from_steps(["grows"], registry)
    with pytest.raises(MethodError, match=r"for a tile of .*; as it declares tile_halo"):
        run(DATA, steps, device="cpu", memory=BESIDE + 7 * SLICE, fit="auto")


GPU = 6 * SLICE


@pytest.mark.parametrize("in_turns", [False, True])
@pytest.mark.parametrize("names", [["whole"], ["negate", "whole", "negate"], ["lowest", "negate"]])
def test_on_the_host(on_fake_gpu, names, in_turns):
    with on_fake_gpu(seed=1, in_turns=in_turns) as gpu:
        gpu.is_eager = False
        report = run(
            DATA, pipeline(*names), device="cuda", memory=GPU, host_memory="100MB", fit="auto"
        )
    moved = [step.name for s in report.plan.sections for step in s.steps if step.on_host]
    assert moved == [name for name in names if name in ("whole", "lowest")]
    np.testing.assert_array_equal(report.result, unfitted(names))
    assert "runs on the host" in report.sections[0].notes[0]
    assert report.plan.sections[0].estimated_bytes <= GPU


def test_the_host_has_a_budget_too(on_fake_gpu):
    with on_fake_gpu(), pytest.raises(DoesNotFitError, match="whole needs"):
        run(DATA, pipeline("whole"), device="cuda", memory=GPU, host_memory="20MB", fit="auto")


@pytest.mark.parametrize("names", [["correct"], ["correct", "median"]])
def test_flats_and_darks_on_the_host(on_fake_gpu, names):
    # They are 7 SLICE; what remains is too little for tiles even of the smallest size.
    with on_fake_gpu() as gpu:
        report = run(
            source(), pipeline(*names), device="cuda", memory=GPU + SLICE, fit="auto",
            host_memory="100MB",
        )  # fmt: skip
        assert gpu.allocated.count("a copy on the device") > 2
    (section,) = report.plan.sections
    assert section.side_on_host
    assert section.side_bytes == 0
    assert any("stay on the host" in text for text in section.fitted)
    np.testing.assert_array_equal(report.result, unfitted(names, source()))
    assert section.host_bytes > 7 * SLICE + PYTHON_BYTES


@pytest.mark.parametrize("k", range(12))
def test_any_allocation_may_fail(on_fake_gpu, k):
    names = ["negate", "median", "whole"]
    with on_fake_gpu(fails_at=[k]):
        report = run(
            DATA, pipeline(*names), device="cuda", memory=GPU, host_memory="100MB", fit="auto",
        )  # fmt: skip
    np.testing.assert_array_equal(report.result, unfitted(names))
