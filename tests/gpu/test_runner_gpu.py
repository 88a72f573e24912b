"""The runner on a real GPU: equal results for all blocks, budgets, and too little memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from maxslices import Pipeline, Registry, from_ledger, pinned_empty, run
from maxslices.core.block_memory import UNMEASURED_RESERVE_BYTES
from maxslices.errors import OutOfMemoryError
from tests.planner.ledgers import to_float_ledger, two

pytestmark = pytest.mark.gpu

SHAPE = (180, 96, 640)  # 22 MB of uint16


@from_ledger
def four(m, shape, dtype):
    for _ in range(4):
        m.alloc(shape, dtype)


def to_float(data):
    import cupy

    out = cupy.empty(data.shape, np.float32)
    cupy.multiply(data, np.float32(0.5), out=out)
    return out


def on_the_host(data):
    """Compute with NumPy in the middle of a section."""
    import cupy

    return cupy.asarray(np.negative(data.get()))


def by_torch(data):
    return data + data


def blur(data):
    """Add the neighbours along the slices of sinograms."""
    import cupy

    out = cupy.copy(data)
    out[:, 1:] += data[:, :-1]
    out[:, :-1] += data[:, 1:]
    return out


REGISTRY = Registry()
REGISTRY.register(to_float, pattern="projection", calc_max_slices=to_float_ledger,
                  output_dtype="float32")  # fmt: skip
REGISTRY.register(on_the_host, pattern="all", calc_max_slices=two)
REGISTRY.register(by_torch, pattern="all", calc_max_slices=two, array_module="torch")
REGISTRY.register(blur, pattern="sinogram", calc_max_slices=four, halo=1)
NAMES = ["to_float", "on_the_host", "by_torch", "blur"]


def pipeline(names=NAMES):
    return Pipeline.from_steps(names, REGISTRY)


def data(shape=SHAPE):
    rng = np.random.default_rng(5)
    return rng.integers(0, 60000, shape, np.uint16)


def expected(scan):
    values = np.negative(scan * np.float32(0.5))
    values = values + values
    out = values.copy()
    out[:, 1:] += values[:, :-1]
    out[:, :-1] += values[:, 1:]
    return out


@pytest.fixture
def between(monkeypatch):
    def put(where):
        monkeypatch.setattr(
            "maxslices.planner.planning.PlacementSearch.can_be_held",
            lambda self, number, origin, candidate, held: candidate == where,
        )

    return put


@pytest.mark.parametrize("where", ["device", "memory", "scratch file"])
@pytest.mark.parametrize("block", [1, 7, 64, 1000])
def test_results_are_bitwise_independent_of_block_and_place(between, tmp_path, where, block):
    between(where)
    shape = SHAPE if block > 1 else (40, 24, 640)
    scan = data(shape)
    report = run(scan, pipeline(), tmp_path / "out", device="cuda", block=block)
    assert report.plan.sections[0].destination == where
    with h5py.File(report.files[0]) as file:
        np.testing.assert_array_equal(file["entry/data/data"], expected(scan))
    for section in report.sections:
        assert section.n_splits == 0
        assert section.measured_bytes <= section.estimated_bytes


def test_pinned_arrays_are_used_without_staging():
    scan = pinned_empty(SHAPE, np.uint16)
    scan[...] = data()
    out = pinned_empty(SHAPE, np.float32)
    report = run(scan, pipeline(), out, device="cuda", block=16)
    assert report.result is out
    np.testing.assert_array_equal(out, expected(scan))
    first, last = report.sections
    assert "read" not in first.stages
    assert "write" not in last.stages


TAKES = """
import sys, time
import cupy
runtime, held = cupy.cuda.runtime, []
leave = int(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
until = time.monotonic() + 4
while time.monotonic() < until:
    free, _ = runtime.memGetInfo()
    if free > leave:
        try:
            held.append(runtime.malloc(max(2**21, (free - leave) // 2)))
        except runtime.CUDARuntimeError:
            pass
    time.sleep(0.002)
"""


def test_another_process_that_takes_the_memory_away():
    scan = data((600, 64, 1024))
    want = expected(scan)
    other = subprocess.Popen(
        [sys.executable, "-c", TAKES, str(150 * 10**6)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert other.stdout.readline() == "ready\n"
        started = []

        def slow(values):
            if not started:
                started.append(1)
                other.stdin.write("\n")
                other.stdin.flush()
                time.sleep(1.5)
            return to_float(values)

        registry = Registry()
        registry.register(slow, pattern="projection", calc_max_slices=to_float_ledger,
                          output_dtype="float32")  # fmt: skip
        registry.register(blur, pattern="sinogram", calc_max_slices=four, halo=1)
        registry.register(on_the_host, pattern="all", calc_max_slices=two)
        registry.register(by_torch, pattern="all", calc_max_slices=two, array_module="torch")
        names = ["slow", "on_the_host", "by_torch", "blur"]
        try:
            report = run(
                scan, Pipeline.from_steps(names, registry), device="cuda", memory="20GB", block=200
            )
        except OutOfMemoryError as error:
            pytest.fail(f"the other process took all: {error}")
        np.testing.assert_array_equal(report.result, want)
        print(*(f"splits {s.n_splits}, blocks {s.blocks}" for s in report.sections), sep="\n")
    finally:
        other.kill()
        other.wait()
        other.stdin.close()
        other.stdout.close()


@pytest.mark.parametrize("budget", [2 * 10**9, 4 * 10**9])
def test_the_budget_is_kept_and_used_by_a_program_with_its_context(budget):
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    before = lowest = cupy.cuda.runtime.memGetInfo()[0]
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.gpu.budget_run", str(budget)],
        stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], text=True,
    )  # fmt: skip
    try:
        while child.poll() is None:
            lowest = min(lowest, cupy.cuda.runtime.memGetInfo()[0])
            time.sleep(0.001)
        numbers = json.loads(child.stdout.read())
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    used = before - lowest
    print(f"budget {budget}, used {used}; {numbers}")
    assert numbers["n_splits"] == 0
    assert numbers["measured_bytes"] <= numbers["estimated_bytes"]
    assert used <= budget
    if numbers["reserved_bytes"] == UNMEASURED_RESERVE_BYTES:
        pytest.skip("other programs use this GPU, so the size of a context is not known")
    assert used >= 0.9 * budget


def test_fft_plans_that_a_method_asks_for_are_made_once_a_block_size():
    import cupy
    from cupyx.scipy.fftpack import get_fft_plan

    plans = []

    def smooth(data):
        spectrum = data.astype(np.complex64)
        plans.append(get_fft_plan(spectrum, axes=(1, 2)))
        with plans[-1]:
            spectrum = cupy.fft.fft2(spectrum, axes=(1, 2))
            spectrum[:, 20:-20] = 0
            return cupy.ascontiguousarray(cupy.fft.ifft2(spectrum, axes=(1, 2)).real)

    registry = Registry()
    registry.register(smooth, pattern="projection", calc_max_slices=two)
    data = np.random.default_rng(3).random((64, 32, 80), np.float32)
    result = run(data, Pipeline.from_steps(["smooth"], registry), device="cuda", block=8).result
    assert len(plans) == 8
    assert len({id(plan) for plan in plans}) == 1
    spectrum = np.fft.fft2(data)
    spectrum[:, 20:-20] = 0
    assert np.abs(result - np.fft.ifft2(spectrum).real).max() < 1e-5
    get_fft_plan(cupy.zeros((3, 8, 8), np.complex64), axes=(1, 2))
    assert cupy.fft.config.get_plan_cache().get_curr_size() == 0
