"""Threads that read, copy and write results, whose partner breaks off or hangs."""

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
from maxslices.runner.blocks.result_queue import ResultPiece, ResultQueue, Writer
from maxslices.runner.report.run_timeline import Timeline
from maxslices.system.threads import WorkThread, wait_for_event
from tests.runner.fake_gpu import FakeCopyEngine, FakeGpu
from tests.system.started_threads import record_started

DATA = np.ones((9, 5, 4), np.float32)
SHORT_S = 0.1
"""Limit of waits that are to end by it."""


@pytest.fixture
def timeline():
    return Timeline()


@pytest.fixture
def hangs():
    """A call that hangs until the end of the test."""
    end = threading.Event()
    yield lambda *_: end.wait(60) and None
    end.set()


def break_off(*_):
    raise MemoryError("no memory is left")


def broken_thread(work, name):
    """A thread that breaks off before its work."""
    return WorkThread(break_off, name)


def target(write=lambda *_: None):
    return SimpleNamespace(spec=ArraySpec(DATA.shape, DATA.dtype), write=write)


def reader(timeline, read=lambda *_: None, hang_s=60.0):
    source = SimpleNamespace(spec=ArraySpec(DATA.shape, DATA.dtype), read=read)
    blocks = blocks_of([range(9)], 3, (0, 0), 9)
    return ReadAhead(source, 0, blocks, CpuBackend(), timeline, True, hang_s)


def piece(release=lambda: None, write=lambda *_: None):
    return ResultPiece(DATA, 0, 0, [target(write)], release)


def in_thread(make):
    """What a thread that has ended made."""
    made = []
    owner = threading.Thread(target=lambda: made.append(make()))
    owner.start()
    owner.join()
    return made[0]


class TestReader:
    def test_one_that_breaks_off(self, timeline, monkeypatch):
        monkeypatch.setattr(block_feed, "WorkThread", broken_thread)
        with pytest.raises(MemoryError, match="no memory is left"):
            reader(timeline).take()

    def test_one_that_hangs(self, timeline, hangs):
        feed = reader(timeline, hangs, SHORT_S)
        with pytest.raises(MaxslicesError, match=r"the reader thread has not answered for 0\.1 s"):
            feed.take()
        with pytest.raises(MaxslicesError, match="the reader thread has not answered"):
            feed.close()

    def test_one_whose_owner_has_ended(self, timeline, monkeypatch):
        (started,) = in_thread(lambda: (record_started(monkeypatch), reader(timeline))[0])
        started.join(60)


class TestWriter:
    def test_one_that_breaks_off(self, timeline):
        writer = Writer(0, timeline)
        writer.put(piece(break_off))
        writer.stop()
        with pytest.raises(MemoryError, match="no memory is left"):
            writer.raise_error()

    def test_one_that_hangs(self, timeline, hangs):
        writer, written = Writer(0, timeline, hang_s=SHORT_S), threading.Event()
        writer.put(piece(written.set, hangs))
        with pytest.raises(MaxslicesError, match="the writer thread has not answered"):
            wait_for_event(written, writer.thread, SHORT_S)
        writer.stop()
        with pytest.raises(MaxslicesError, match="the writer thread has not answered"):
            writer.raise_error()

    def test_one_whose_owner_has_ended(self, timeline, monkeypatch):
        def make():
            started = record_started(monkeypatch)
            Writer(0, timeline).put(piece())
            return started

        (started,) = in_thread(make)
        started.join(60)


class TestFetcher:
    @pytest.fixture
    def results(self, timeline):
        """Function that makes a queue whose results leave a device in three pieces of a slice."""
        with FakeGpu() as gpu:
            yield lambda **limit: ResultQueue(
                0, gpu, timeline, most_slices=2, overlaps=True, **limit
            )

    def test_one_that_breaks_off(self, results, monkeypatch):
        monkeypatch.setattr(result_queue, "WorkThread", broken_thread)
        queue = results()
        queue.put(DATA, 0, [target()])
        with pytest.raises(MemoryError, match="no memory is left"):
            queue.flush()

    def test_one_that_hangs(self, results, hangs, monkeypatch):
        monkeypatch.setattr(FakeCopyEngine, "fetch", hangs)
        queue = results(hang_s=SHORT_S)
        queue.put(DATA, 0, [target()])
        with pytest.raises(MaxslicesError, match="the fetcher thread has not answered"):
            queue.flush()

    @pytest.mark.parametrize(
        ("fails", "error", "said"),
        [
            (True, MemoryError, "no memory is left"),
            (False, MaxslicesError, r"the (fetcher|writer) thread has not answered"),
        ],
        ids=["breaks off", "hangs"],
    )
    def test_one_whose_writer_fails(self, results, hangs, fails, error, said):
        """It waited without end for staging memory that nobody would release."""
        queue = results(hang_s=60.0 if fails else SHORT_S)
        queue.put(DATA, 0, [target(break_off if fails else hangs)])
        with pytest.raises(error, match=said):
            queue.flush()

    def test_one_whose_owner_has_ended(self, results, monkeypatch):
        def make():
            started = record_started(monkeypatch)
            results().put(DATA, 0, [target()])
            return started

        for started in in_thread(make):
            started.join(60)


class Unable:
    """An event that cannot be set."""

    def __init__(self):
        self.set = break_off

    def wait(self, timeout=None):
        return False


@pytest.mark.parametrize("thread", ["reader", "writer"])
def test_the_run_ends_with_an_error_and_does_not_hang(tmp_path, monkeypatch, thread):
    if thread == "reader":
        monkeypatch.setattr(block_feed, "WorkThread", broken_thread)
    else:
        # Events of results alone: the journal's thread would never end without its own.
        events = SimpleNamespace(**{**vars(threading), "Event": Unable})
        monkeypatch.setattr("maxslices.runner.blocks.result_queue.threading", events)
    np.save(tmp_path / "scan.npy", np.ones((40, 6, 8), np.float32))
    with pytest.raises((OutOfMemoryError, MemoryError)):
        run(tmp_path / "scan.npy", ["minus_log"], tmp_path / "out", device="cpu", block=4)
