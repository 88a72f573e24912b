"""What ends a run on a device that fails: the first error, and no thread that waits."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from maxslices import Pipeline, Registry, run
from maxslices.errors import MethodError
from maxslices.io.results.hdf5_sink import Hdf5Sink
from tests.planner.ledgers import two
from tests.runner.fake_gpu import FakeEvent
from tests.system.started_threads import record_started

DATA = np.random.default_rng(5).random((20, 6, 40), np.float32)


@pytest.fixture
def break_device(monkeypatch):
    """Make a function after which every call of the device fails, once 4 slices are written."""
    is_written = threading.Event()
    write = Hdf5Sink.write

    def note(sink, slice_dim, start, block):
        write(sink, slice_dim, start, block)
        if start + len(block) >= 4:
            is_written.set()

    def fail(mark):
        raise RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")

    def breaks():
        assert is_written.wait(10)
        monkeypatch.setattr(FakeEvent, "synchronize", fail)

    monkeypatch.setattr(Hdf5Sink, "write", note)
    return breaks


@pytest.mark.parametrize(
    ("says_so", "said"),
    [
        (True, "the first error"),
        (False, "the device failed in the section of method, after .* cudaErrorIllegalAddress"),
    ],
    ids=["at once", "later"],
)
def test_the_first_error_is_told_and_what_was_written_is_kept(
    on_fake_gpu, break_device, tmp_path, says_so, said, monkeypatch
):
    def method(data):
        if (data == DATA[12]).all(axis=(1, 2)).any():
            break_device()
            if says_so:
                raise ValueError("the first error")
        return data * np.float32(2)

    registry = Registry()
    registry.register(method, pattern="projection", calc_max_slices=two)
    pipeline = Pipeline.from_steps([{"method": "method", "save_result": True}], registry)
    started = record_started(monkeypatch)
    with on_fake_gpu(), pytest.raises(MethodError, match=said):
        run(DATA, pipeline, tmp_path / "out", device="cuda", block=4)
    own = {thread.name: thread for thread in started}
    assert {"reader", "fetcher", "writer"} <= own.keys()
    assert not [name for name in ("reader", "fetcher", "writer") if own[name].is_alive]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert 4 <= report["slices"][0] <= 12
