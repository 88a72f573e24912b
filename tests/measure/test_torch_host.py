"""torch's memory on the CPU, counted with NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from maxslices.core.declaration import describe
from maxslices.devices import call_method, select_backend
from maxslices.measure import measure_peak
from maxslices.measure.torch_cpu_memory import counted

torch = pytest.importorskip("torch")
MIB = 2**20
NOISE_BYTES = 48 * 1024


def run(function, data):
    meta = describe(function, pattern="all", array_module="torch", name="tried")
    return call_method(meta, data, {}, select_backend("cpu"))


def three(data):
    a = torch.zeros(3 * MIB, dtype=torch.uint8)
    del a
    b = torch.zeros(5 * MIB, dtype=torch.uint8)
    c = torch.zeros(2 * MIB, dtype=torch.uint8)
    del b
    return c


def test_the_most_that_torch_had_alive_is_added_to_what_numpy_has():
    run(three, np.zeros((1, 1, 1)))  # imports
    with measure_peak() as peak:
        data = np.zeros((1, 1, 4 * MIB), np.uint8)
        result = run(three, data)
    assert 11 * MIB <= peak.numpy_bytes <= 11 * MIB + NOISE_BYTES
    assert peak.unseen == []
    assert result.nbytes == 2 * MIB


def test_peaks_at_different_times_are_not_added():
    run(three, np.zeros((1, 1, 1)))
    with measure_peak() as peak:
        np.zeros(6 * MIB, np.uint8)
        run(three, np.zeros((1, 1, 1)))
        np.zeros(5 * MIB, np.uint8)
    assert 7 * MIB <= peak.numpy_bytes <= 7 * MIB + NOISE_BYTES


def test_a_result_counts_until_its_last_view_is_gone():
    with measure_peak() as peak:
        result = run(three, np.zeros((1, 1, 1)))
        part = result[:10]
        del result
        other = np.zeros(7 * MIB, np.uint8)  # beside the 2 of the result
        del other, part
        np.zeros(8 * MIB, np.uint8)
    assert 9 * MIB <= peak.numpy_bytes <= 9 * MIB + NOISE_BYTES


def test_memory_of_numpy_is_not_counted_twice():
    data = np.zeros((1, 1, 4 * MIB), np.uint8)
    run(lambda data: data, data)
    with measure_peak() as peak:
        copy = data.copy()
        result = run(lambda data: data[:, :, 1:], copy)
    assert peak.numpy_bytes <= 4 * MIB + NOISE_BYTES
    assert result.size == 4 * MIB - 1


def test_an_error_comes_through_and_its_memory_counts():
    def fail():
        kept = torch.zeros(3 * MIB, dtype=torch.uint8)
        raise KeyError(kept.numel())

    with measure_peak() as peak, pytest.raises(KeyError):
        counted(fail)
    assert 3 * MIB <= peak.numpy_bytes <= 3 * MIB + NOISE_BYTES


def test_a_profile_of_the_callers_is_left_alone():
    with measure_peak() as peak, torch.autograd.profiler.profile() as profile:
        assert counted(lambda: torch.zeros(5).numel()) == 5
    assert any(event.name == "aten::zeros" for event in profile.function_events)
    assert peak.numpy_bytes is not None
