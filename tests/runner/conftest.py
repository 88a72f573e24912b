"""A run on a simulated device."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from maxslices.measure import Peak
from tests.runner.fake_gpu import FakeGpu


@pytest.fixture
def on_fake_gpu(monkeypatch):
    """A context in which runs use a `FakeGpu`."""

    @contextmanager
    def measure(kind, *, hooks, interval_s):
        yield Peak(kind, cupy_in_use_bytes=123)

    @contextmanager
    def use(seed=None, fails_at=(), between=None, in_turns=False):
        """Simulate the device.

        Parameters
        ----------
        seed, fails_at
            Of the `FakeGpu`.
        between : str, optional
            Place of all data between sections.
        in_turns : bool
            Whether sections run without overlap.
        """
        with FakeGpu(seed, fails_at) as gpu, monkeypatch.context() as patch:
            patch.setattr("maxslices.api.carry_out.select_backend", lambda device: gpu)
            patch.setattr("maxslices.runner.section_run.measure_peak", measure)
            patch.setattr(
                "maxslices.runner.folder.unfinished_run.device_name", lambda device: "simulated"
            )
            if between is not None:
                patch.setattr(
                    "maxslices.planner.planning.PlacementSearch.can_be_held",
                    lambda self, number, origin, candidate, held: candidate == between,
                )
            if in_turns:
                patch.setattr(
                    "maxslices.planner.placement.Placement.with_best_overlap",
                    lambda self, available: self.in_turns(),
                )
            yield gpu
            assert gpu.faults == []

    return use
