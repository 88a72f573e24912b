"""The recorder on the fake of CuPy. docs/scripts/record_sequences.py uses the real one."""

import pytest

from maxslices.measure import measure_peak, sequence_recorder
from maxslices.measure.allocation_sequence import Allocated, Freed

from . import fake_cupy_pool


@pytest.fixture
def cupy(monkeypatch):
    monkeypatch.setattr(sequence_recorder, "is_library", lambda filename: filename != __file__)
    return fake_cupy_pool.install(monkeypatch)


def in_loop(cupy, n):
    for _ in range(n):
        cupy.alloc(10).free()


def test_records_requested_bytes_and_which_was_freed(cupy):
    with measure_peak("cuda", record=(3, 300)) as peak:
        first = cupy.alloc(1000)
        cupy.alloc(7)
        first.free()
    events = peak.sequence.events
    assert [event.n_bytes for event in events if isinstance(event, Allocated)] == [300, 1000, 7]
    assert events[-1] == Freed(1)
    assert peak.sequence.peak_bytes() == 512 + 1024 + 512
    assert peak.unseen == []


def test_what_was_asked_for_when_memory_ran_out_is_the_last_allocation(cupy):
    cupy.pool.largest = 1024

    def method():
        first = cupy.alloc(1000)
        try:
            cupy.alloc(5000)
        finally:
            first.free()

    with measure_peak("cuda", record=(3, 0)) as peak, pytest.raises(MemoryError):
        method()
    sequence = peak.sequence
    assert [e.n_bytes for e in sequence.events if isinstance(e, Allocated)] == [1000, 5000]
    assert sequence.peak_bytes() == 1024 + 5120


def test_a_request_that_a_method_does_without_is_forgotten(cupy):
    cupy.pool.largest = 1024
    with measure_peak("cuda", record=(3, 0)) as peak:
        first = cupy.alloc(1000)
        with pytest.raises(MemoryError):
            cupy.alloc(5000)
        first.free()
        cupy.alloc(20).free()
    sequence = peak.sequence
    assert [getattr(e, "n_bytes", None) for e in sequence.events] == [1000, None, 20, None]
    assert sequence.peak_bytes() == 1024


def test_what_is_freed_before_a_request_is_made_again_is_entered(cupy):
    cupy.pool.largest = 1024
    with measure_peak("cuda", record=(3, 0)) as peak:
        first, second = cupy.alloc(1000), cupy.alloc(100)
        with pytest.raises(MemoryError):
            cupy.alloc(5000)
        first.free()
        cupy.pool.largest = 8192
        third = cupy.alloc(5000)
        third.free()
        second.free()
    events = peak.sequence.events
    assert [event.n_bytes for event in events if isinstance(event, Allocated)] == [1000, 100, 5000]
    assert [event.which for event in events if isinstance(event, Freed)] == [0, 3, 1]


def test_leaves_out_what_was_allocated_before_and_after(cupy):
    before = cupy.alloc(1000)
    with measure_peak("cuda", record=(3, 0)) as peak:
        before.free()
        during = cupy.alloc(20)
    during.free()
    cupy.alloc(30)
    assert [event.n_bytes for event in peak.sequence.events] == [20]


def test_a_loop_reaches_its_line_in_the_same_way_each_time(cupy):
    with measure_peak("cuda", record=(3, 0)) as peak:
        in_loop(cupy, 3)
        in_loop(cupy, 1)
    sequence = peak.sequence
    sites = [event.site for event in sequence.events if isinstance(event, Allocated)]
    assert sites == [0, 0, 0, 1]
    assert {site.function for site in sequence.sites} == {"in_loop"}
    assert sequence.sites[0].line == sequence.sites[1].line
    assert sequence.sites[0].path != sequence.sites[1].path
