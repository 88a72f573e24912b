"""CuPy's meter on the fake of CuPy. tests/gpu uses the real one."""

import contextlib
import random
import threading
import time

import pytest

from maxslices.measure import measure_peak, sequence_recorder

from . import fake_cupy_pool

KIB, MIB = 1024, 2**20


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_counts_the_most_alive_at_once_in_granules(cupy):
    with measure_peak("cuda") as peak:
        first = cupy.alloc(1000)
        first.free()
        cupy.alloc(2000)
        cupy.alloc(1)
    assert peak.cupy_in_use_bytes == 2048 + 512
    assert peak.cupy_held_bytes == 2048 + 512
    assert peak.peak_bytes == 2048 + 512
    assert peak.unseen == []
    assert peak.torch_allocated_bytes is None


@pytest.mark.parametrize("hooks", [True, False])
def test_free_blocks_at_the_start_do_not_hide_the_peak(cupy, hooks):
    cupy.alloc(10 * KIB).free()
    with measure_peak("cuda", hooks=hooks) as peak:
        cupy.alloc(3 * KIB)
    assert peak.peak_bytes == 3 * KIB
    assert peak.cupy_held_bytes == 10 * KIB
    assert peak.device_bytes == 0


def test_nested_measurements_each_have_their_own(cupy):
    with measure_peak("cuda") as outer:
        cupy.alloc(2 * KIB)
        with measure_peak("cuda") as inner:
            cupy.alloc(5 * KIB).free()
        with measure_peak("cuda") as second:
            cupy.alloc(1 * KIB)
        cupy.alloc(1 * KIB)
    assert (outer.peak_bytes, inner.peak_bytes, second.peak_bytes) == (7 * KIB, 5 * KIB, 1 * KIB)


def test_an_exception_leaves_the_figures_and_the_allocator(cupy):
    original = cupy.allocator
    with contextlib.suppress(KeyError), measure_peak("cuda") as peak:
        cupy.alloc(4 * KIB)
        raise KeyError
    assert peak.peak_bytes == 4 * KIB
    assert cupy.allocator == original
    assert cupy.get_memory_hooks() == {}


def test_a_thread_that_escapes_the_hooks_is_reported(cupy):
    with measure_peak("cuda") as peak:
        in_thread(lambda: cupy.pool.malloc(9 * KIB))  # past the allocator that is wrapped
        cupy.alloc(1 * KIB)
    assert peak.peak_bytes is None
    assert peak.counted_bytes >= 10 * KIB
    assert "9,216 bytes of CuPy's pool" in peak.unseen[0]


@pytest.mark.parametrize("hooks", [True, False])
def test_memory_outside_the_pool_is_reported(cupy, hooks):
    with measure_peak("cuda", hooks=hooks) as peak:
        cupy.alloc(1 * KIB)
        cupy.device_used_bytes += 100_000_000
    cupy.device_used_bytes -= 100_000_000
    assert peak.cupy_in_use_bytes == 1 * KIB
    assert peak.device_bytes == 100_000_000 + 2 * 2**20
    assert peak.outside_bytes == peak.outside_after_bytes == 100_000_000
    assert peak.peak_bytes is None
    assert "100 MB were allocated elsewhere" in peak.unseen[0]


def wait_for_a_sample(cupy):
    """Wait until the sampling thread has read the device and recorded the reading."""
    enough, until = cupy.n_device_reads + 2, time.monotonic() + 10
    while cupy.n_device_reads < enough:
        assert time.monotonic() < until
        time.sleep(1e-3)


def test_what_the_driver_rounds_up_is_not_outside_the_pool(cupy):
    with measure_peak("cuda") as peak:
        for n_bytes in (3 * MIB, 5 * MIB + 512, 1 * MIB, 512, 1 * MIB):
            cupy.alloc(n_bytes)
    assert peak.rounding_bytes == 1 * MIB + (1 * MIB - 512) + (2 * MIB - 512)
    assert peak.outside_bytes == peak.outside_after_bytes == 0
    assert peak.unseen == []


def test_what_is_rounded_up_is_that_of_the_blocks_that_are_left(cupy):
    with measure_peak("cuda") as peak:
        kept = cupy.alloc(3 * MIB)
        cupy.alloc(90 * MIB + 512).free()
        cupy.pool.free_all_blocks()
        outside_for_a_moment(cupy, 50 * MIB)
        assert kept is not None
    assert peak.rounding_bytes == 1 * MIB
    assert max(each.n_bytes for each in peak.outside_readings) == 50 * MIB


def outside_for_a_moment(cupy, n_bytes):
    cupy.device_used_bytes += n_bytes
    wait_for_a_sample(cupy)
    cupy.device_used_bytes -= n_bytes


def test_memory_of_libraries_counts_on_top_of_what_the_pool_keeps(cupy):
    with measure_peak("cuda") as peak:
        cupy.alloc(200 * MIB).free()  # the pool keeps it
        cupy.alloc(20 * MIB)
        outside_for_a_moment(cupy, 50 * MIB)
        cupy.pool.hold(60 * MIB)  # in pieces: it holds more than it ever hands out
        outside_for_a_moment(cupy, 60 * MIB)
    assert peak.cupy_in_use_bytes == 200 * MIB
    assert peak.outside_bytes == 50 * MIB
    assert peak.outside_after_bytes == 0


def test_readings_outside_the_pool_say_what_the_pool_had_done_and_held(cupy):
    with measure_peak("cuda") as peak:
        first = cupy.alloc(200 * MIB)
        second = cupy.alloc(20 * MIB)
        first.free()
        outside_for_a_moment(cupy, 50 * MIB)
        cupy.pool.free_all_blocks()
        outside_for_a_moment(cupy, 60 * MIB)
        second.free()
    most = {}
    for each in peak.outside_readings:
        moment = each.n_events, each.held_bytes
        most[moment] = max(each.n_bytes, most.get(moment, 0))
    assert most[3, 220 * MIB] == 50 * MIB
    assert most[3, 20 * MIB] == 60 * MIB
    assert peak.outside_bytes == 50 * MIB


def test_memory_of_libraries_that_is_gone_before_the_pool_grows_does_not_count(cupy):
    with measure_peak("cuda") as peak:
        cupy.alloc(20 * MIB)
        outside_for_a_moment(cupy, 120 * MIB)
        cupy.alloc(180 * MIB)
        outside_for_a_moment(cupy, 1 * MIB)
    assert peak.cupy_in_use_bytes == 200 * MIB
    assert peak.outside_bytes == 1 * MIB


def test_another_allocator_gives_no_figure(cupy):
    cupy.allocator = lambda size: None
    with measure_peak("cuda") as peak:
        pass
    assert peak.cupy_in_use_bytes is None
    assert peak.peak_bytes is None
    assert "not a MemoryPool" in peak.unseen[0]


def test_an_allocator_set_inside_is_reported_and_kept(cupy):
    other = fake_cupy_pool.FakePool(cupy).malloc
    with measure_peak("cuda") as peak:
        cupy.cuda.set_allocator(other)
    assert cupy.allocator == other
    assert "changed CuPy's allocator" in peak.unseen[0]


@pytest.mark.parametrize("hooks", [True, False])
def test_where_allocator_cannot_be_wrapped_this_thread_is_counted(cupy, monkeypatch, hooks):
    def refuse(allocator):
        raise ValueError("inside using_allocator")

    monkeypatch.setattr(cupy.cuda, "set_allocator", refuse)
    with measure_peak("cuda", hooks=hooks) as peak:
        cupy.alloc(3 * KIB).free()
        cupy.alloc(1 * KIB)
    assert peak.peak_bytes == 3 * KIB
    assert cupy.get_memory_hooks() == {}
    with measure_peak("cuda") as peak:
        in_thread(lambda: cupy.alloc(3 * KIB))
    assert peak.peak_bytes is None


def test_a_recorded_peak_has_what_was_alive_and_where(cupy, monkeypatch):
    monkeypatch.setattr(sequence_recorder, "is_library", lambda filename: filename != __file__)
    with measure_peak("cuda", record=(3, 0)) as peak:
        first = cupy.alloc(2 * KIB)
        second = cupy.alloc(4 * KIB)
        second.free()
        cupy.alloc(1 * KIB)
    assert [row.n_bytes for row in peak.alive] == [2 * KIB, 4 * KIB]
    assert peak.alive[-1].where.code == "second = cupy.alloc(4 * KIB)"
    assert first.size == 2 * KIB


def test_what_is_replaced_by_something_larger_is_not_alive_beside_it(cupy):
    cache = cupy.alloc(30 * MIB)
    with measure_peak("cuda") as peak:
        first = cupy.alloc(10 * MIB)
        cache.free()
        cupy.alloc(50 * MIB)
        first.free()
    assert peak.cupy_in_use_bytes == 60 * MIB
    assert peak.earlier_freed_bytes == 30 * MIB


def test_what_is_freed_after_the_peak_was_alive_beside_it(cupy):
    cache = cupy.alloc(30 * MIB)
    with measure_peak("cuda") as peak:
        cupy.alloc(50 * MIB).free()
        cache.free()
        cupy.alloc(40 * MIB)
    assert peak.cupy_in_use_bytes == 50 * MIB
    assert peak.earlier_freed_bytes == 0


# Without hooks: the growth of what the pool has in use.


def busy(cupy, seed):
    """Allocate and free at random in two threads, and return the blocks still alive."""
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
    peaks = []
    for hooks in (True, False):
        cupy = fake_cupy_pool.install(monkeypatch)
        before = [cupy.alloc(10 * KIB), cupy.alloc(4 * MIB)]
        with measure_peak("cuda", hooks=hooks) as peak:
            before += busy(cupy, seed)[:20]
            busy(cupy, seed + 100)
        assert peak.unseen == []
        peaks.append((peak.peak_bytes, peak.cupy_held_bytes))
    assert peaks[0] == peaks[1]
    assert peaks[0][0] > 10 * MIB


def test_cupy_calls_no_hooks(cupy):
    original, hooks = cupy.allocator, []
    with measure_peak("cuda", hooks=False) as peak:
        assert cupy.get_memory_hooks() == {}
        cupy.alloc(3 * KIB)
        in_thread(lambda: (cupy.alloc(2 * KIB), hooks.append(cupy.get_memory_hooks())))
        with measure_peak("cuda") as inner:
            cupy.alloc(1 * KIB).free()
            assert len(cupy.get_memory_hooks()) == 1
        assert cupy.get_memory_hooks() == {}
        cupy.alloc(1 * KIB)
    assert hooks == [{}]
    assert (peak.peak_bytes, inner.peak_bytes) == (6 * KIB, 1 * KIB)
    assert cupy.allocator == original


def test_freeing_what_was_alive_before_lowers_the_figure(cupy):
    before = cupy.alloc(10 * KIB)
    with measure_peak("cuda", hooks=False) as peak:
        before.free()
        cupy.alloc(3 * KIB)
        cupy.alloc(14 * KIB)
    assert peak.peak_bytes == 7 * KIB


def test_another_device_has_another_pool(cupy, monkeypatch):
    numbers = iter([0, 1, 0])
    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: next(numbers))
    with measure_peak("cuda", hooks=False) as peak:
        cupy.alloc(1 * KIB)
        cupy.alloc(50 * KIB).free()
        cupy.alloc(2 * KIB)
    assert peak.peak_bytes == 3 * KIB


@pytest.mark.parametrize("hooks", [True, False])
def test_beside_torch_it_is_the_sum_of_the_peaks(cupy, cuda, hooks):
    with measure_peak("cuda", hooks=hooks) as peak:
        cupy.alloc(100 * KIB).free()
        cuda.alloc(200 * KIB)
        cuda.free(200 * KIB)
        cupy.alloc(20 * KIB)
    assert peak.cupy_in_use_bytes == 100 * KIB
    assert peak.torch_allocated_bytes == 200 * KIB
    assert peak.peak_bytes == 300 * KIB
    assert peak.unseen == []


def test_what_torch_kept_before_is_enough_for_cupy(cupy, cuda):
    def allocate(n_bytes):
        cuda.alloc(n_bytes)

    allocate.counted_by = "torch"
    cupy.cuda.set_allocator(allocate)
    cuda.alloc(90 * KIB)
    cuda.free(90 * KIB)
    with measure_peak("cuda") as peak:
        cupy.cuda.get_allocator()(9 * KIB)
        cupy.device_used_bytes += 5000
    assert (peak.cupy_in_use_bytes, peak.peak_bytes, peak.outside_bytes) == (0, 9 * KIB, 5000)
    assert peak.unseen == []
