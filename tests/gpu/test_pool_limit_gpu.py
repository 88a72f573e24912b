"""CuPy's pool at its limit, on a GPU."""

from __future__ import annotations

import pytest

from maxslices.devices import select_backend
from maxslices.devices.cuda_copies import count_devices
from maxslices.measure import measure_peak

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(count_devices() == 0, reason="needs a CUDA device and CuPy"),
]

MB = 10**6


def fill(cupy):
    """Leave 60 MB of the pool unused, in blocks too small for what comes next."""
    blocks = [cupy.empty(20 * MB, "uint8") for _ in range(3)]
    del blocks
    return cupy.empty(70 * MB, "uint8")


def test_unused_memory_is_freed_before_a_request_is_refused():
    import cupy

    backend = select_backend("cuda")
    with backend.limited(100 * MB):
        del (arrays := [fill(cupy)])[0]
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
            cupy.empty(101 * MB, "uint8")
        assert cupy.empty(99 * MB, "uint8").nbytes == 99 * MB
        assert not arrays


def test_peaks_and_sequences_are_those_without_a_limit():
    import cupy

    backend = select_backend("cuda")
    peaks, sequences = [], []
    for budget in (10_000 * MB, 100 * MB):
        with backend.limited(budget), measure_peak("cuda", record=(1, 0)) as peak:
            fill(cupy)
        assert not peak.unseen
        peaks.append(peak.cupy_in_use_bytes)
        sequences.append(peak.sequence)
    assert peaks[0] == peaks[1]
    events = [[getattr(e, "n_bytes", 0) for e in each.events] for each in sequences]
    assert events[0] == events[1]
    assert sequences[0].sites == sequences[1].sites
