from __future__ import annotations

import time

import pytest

from maxslices.meters import device_memory
from maxslices.meters.device_memory import DeviceMeter


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_device_that_fails_is_no_error_of_the_meter(monkeypatch):
    n_read = [0]

    def read():
        n_read[0] += 1
        if n_read[0] > 1:
            raise RuntimeError("cudaErrorIllegalAddress: an illegal memory access")
        return 5

    monkeypatch.setattr(device_memory, "_reader", lambda: read)
    meter = DeviceMeter(1e-4)
    meter.start()
    while n_read[0] < 2:
        time.sleep(1e-4)
    meter.stop()
    assert (meter.before_bytes, meter.highest_bytes, meter.after_bytes) == (5, 5, None)
