"""The meters on a real GPU, to the byte."""

from __future__ import annotations

import importlib.util
import threading
import time

import numpy as np
import pytest

from maxslices.devices.cuda_copies import count_devices
from maxslices.measure import measure_peak

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(count_devices() == 0, reason="needs a CUDA device and CuPy"),
]
KIB, MIB = 2**10, 2**20


@pytest.fixture
def cupy():
    import cupy

    pool = cupy.get_default_memory_pool()
    cupy.arange(10).sum()  # the context, and the first kernels
    cupy.fft.config.get_plan_cache().clear()
    pool.free_all_blocks()
    return cupy


@pytest.mark.parametrize("hooks", [True, False])
def test_in_use_to_the_byte(cupy, hooks):
    with measure_peak("cuda", hooks=hooks) as peak:
        first = cupy.empty(1000, cupy.uint8)
        del first
        second = cupy.empty(2000, cupy.uint8)
        third = cupy.empty(1, cupy.uint8)
    assert peak.cupy_in_use_bytes == 2048 + 512
    assert peak.peak_bytes == 2048 + 512
    assert peak.unseen == []
    assert second.size + third.size == 2001


def test_held_and_device(cupy):
    with measure_peak("cuda") as peak:
        big = cupy.empty(300 * MIB, cupy.uint8)
        time.sleep(0.05)  # the device's memory is sampled
        del big
        cupy.get_default_memory_pool().free_all_blocks()
        small = cupy.empty(100 * MIB, cupy.uint8)
    assert peak.cupy_in_use_bytes == peak.cupy_held_bytes == 300 * MIB
    assert 300 * MIB <= peak.device_bytes <= 316 * MIB
    assert peak.unseen == []
    assert small.size


def test_threads(cupy):
    def work():
        cupy.cuda.Device(0).use()
        cupy.empty(6 * KIB, cupy.uint8)

    with measure_peak("cuda") as peak:
        kept = cupy.empty(2 * KIB, cupy.uint8)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert peak.peak_bytes == 8 * KIB
    assert kept.size


def test_a_thread_past_the_hooks_is_reported(cupy):
    pool = cupy.get_default_memory_pool()
    kept = []

    def work():
        cupy.cuda.Device(0).use()
        kept.append(pool.malloc(9 * KIB))

    with measure_peak("cuda") as peak:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        kept.append(cupy.empty(1 * KIB, cupy.uint8))
    assert peak.peak_bytes is None
    assert peak.counted_bytes == 10 * KIB
    assert "9,216 bytes of CuPy's pool" in peak.unseen[0]


def test_memory_outside_the_pool_is_reported(cupy):
    with measure_peak("cuda") as peak:
        inside = cupy.empty(1 * KIB, cupy.uint8)
        outside = cupy.cuda.Memory(200 * MIB)
    assert peak.cupy_in_use_bytes == 1 * KIB
    assert 200 * MIB <= peak.device_bytes <= 216 * MIB
    assert peak.peak_bytes is None
    assert "elsewhere" in peak.unseen[0]
    assert inside.size + outside.size


def test_work_areas_of_ffts_are_counted_and_caches_may_be_cleared_inside(cupy):
    data = cupy.ones((4, 3000), cupy.float32)
    with measure_peak("cuda") as peak:
        cupy.fft.rfft(data)
        cupy.fft.config.get_plan_cache().clear()
        cupy.fft.rfft(data)
    result = 4 * 1501 * 8
    result = -(-result // 512) * 512
    assert peak.unseen == []
    assert peak.peak_bytes >= result
    cupy.fft.config.get_plan_cache().clear()


def test_a_recorded_peak_lists_its_allocations(cupy):
    with measure_peak("cuda", record=(10, 0)) as peak:
        data = cupy.ones((10, 100, 100), cupy.float32)
        doubled = data * 2
        del data
        half = doubled[:5] + 1
    assert [row.n_bytes for row in peak.alive] == [400_000, 400_000]
    assert peak.alive[-1].where.code == "doubled = data * 2"
    assert half.size


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch(cupy):
    import torch

    torch.ones(1, device="cuda")
    torch.cuda.empty_cache()
    with measure_peak("cuda") as peak:
        first = torch.empty(1000, dtype=torch.uint8, device="cuda")
        with measure_peak("cuda") as inner:
            torch.empty(5000, dtype=torch.uint8, device="cuda")
        second = torch.empty(700, dtype=torch.uint8, device="cuda")
    assert inner.torch_allocated_bytes == 5120
    assert peak.torch_allocated_bytes == 1024 + 5120
    assert first.numel() + second.numel() == 1700


def test_check_of_a_right_and_a_wrong_estimator(cupy):
    from maxslices import Registry, from_ledger
    from maxslices.testing import EstimateError, check_max_slices

    @from_ledger
    def two(m, shape, dtype):
        m.alloc(shape, dtype)
        m.alloc(shape, dtype)

    @from_ledger
    def one(m, shape, dtype):
        m.alloc(shape, dtype)

    def twice(data):
        return data + data

    right = Registry().register(twice, pattern="all", calc_max_slices=two)
    wrong = Registry().register(twice, pattern="all", calc_max_slices=one)
    for shape in ((64, 501, 499), (3, 501, 499)):
        result = check_max_slices(right, shape, np.uint16, device="cuda")
        assert result.ratio == 1.0
        assert result.peak_bytes == result.estimated_bytes
        with pytest.raises(EstimateError, match="UNDERESTIMATE"):
            check_max_slices(wrong, shape, np.uint16, device="cuda")
