"""The runner on a GPU: memory of the pool, and a device that fails."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import numpy as np
import pytest

from maxslices import Pipeline, Registry, run
from maxslices.errors import MethodError
from maxslices.io import Sink
from maxslices.measure import Peak
from maxslices.runner.folder.unfinished_run import find_unfinished
from tests.planner.fakes import fakes
from tests.planner.ledgers import two
from tests.runner.fake_gpu import FakeEvent, FakeGpu
from tests.system.started_threads import record_started

DATA = np.random.default_rng(5).random((20, 6, 40), np.float32)


@pytest.fixture
def gpu(monkeypatch):
    backend = FakeGpu()

    @contextmanager
    def measure(kind, *, hooks, interval_s):
        assert not hooks  # which each allocation of a method would wait for
        assert kind == "cuda"
        backend.events.append("measure")
        yield Peak(kind, cupy_in_use_bytes=123)

    monkeypatch.setattr("maxslices.api.carry_out.select_backend", lambda device: backend)
    monkeypatch.setattr("maxslices.runner.section_run.measure_peak", measure)
    return backend


def hungry(fails_when):
    registry = Registry()

    def method(data):
        if fails_when(data):
            raise MemoryError("the pool is fragmented")
        return data * np.float32(2)

    registry.register(method, pattern="projection", calc_max_slices=two)
    return Pipeline.from_steps(["method"], registry)


def test_the_whole_section_is_measured_within_a_limited_pool(gpu):
    report = run(DATA, Pipeline.from_steps(["negate"], fakes), device="cuda", memory="1MB", block=8)
    np.testing.assert_array_equal(report.result, -DATA)
    assert gpu.events[0] == "limit 1000000"
    assert gpu.events.count("measure") == 1
    assert report.sections[0].measured_bytes == 123


def test_caches_are_emptied_before_a_block_of_another_size(gpu):
    def note(data):
        gpu.events.append(len(data))
        return data * np.float32(2)

    registry = Registry()
    registry.register(note, pattern="projection", calc_max_slices=two, halo=(2, 1))
    pipeline = Pipeline.from_steps(["note"], registry)
    report = run(DATA, pipeline, device="cuda", block=5)
    assert gpu.events[1:] == [
        "retain freed", "measure", 6, "forget plans", 8, 8, "forget plans", 7
    ]  # fmt: skip
    # With less than three times the memory it is not kept in pieces of another size.
    gpu.events.clear()
    needed = report.plan.estimated_bytes
    run(DATA, pipeline, device="cuda", block=5, memory=3 * needed - 1)
    assert gpu.events[1:] == ["release", "measure", 6, "release", 8, 8, "release", 7]


@pytest.fixture
def break_device(monkeypatch):
    """Make a function after which every call of the device fails, once 4 slices are written."""
    is_written = threading.Event()
    write = Sink.write

    def note(sink, slice_dim, start, block):
        write(sink, slice_dim, start, block)
        if start + len(block) >= 4:
            is_written.set()

    def fail(mark):
        raise RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")

    def breaks():
        assert is_written.wait(10)
        monkeypatch.setattr(FakeEvent, "synchronize", fail)

    monkeypatch.setattr(Sink, "write", note)
    return breaks


@pytest.mark.parametrize(
    ("at_once", "message"),
    [
        (True, "the first error"),
        (False, "the device failed in the section of method, after .* cudaErrorIllegalAddress"),
    ],
    ids=["at once", "later"],
)
def test_first_error_is_raised_and_finished_slices_are_kept(
    on_fake_gpu, break_device, tmp_path, at_once, message, monkeypatch
):
    def method(data):
        if (data == DATA[12]).all(axis=(1, 2)).any():
            break_device()
            if at_once:
                raise ValueError("the first error")
        return data * np.float32(2)

    registry = Registry()
    registry.register(method, pattern="projection", calc_max_slices=two)
    pipeline = Pipeline.from_steps([{"method": "method", "save_result": True}], registry)
    np.save(tmp_path / "scan.npy", DATA)
    started = record_started(monkeypatch)
    with on_fake_gpu(), pytest.raises(MethodError, match=message):
        run(tmp_path / "scan.npy", pipeline, tmp_path / "out", device="cuda", block=4)
    own = {thread.name: thread for thread in started}
    assert {"reader", "fetcher", "writer"} <= own.keys()
    assert not [name for name in ("reader", "fetcher", "writer") if own[name].is_alive]
    assert 4 <= find_unfinished(tmp_path / "out").sections[0].done.count <= 12
