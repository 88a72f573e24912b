"""torch's meter on a fake of torch's peak statistics."""

import sys
from types import SimpleNamespace

import pytest

from maxslices.measure.torch_cuda_memory import TorchMeter


class FakeCuda:
    """Allocates in blocks of 512 bytes, and reserves 2 MiB at a time."""

    def __init__(self):
        self.current = {"allocated": 0, "requested": 0, "reserved": 0}
        self.peak = dict(self.current)
        self.initialized = True

    def is_available(self):
        return True

    def is_initialized(self):
        return self.initialized

    def current_device(self):
        return 0

    def memory_allocated(self, index=0):
        return self.current["allocated"]

    def memory_stats_as_nested_dict(self):
        return {
            f"{kind}_bytes": {"all": {"current": value, "peak": self.peak[kind]}}
            for kind, value in self.current.items()
        }

    def reset_peak_memory_stats(self):
        self.peak = dict(self.current)

    def alloc(self, n_bytes, sign=1):
        self.current["requested"] += sign * n_bytes
        self.current["allocated"] += sign * -(-n_bytes // 512) * 512
        needed = -(-self.current["allocated"] // 2**21) * 2**21
        self.current["reserved"] = max(self.current["reserved"], needed)
        for kind, value in self.current.items():
            self.peak[kind] = max(self.peak[kind], value)

    def free(self, n_bytes):
        self.alloc(n_bytes, -1)


@pytest.fixture
def cuda(monkeypatch):
    cuda = FakeCuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    return cuda


def figures(meter):
    return tuple(meter.figures[f"{k}_bytes"] for k in ("allocated", "requested", "reserved"))


def test_three_figures_apart(cuda):
    meter = TorchMeter()
    meter.start()
    cuda.alloc(1000)
    cuda.alloc(700)
    cuda.free(1000)
    meter.stop()
    assert figures(meter) == (2048, 1700, 2**21)


def test_what_was_alive_before_is_not_counted(cuda):
    cuda.alloc(51_200)
    meter = TorchMeter()
    meter.start()
    cuda.alloc(512)
    meter.stop()
    assert figures(meter) == (512, 512, 2**21 - 51_200)


def test_nested_measurements_keep_each_their_peak(cuda):
    outer, inner = TorchMeter(), TorchMeter()
    outer.start()
    cuda.alloc(5120)
    cuda.free(5120)
    cuda.alloc(512)
    inner.start()
    cuda.alloc(1024)
    cuda.free(1024)
    inner.stop()
    outer.stop()
    assert figures(inner)[0] == 1024
    assert figures(outer)[0] == 5120


def test_a_torch_that_was_not_used_on_the_device_is_unavailable(cuda):
    cuda.initialized = False
    meter = TorchMeter()
    meter.start()
    meter.stop()
    assert meter.figures is None


def test_statistics_reset_inside_are_reported_if_a_sample_saw_more(cuda):
    meter = TorchMeter()
    meter.start()
    cuda.alloc(5120)
    meter.sample()
    cuda.free(5120)
    cuda.reset_peak_memory_stats()
    meter.stop()
    assert meter.unseen == ["the code reset torch's peak statistics"]
