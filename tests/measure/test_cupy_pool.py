"""CuPy's meter on the fake of CuPy; tests/gpu has the real one."""

import contextlib
import threading
import time

import pytest

from maxslices.measure import measure_peak, source_lines

from . import fake_cupy_pool

KIB = 1024


@pytest.fixture
def cupy(monkeypatch):
    return fake_cupy_pool.install(monkeypatch)


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


def test_what_was_alive_before_is_not_counted(cupy):
    before = cupy.alloc(10 * KIB)
    with measure_peak("cuda") as peak:
        cupy.alloc(3 * KIB)
    before.free()
    assert peak.cupy_in_use_bytes == peak.cupy_held_bytes == 3 * KIB


def test_freeing_what_was_alive_before_makes_room_for_nothing(cupy):
    before = cupy.alloc(10 * KIB)
    with measure_peak("cuda") as peak:
        before.free()
        cupy.alloc(3 * KIB)
        cupy.alloc(4 * KIB)
    assert peak.peak_bytes == 7 * KIB


def test_free_blocks_at_the_start_do_not_hide_the_peak(cupy):
    cupy.alloc(10 * KIB).free()
    with measure_peak("cuda") as peak:
        cupy.alloc(3 * KIB)
    assert peak.peak_bytes == 3 * KIB
    assert peak.cupy_held_bytes == 10 * KIB
    assert peak.device_bytes == 0


def test_the_pool_may_be_freed_inside(cupy):
    with measure_peak("cuda") as peak:
        cupy.alloc(8 * KIB).free()
        cupy.pool.free_all_blocks()
        cupy.alloc(2 * KIB)
    assert peak.cupy_in_use_bytes == peak.cupy_held_bytes == 8 * KIB


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


def test_threads_are_counted(cupy):
    def work():
        cupy.alloc(6 * KIB).free()
        cupy.alloc(1 * KIB)

    with measure_peak("cuda") as peak:
        cupy.alloc(2 * KIB)
        in_thread(work)
    assert peak.peak_bytes == 8 * KIB


def test_a_thread_may_free_what_another_allocated(cupy):
    with measure_peak("cuda") as peak:
        block = cupy.alloc(6 * KIB)
        in_thread(lambda: (cupy.alloc(1 * KIB), block.free()))
        cupy.alloc(2 * KIB)
    assert peak.peak_bytes == 7 * KIB


def test_a_thread_that_escapes_the_hooks_is_reported(cupy):
    with measure_peak("cuda") as peak:
        in_thread(lambda: cupy.pool.malloc(9 * KIB))  # past the allocator that is wrapped
        cupy.alloc(1 * KIB)
    assert peak.peak_bytes is None
    assert peak.counted_bytes >= 10 * KIB
    assert "9,216 bytes of CuPy's pool" in peak.unseen[0]


def test_memory_outside_the_pool_is_reported(cupy):
    with measure_peak("cuda") as peak:
        cupy.alloc(1 * KIB)
        cupy.device_used_bytes += 100_000_000
    cupy.device_used_bytes -= 100_000_000
    assert peak.cupy_in_use_bytes == 1 * KIB
    assert peak.device_bytes == 100_000_000 + 2 * 2**20
    assert peak.outside_bytes == peak.outside_after_bytes == 100_000_000
    assert peak.peak_bytes is None
    assert "100 MB were allocated elsewhere" in peak.unseen[0]


MIB = 2**20


def wait_for_a_sample(cupy):
    """Wait until the sampling thread has read the device, and noted what it read."""
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


def test_what_is_rounded_up_is_forgotten_with_the_blocks_that_were_given_back(cupy):
    with measure_peak("cuda") as peak:
        for _ in range(9):
            cupy.alloc(3 * MIB).free()
            cupy.pool.free_all_blocks()
        cupy.device_used_bytes += 50 * MIB  # comes and goes
        cupy.alloc(3 * MIB)
        cupy.alloc(1 * MIB)
        wait_for_a_sample(cupy)
        cupy.device_used_bytes -= 50 * MIB
    assert peak.rounding_bytes == 2 * MIB
    assert 50 * MIB <= peak.outside_bytes <= 52 * MIB
    assert peak.outside_after_bytes <= 2 * MIB


def test_what_is_rounded_up_is_that_of_the_blocks_that_are_left(cupy):
    with measure_peak("cuda") as peak:
        kept = cupy.alloc(3 * MIB)
        cupy.alloc(90 * MIB + 512).free()
        cupy.pool.free_all_blocks()
        outside_for_a_moment(cupy, 50 * MIB)
        assert kept is not None
    assert peak.rounding_bytes == 1 * MIB
    assert max(each.n_bytes for each in peak.outside_readings) == 50 * MIB


def test_memory_of_libraries_counts_on_top_of_what_the_pool_takes_meanwhile(cupy):
    with measure_peak("cuda") as peak:
        cupy.alloc(40 * MIB)
        cupy.device_used_bytes += 120 * MIB
        wait_for_a_sample(cupy)
        cupy.alloc(60 * MIB)
        cupy.device_used_bytes -= 120 * MIB  # before another sample
    assert peak.cupy_in_use_bytes == 100 * MIB
    assert peak.outside_bytes == 120 * MIB


def outside_for_a_moment(cupy, n_bytes):
    cupy.device_used_bytes += n_bytes
    wait_for_a_sample(cupy)
    cupy.device_used_bytes -= n_bytes


def test_memory_of_libraries_counts_on_top_of_what_the_pool_keeps(cupy):
    with measure_peak("cuda") as peak:
        cupy.alloc(200 * MIB).free()  # the pool keeps it
        cupy.alloc(20 * MIB)
        outside_for_a_moment(cupy, 50 * MIB)
        # Later the pool is in pieces, and holds more than it ever hands out.
        cupy.pool._total += 60 * MIB
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


def test_where_allocator_cannot_be_wrapped_this_thread_is_counted(cupy, monkeypatch):
    def refuse(allocator):
        raise ValueError("inside using_allocator")

    monkeypatch.setattr(cupy.cuda, "set_allocator", refuse)
    with measure_peak("cuda") as peak:
        cupy.alloc(3 * KIB)
    assert peak.peak_bytes == 3 * KIB
    with measure_peak("cuda") as peak:
        in_thread(lambda: cupy.alloc(3 * KIB))
    assert peak.peak_bytes is None


def test_a_recorded_peak_has_what_was_alive_and_where(cupy, monkeypatch):
    monkeypatch.setattr(source_lines, "is_library", lambda filename: filename != __file__)
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
