"""What the tests of estimators share."""

from __future__ import annotations

import numpy as np
import pytest

from maxslices.devices import sample_data
from maxslices.devices.sample_data import Samples
from maxslices.estimate import bench, probed, sequence_probe

from .made_up_gpu import Gpu


@pytest.fixture
def gpu(monkeypatch):
    return install_gpu(monkeypatch, Gpu())


def install_gpu(monkeypatch, gpu):
    """Let a GPU that is made up stand for CuPy, the backend, the meters and the clock."""
    monkeypatch.setattr(bench, "measure_peak", gpu.measure_peak)
    for module in (bench, sample_data):
        monkeypatch.setattr(module, "array_module", gpu.module)
    monkeypatch.setattr(bench, "alive_bytes", lambda kind: gpu.held + gpu.kept)
    monkeypatch.setattr(probed, "time", gpu)
    monkeypatch.setattr(sequence_probe, "time", gpu)
    monkeypatch.setattr(bench, "time", gpu)
    small = np.zeros(1, np.float32)

    def block(self, n, kind):
        gpu.kind_of_data = kind
        return np.broadcast_to(small, self.shape(n))

    monkeypatch.setattr(Samples, "block", block)
    monkeypatch.setattr(Samples, "_make_frames", lambda *call: gpu.make_frames(*call))
    return gpu
