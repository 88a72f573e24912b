"""Results that leave a device in parts."""

from __future__ import annotations

import numpy as np
import pytest

from maxslices.runner.blocks import fetcher
from maxslices.runner.blocks.fetcher import Fetcher
from maxslices.runner.blocks.writer import ResultPiece, ResultTransfer, Writer
from maxslices.runner.report.run_timeline import Timeline
from tests.runner.fake_gpu import FakeGpu


@pytest.mark.parametrize("slice_dim", [0, 1])
def test_no_more_than_a_few_parts_are_asked_for_at_one_time(monkeypatch, slice_dim):
    monkeypatch.setattr(fetcher, "_PART_BYTES", 900)
    monkeypatch.setattr(fetcher, "_PARTS", 3)
    waiting = []

    with FakeGpu() as gpu:
        engine = gpu.copy_engine()
        fetch = engine.fetch

        def counted(data, host, after):
            assert data.nbytes <= 900
            marks = fetch(data, host, after)
            waiting.append(len(engine._streams["out"]))
            return marks

        monkeypatch.setattr(engine, "fetch", counted)
        whole = gpu.host_empty((37, 19, 11), "float32")
        data = np.random.default_rng(3).random((37, 7, 11) if slice_dim else (7, 19, 11), "f4")
        start = 5
        place = whole[:, start : start + 7] if slice_dim else whole[start : start + 7]
        threads = Fetcher(slice_dim, engine, Writer(slice_dim, Timeline()), 7, overlaps=True)
        transfer = ResultTransfer(start)
        left = threads.put(data, None, engine.record(), transfer, False, place)
        threads.stop()
    assert left.is_set()
    np.testing.assert_array_equal(place, data)
    assert max(waiting) == 3
    assert len(waiting) == (19 if slice_dim else 7)
    [(first, stop, n_bytes, begin, end)] = transfer.copies
    assert (first, stop, n_bytes) == (5, 12, data.nbytes)
    assert begin.time_s() <= end.time_s()


class Nowhere:
    """A target that takes slices and keeps none."""

    def write(self, slice_dim, start, block):
        pass


def test_a_writer_that_broke_off_does_not_keep_the_fetcher_waiting():
    """It waited without end for staging memory that nobody would release."""

    def break_off():
        raise MemoryError("no memory is left")

    with FakeGpu() as gpu:
        timeline = Timeline()
        timeline.begin_section("one")
        engine, writer = gpu.copy_engine(), Writer(0, timeline)
        threads = Fetcher(0, engine, writer, 2, overlaps=True)  # three pieces of one slice
        data = np.ones((9, 5, 4), np.float32)
        writer.put(ResultPiece(data, 0, [Nowhere()], ResultTransfer(0), break_off))
        left = threads.put(data, Nowhere(), engine.record(), ResultTransfer(0), False)
        threads.wait_for(left)
        threads.stop()
        writer.stop()
        with pytest.raises(MemoryError, match="no memory is left"):
            writer.raise_error()
