"""What code asks NumPy for is recorded in order, to the byte, in all threads."""

import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from maxslices.errors import RecordingError
from maxslices.measure import measure_peak
from maxslices.measure.allocation_sequence import Allocated, Freed


def smooth(data):
    doubled = data * 2.0
    return np.fft.rfft(doubled + data)


def test_allocations_and_frees_in_order():
    data = np.ones((7, 11, 101), np.float64)
    with measure_peak(record=(7, data.nbytes)) as peak:
        result = smooth(data)
    sequence = peak.sequence
    sizes = [e.n_bytes for e in sequence.events if isinstance(e, Allocated) and e.n_bytes > 999]
    assert sizes == [*[data.nbytes] * 3, 7 * 11 * 51 * 16]
    freed = {event.which for event in sequence.events if isinstance(event, Freed)}
    stays = [
        event.n_bytes
        for i, event in enumerate(sequence.events)
        if isinstance(event, Allocated) and i not in freed
    ]
    assert stays == [data.nbytes, result.nbytes]


def test_threads_and_zeroed_and_resized_arrays_are_seen():
    with measure_peak(record=(1, 0)) as peak, ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: np.zeros(5003, np.uint8)).result()
        first.resize(7001, refcheck=False)
    events = peak.sequence.events
    assert [e.n_bytes for e in events if isinstance(e, Allocated)] == [5003, 7001]
    assert sum(isinstance(e, Freed) for e in events) == 1


def test_nothing_is_recorded_afterwards_and_arrays_outlive_it():
    with measure_peak(record=(1, 0)) as peak:
        kept = [np.ones(1000) for _ in range(100)]
    before = len(peak.sequence.events)
    kept.clear()
    np.ones(100)
    assert len(peak.sequence.events) == before


def test_a_recording_leaves_nothing_for_the_garbage_collector():
    data = np.ones((7, 11, 101))
    with measure_peak(record=(7, 0)):  # whatever is imported or cached
        smooth(data)
    gc.collect()
    gc.disable()
    try:
        with measure_peak(record=(7, 0)) as peak:
            smooth(data)
        assert len(peak.sequence.events) > 3
        del peak
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_an_exception_that_frees_an_array_is_said_to_be_lost():
    words = ["x"] * 1000
    with (
        pytest.raises(RecordingError, match="an exception inside NumPy was lost"),
        measure_peak(record=(1, 0)),
        suppress(ValueError),
    ):
        np.array(words, float)
