"""CuPy's meter without hooks, on the fake of CuPy."""

from __future__ import annotations

import contextlib
import random

import pytest

from maxslices.measure import measure_peak

from . import fake_cupy_pool
from .test_cupy_pool import KIB, MIB, in_thread, outside_for_a_moment
from .test_torch_allocator import cuda  # noqa: F401 - a fixture


@pytest.fixture
def cupy(monkeypatch):
    return fake_cupy_pool.install(monkeypatch)


def busy(cupy, seed):
    """Allocate and free at random, in this thread and another; the blocks still alive."""
    chosen, alive = random.Random(seed), []
    for _ in range(300):
        if alive and chosen.random() < 0.45:
            alive.pop(chosen.randrange(len(alive))).free()
            continue
        size = chosen.choice([1, 700, 5 * KIB, 3 * MIB, 5 * MIB + 512])
        if chosen.random() < 0.1:
            in_thread(lambda size=size: alive.append(cupy.alloc(size)))
        else:
            alive.append(cupy.alloc(size))
        if chosen.random() < 0.02:
            cupy.pool.free_all_blocks()
    return alive


@pytest.mark.parametrize("seed", range(5))
def test_it_finds_what_hooks_find(monkeypatch, seed):
    found = []
    for hooks in (True, False):
        cupy = fake_cupy_pool.install(monkeypatch)
        before = [cupy.alloc(10 * KIB), cupy.alloc(4 * MIB)]
        with measure_peak("cuda", hooks=hooks) as peak:
            before += busy(cupy, seed)[:20]
            busy(cupy, seed + 100)
        assert peak.unseen == []
        found.append((peak.peak_bytes, peak.cupy_held_bytes))
    assert found[0] == found[1]
    assert found[0][0] > 10 * MIB


def test_what_the_pool_keeps_from_before_hides_nothing(cupy):
    cupy.alloc(10 * KIB).free()
    with measure_peak("cuda", hooks=False) as peak:
        cupy.alloc(3 * KIB).free()
        cupy.alloc(1 * KIB)
    assert (peak.peak_bytes, peak.cupy_held_bytes) == (3 * KIB, 10 * KIB)


def test_cupy_calls_no_hooks(cupy):
    original, called = cupy.allocator, []
    with measure_peak("cuda", hooks=False) as peak:
        assert cupy.get_memory_hooks() == {}
        cupy.alloc(3 * KIB)
        in_thread(lambda: (cupy.alloc(2 * KIB), called.append(cupy.get_memory_hooks())))
        with measure_peak("cuda") as inner:
            cupy.alloc(1 * KIB).free()
            assert len(cupy.get_memory_hooks()) == 1
        assert cupy.get_memory_hooks() == {}
        cupy.alloc(1 * KIB)
    assert called == [{}]
    assert (peak.peak_bytes, inner.peak_bytes) == (6 * KIB, 1 * KIB)
    assert cupy.allocator == original


def test_a_thread_past_the_wrapped_allocator_is_seen(cupy):
    with measure_peak("cuda", hooks=False) as peak:
        in_thread(lambda: cupy.pool.malloc(9 * KIB))
        cupy.alloc(1 * KIB)
    assert peak.peak_bytes == 10 * KIB


def test_freeing_what_was_alive_before_lowers_the_figure(cupy):
    before = cupy.alloc(10 * KIB)
    with measure_peak("cuda", hooks=False) as peak:
        before.free()
        cupy.alloc(3 * KIB)
        cupy.alloc(14 * KIB)
    assert peak.peak_bytes == 7 * KIB


def test_memory_of_libraries_is_reported(cupy):
    with measure_peak("cuda", hooks=False) as peak:
        cupy.alloc(3 * MIB)
        outside_for_a_moment(cupy, 120 * MIB)
    assert peak.counted_bytes == 3 * MIB
    assert peak.rounding_bytes == 1 * MIB
    assert peak.outside_bytes == 120 * MIB
    assert "allocated elsewhere" in peak.unseen[0]


def test_another_device_has_another_pool(cupy, monkeypatch):
    numbers = iter([0, 1, 0])
    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: next(numbers))
    with measure_peak("cuda", hooks=False) as peak:
        cupy.alloc(1 * KIB)
        cupy.alloc(50 * KIB).free()
        cupy.alloc(2 * KIB)
    assert peak.peak_bytes == 3 * KIB


def test_where_the_allocator_cannot_be_wrapped_hooks_are_used(cupy, monkeypatch):
    def refuse(allocator):
        raise ValueError("inside using_allocator")

    monkeypatch.setattr(cupy.cuda, "set_allocator", refuse)
    with contextlib.suppress(KeyError), measure_peak("cuda", hooks=False) as peak:
        cupy.alloc(3 * KIB).free()
        cupy.alloc(1 * KIB)
        raise KeyError
    assert peak.peak_bytes == 3 * KIB
    assert cupy.get_memory_hooks() == {}


def test_beside_torch_it_is_the_sum_of_the_peaks(cupy, cuda):  # noqa: F811
    with measure_peak("cuda", hooks=False) as peak:
        cupy.alloc(100 * KIB).free()
        cuda.alloc(200 * KIB)
        cuda.free(200 * KIB)
        cupy.alloc(20 * KIB)
    assert peak.cupy_in_use_bytes == 100 * KIB
    assert peak.torch_allocated_bytes == 200 * KIB
    assert peak.peak_bytes == 300 * KIB
