"""CuPy and torch on one GPU: their peak together, on fakes of both."""

from __future__ import annotations

import pytest

from maxslices.measure import device_memory, measure_peak

from . import fake_cupy_pool
from .test_torch_allocator import cuda  # noqa: F401 - a fixture

KIB = 1024


@pytest.fixture
def cupy(monkeypatch):
    return fake_cupy_pool.install(monkeypatch)


def test_the_sum_is_taken_at_one_time(cupy, cuda):  # noqa: F811
    with measure_peak("cuda") as peak:
        first = cupy.alloc(100 * KIB)
        cuda.alloc(200 * KIB)
        cuda.free(200 * KIB)
        second = cupy.alloc(150 * KIB)
        cuda.alloc(30 * KIB)
        first.free()
        second.free()
        cuda.free(30 * KIB)
        cuda.alloc(260 * KIB)
    assert peak.cupy_in_use_bytes == 250 * KIB
    assert peak.torch_allocated_bytes == 260 * KIB
    assert peak.cupy_and_torch_bytes == peak.peak_bytes == 300 * KIB
    assert peak.unseen == []


def test_what_either_had_before_is_not_counted(cupy, cuda):  # noqa: F811
    before = cupy.alloc(64 * KIB)
    cuda.alloc(32 * KIB)
    with measure_peak("cuda") as peak:
        cupy.alloc(5 * KIB)
        cuda.alloc(7 * KIB)
    assert peak.peak_bytes == 12 * KIB
    assert before.size


def test_nested_measurements_have_each_their_own(cupy, cuda):  # noqa: F811
    with measure_peak("cuda") as outer:
        block = cupy.alloc(10 * KIB)
        cuda.alloc(20 * KIB)
        with measure_peak("cuda") as inner:
            cuda.alloc(1 * KIB)
            cupy.alloc(2 * KIB)
        cuda.free(21 * KIB)
        block.free()
        cuda.alloc(3 * KIB)
    assert inner.peak_bytes == 3 * KIB
    assert outer.peak_bytes == 33 * KIB


def test_one_library_alone_has_no_sum(cupy, cuda):  # noqa: F811
    with measure_peak("cuda") as peak:
        cuda.alloc(20 * KIB)
    assert peak.cupy_and_torch_bytes is None
    assert peak.peak_bytes == 20 * KIB


def test_an_allocator_that_torch_counts_is_not_unseen(cupy, cuda):  # noqa: F811
    def allocate(n_bytes):
        cuda.alloc(n_bytes)

    allocate.counted_by = "torch"
    cupy.cuda.set_allocator(allocate)
    with measure_peak("cuda") as peak:
        cupy.cuda.get_allocator()(9 * KIB)
    assert peak.unseen == []
    assert (peak.cupy_in_use_bytes, peak.peak_bytes) == (0, 9 * KIB)


def test_what_torch_kept_before_is_enough_for_cupy(cupy, cuda, monkeypatch):  # noqa: F811
    def allocate(n_bytes):
        cuda.alloc(n_bytes)

    allocate.counted_by = "torch"
    cupy.cuda.set_allocator(allocate)
    cuda.alloc(90 * KIB)
    cuda.free(90 * KIB)
    used = 10**9
    monkeypatch.setattr(device_memory, "_reader", lambda: lambda: used)
    with measure_peak("cuda") as peak:
        cupy.cuda.get_allocator()(9 * KIB)
        used += 5000
    assert (peak.peak_bytes, peak.outside_bytes) == (9 * KIB, 5000)
