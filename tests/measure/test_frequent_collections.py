"""What waits for the garbage collector by chance is not counted as memory of a method."""

from __future__ import annotations

import gc

from maxslices.measure import measure_peak


def test_garbage_in_cycles_does_not_pile_up_and_thresholds_come_back():
    usual = gc.get_threshold()
    with measure_peak() as peak:
        for _ in range(600):  # fewer than the collector usually waits for
            cycle = [bytes(1000)]
            cycle.append(cycle)
    assert peak.numpy_bytes < 200_000
    assert gc.get_threshold() == usual
