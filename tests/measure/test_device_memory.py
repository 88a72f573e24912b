from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest

from maxslices.errors import DeviceError
from maxslices.measure.device_memory import DeviceMeter

from . import fake_cupy_pool


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_device_that_fails_is_no_error_of_the_meter(monkeypatch):
    cupy, failed = fake_cupy_pool.install(monkeypatch), threading.Event()

    def fail():
        failed.set()
        raise RuntimeError("cudaErrorIllegalAddress: an illegal memory access")

    meter = DeviceMeter(1e-4)
    meter.start()
    cupy.cuda.runtime.memGetInfo = fail
    assert failed.wait(10)
    meter.stop()
    assert meter.before_bytes == meter.highest_bytes == 10**9
    assert meter.after_bytes is None


def test_torch_reads_the_device_where_cupy_is_not_at_work(monkeypatch):
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: 3,
        mem_get_info=lambda index: (100 - index, 100),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    meter = DeviceMeter(1.0)
    meter.start()
    meter.stop()
    assert (meter.before_bytes, meter.highest_bytes, meter.after_bytes) == (3, 3, 3)


def test_without_a_cuda_library_nothing_is_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # an import fails
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    meter = DeviceMeter(1.0)
    meter.start()
    meter.stop()
    assert (meter.before_bytes, meter.highest_bytes, meter.after_bytes) == (None, None, None)


def test_a_missing_device_is_told(monkeypatch):
    def missing():
        raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")

    cupy = fake_cupy_pool.install(monkeypatch)
    cupy.cuda.Device = missing
    with pytest.raises(DeviceError, match="no CUDA device to measure: cudaErrorNoDevice"):
        DeviceMeter(1.0).start()
