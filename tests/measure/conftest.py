"""Fakes of CuPy's pool and of torch's peak statistics."""

import sys
from types import SimpleNamespace

import pytest

from . import fake_cupy_pool


@pytest.fixture
def cupy(monkeypatch):
    return fake_cupy_pool.install(monkeypatch)


class FakeCuda:
    """Allocates in blocks of 512 bytes, and reserves 2 MiB at a time."""

    def __init__(self):
        self.current = {"allocated": 0, "reserved": 0}
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
