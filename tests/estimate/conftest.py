"""What the tests of estimators share."""

from __future__ import annotations

import numpy as np
import pytest

from maxslices.estimate import probe, sequence_probe
from maxslices.trial import trial
from maxslices.trial.trial import Trial

from .made_up_gpu import Gpu


@pytest.fixture
def gpu(monkeypatch):
    return install_gpu(monkeypatch, Gpu())


def install_gpu(monkeypatch, gpu):
    """Replace CuPy, the backend, the meters and the clock by a simulated GPU."""
    monkeypatch.setattr(trial, "measure_peak", gpu.measure_peak)
    monkeypatch.setattr(trial, "array_module", gpu.module)
    monkeypatch.setattr(trial, "finish", lambda backend: None)
    monkeypatch.setattr(trial, "alive_bytes", lambda kind: gpu.held + gpu.kept)
    monkeypatch.setattr(probe, "time", gpu)
    monkeypatch.setattr(sequence_probe, "time", gpu)
    monkeypatch.setattr(trial, "time", gpu)
    small = np.zeros(1, np.float32)

    def data(self, n, kind=None):
        gpu.kind_of_data = self.kind
        return np.broadcast_to(small, self.shape(n))

    monkeypatch.setattr(Trial, "data", data)
    monkeypatch.setattr(Trial, "make_frames", lambda *call: gpu.make_frames(*call))
    return gpu
