"""Probing on a GPU within the memory of a plan."""

from __future__ import annotations

import numpy as np
import pytest

from maxslices import Pipeline, Registry, run
from maxslices.core.declaration import describe
from maxslices.devices import select_backend
from maxslices.devices.cuda_copies import count_devices
from maxslices.estimate import ModelRequest
from maxslices.estimate.probe import probe
from maxslices.measure import measure_peak

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(count_devices() == 0, reason="needs a CUDA device and CuPy"),
]

DIMS, TOTAL = (600, 700), 800
SLICE_BYTES = 600 * 700 * 4
ROOM_BYTES = 10**9


def three(data):
    """Have three blocks at one time, input and output included."""
    twice = data * np.float32(2)
    both = twice + data
    del twice
    return both - data


def padded(data):
    """Pad the block to a multiple of 16 slices: memory goes up in steps."""
    import cupy

    padded_block = cupy.zeros((-(-len(data) // 16) * 16, *data.shape[1:]), np.float32)
    padded_block[: len(data)] = data
    return padded_block[: len(data)] + data


def needs(name, n):
    return SLICE_BYTES * (3 * n if name == "three" else 2 * n + -(-n // 16) * 16)


@pytest.mark.parametrize("method", [three, padded])
def test_the_number_of_slices_that_fit_is_found(method):
    import cupy

    meta = describe(method, pattern="projection", name=method.__name__, module="tests")
    request = ModelRequest(meta, 0, DIMS, np.dtype(np.float32), {}, TOTAL)
    right = max(n for n in range(1, TOTAL) if needs(method.__name__, n) <= ROOM_BYTES)
    backend = select_backend("cuda:0")
    pool = cupy.get_default_memory_pool()
    before = pool.get_limit(), pool.used_bytes()
    with measure_peak("cuda") as peak:
        probed = probe(request, backend, available_bytes=ROOM_BYTES)
    print(method.__name__, probed.answer, "of", right, peak.cupy_held_bytes, probed.notes)
    assert 0.98 * right <= probed.answer <= right
    model = probed.model()
    for n in (1, 7, right // 2, right):
        assert model.bytes(n) >= needs(method.__name__, n) - 2**20
    assert peak.cupy_held_bytes <= ROOM_BYTES
    assert (pool.get_limit(), pool.used_bytes()) == before


def test_a_plan_without_an_estimator_runs_within_its_memory(monkeypatch, tmp_path):
    monkeypatch.setenv("MAXSLICES_RECORDS", str(tmp_path))  # nothing is known of them
    registry = Registry()
    registry.register(three, pattern="projection")
    registry.register(padded, pattern="projection")
    scan = np.random.default_rng(2).random((TOTAL // 4, *DIMS), np.float32)
    reserved = select_backend("cuda:0").reserved_bytes
    pipeline = Pipeline.from_steps(["three", "padded"], registry)
    report = run(scan, pipeline, device="cuda", memory=reserved + ROOM_BYTES // 2, block="max")
    np.testing.assert_array_equal(report.result, 2 * (scan * np.float32(2) + scan - scan))
    for section in report.sections:
        print(section.methods, section.block, section.estimated_bytes, section.measured_bytes)
        assert section.n_splits == 0
        assert section.measured_bytes <= section.estimated_bytes + 2**20
