"""Threads that read, copy and write results, when the thread at the other end fails or hangs."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from maxslices import run
from maxslices.core.arrays import ArraySpec
from maxslices.devices.cpu import CpuBackend
from maxslices.errors import MaxslicesError, OutOfMemoryError
from maxslices.runner.blocks import block_feed, result_queue
from maxslices.runner.blocks.block_feed import ReadAhead, blocks_of
from maxslices.runner.blocks.result_queue import ResultQueue
from maxslices.runner.report.run_timeline import Timeline
from maxslices.system.threads import WorkThread
from tests.runner.fake_gpu import FakeCopyEngine, FakeGpu
from tests.system.started_threads import record_started

DATA = np.ones((9, 5, 4), np.float32)
SHORT_S = 0.1
"""Limit of the waits that are expected to reach it."""


@pytest.fixture
def hangs():
    """A call that hangs until the end of the test."""
    end = threading.Event()
    yield lambda *_: end.wait(60) and None
    end.set()


def fails(*_):
    raise MemoryError("no memory is left")


def failing_thread(work, name):
    return WorkThread(fails, name)


def target(write=lambda *_: None):
    return SimpleNamespace(spec=ArraySpec(DATA.shape, DATA.dtype), write=write)


def reader(read=lambda *_: None, hang_s=60.0):
    source = SimpleNamespace(spec=ArraySpec(DATA.shape, DATA.dtype), read=read)
    blocks = blocks_of([range(9)], 3, (0, 0), 9)
    return ReadAhead(source, 0, blocks, CpuBackend(), Timeline(), True, hang_s)


def queue(backend=None, hang_s=60.0):
    """A queue; results leave a `FakeGpu` in three pieces."""
    backend = backend or CpuBackend()
    return ResultQueue(0, backend, Timeline(), most_slices=2, overlaps=True, hang_s=hang_s)


def write_one(results, write=lambda *_: None):
    results.put(DATA, 0, [target(write)])
    results.flush()


def test_reader_that_fails(monkeypatch):
    monkeypatch.setattr(block_feed, "WorkThread", failing_thread)
    with pytest.raises(MemoryError, match="no memory is left"):
        reader().take()


def test_reader_that_hangs(hangs):
    feed = reader(hangs, SHORT_S)
    for call in (feed.take, feed.close):
        with pytest.raises(MaxslicesError, match=r"the reader thread has not answered for 0\.1 s"):
            call()


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_writer_that_fails(device):
    with FakeGpu() as gpu, pytest.raises(MemoryError, match="no memory is left"):
        write_one(queue(gpu if device == "gpu" else None), fails)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_writer_that_hangs(device, hangs):
    """On a GPU, staging memory was awaited without end that nothing released."""
    message = r"the (fetcher|writer) thread has not answered"
    with FakeGpu() as gpu, pytest.raises(MaxslicesError, match=message):
        write_one(queue(gpu if device == "gpu" else None, SHORT_S), hangs)


def test_fetcher_that_fails(monkeypatch):
    monkeypatch.setattr(result_queue, "WorkThread", failing_thread)
    with FakeGpu() as gpu, pytest.raises(MemoryError, match="no memory is left"):
        write_one(queue(gpu))


def test_fetcher_that_hangs(hangs, monkeypatch):
    monkeypatch.setattr(FakeCopyEngine, "fetch", hangs)
    message = "the fetcher thread has not answered"
    with FakeGpu() as gpu, pytest.raises(MaxslicesError, match=message):
        write_one(queue(gpu, SHORT_S))


@pytest.mark.parametrize("thread", ["reader", "writer", "fetcher"])
def test_threads_end_with_their_owner(thread, monkeypatch):
    started = record_started(monkeypatch)
    with FakeGpu() as gpu:

        def start():
            if thread == "reader":
                reader()
            else:
                queue(gpu if thread == "fetcher" else None).put(DATA, 0, [target()])

        owner = threading.Thread(target=start)
        owner.start()
        owner.join()
        assert thread in {each.name for each in started}
        for each in started:
            each.join(60)


class UnsettableEvent:
    """An event that cannot be set."""

    set = fails

    def wait(self, timeout=None):
        return False


@pytest.mark.parametrize("thread", ["reader", "writer"])
def test_run_ends_with_an_error(tmp_path, monkeypatch, thread):
    if thread == "reader":
        monkeypatch.setattr(block_feed, "WorkThread", failing_thread)
    else:
        # For results only, because the thread of the journal needs its events to end.
        events = SimpleNamespace(**{**vars(threading), "Event": UnsettableEvent})
        monkeypatch.setattr(result_queue, "threading", events)
    np.save(tmp_path / "scan.npy", np.ones((40, 6, 8), np.float32))
    with pytest.raises((OutOfMemoryError, MemoryError)):
        run(tmp_path / "scan.npy", ["minus_log"], tmp_path / "out", device="cpu", block=4)
