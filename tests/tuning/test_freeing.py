from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from maxslices.errors import StoreError
from maxslices.io import ScratchStore, scratch
from maxslices.model.arrays import ArraySpec
from maxslices.runner import RunFolder
from maxslices.system import disk_space as room
from maxslices.system import threads
from maxslices.tuning import deferred_free as freeing
from maxslices.tuning.deferred_free import Freeing


class SlowFile:
    """A file whose closing takes until it is let go."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.closed = threading.Event(), threading.Event(), False

    def close(self) -> None:
        self.begun.set()
        assert self.may_end.wait(10)
        self.closed = True


def test_all_files_are_closed_at_the_same_time():
    files = [SlowFile() for _ in range(3)]
    given_back = Freeing(files)
    given_back.close()
    assert all(file.begun.wait(10) for file in files)
    for file in files:
        file.may_end.set()
    given_back.close()
    room.wait_until_freed()
    assert all(file.closed for file in files)


def test_a_closed_scratch_store_gives_its_room_back_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "N_THREADS", 4)
    store = ScratchStore(ArraySpec((2, 3, 4), "f4"), tmp_path)
    files = store._files
    store._freeing = Freeing([*files, slow := SlowFile()])
    store.close()
    assert not slow.closed
    slow.may_end.set()
    room.wait_until_freed()
    assert len(files) == 4
    assert all(file.closed for file in [*files, slow])


def test_where_room_is_short_what_is_being_given_back_is_waited_for(tmp_path, monkeypatch):
    file = SlowFile()
    monkeypatch.setattr(room, "_free_bytes", lambda path: 100 if file.closed else 50)
    given_back = Freeing([file])
    given_back.close()
    room.check_free_space(tmp_path, 50)
    assert not file.closed
    file.may_end.set()
    room.check_free_space(tmp_path, 51)
    assert file.closed
    with pytest.raises(StoreError, match="has 100 B free"):
        room.check_free_space(tmp_path, 101)


@pytest.mark.parametrize("memory_rows", [0, 3])
def test_what_is_forgotten_takes_no_room_any_more(tmp_path, monkeypatch, memory_rows):
    monkeypatch.setattr(threads, "N_THREADS", 3)
    monkeypatch.setattr(scratch, "_UNIT_BYTES", 2**18)
    data = np.random.default_rng(2).random((64, 20, 1024), np.float32)
    row_bytes = data[:, 0].nbytes
    punched = threading.Semaphore(0)
    punch = freeing.punch_hole

    def noting(fd, start, stop):
        punch(fd, start, stop)
        punched.release()

    monkeypatch.setattr(freeing, "punch_hole", noting)
    with ScratchStore(
        ArraySpec(data.shape, "f4"), tmp_path, band_rows=3, memory_bytes=memory_rows * row_bytes
    ) as store:
        store.write(0, 0, data)

        def on_disk():
            return sum(os.fstat(file.fileno()).st_blocks * 512 for file in store._files)

        before = on_disk()
        assert before >= (20 - memory_rows) * row_bytes
        store.forget(0, 64)  # along the other dim all of it is still wanted
        store.forget(1, 8)
        store.forget(1, 8)
        for _ in range(3 * (2 - memory_rows // 3)):
            assert punched.acquire(timeout=10)
        assert before - on_disk() >= (5 - memory_rows) * row_bytes
        out = np.empty_like(data[:, 6:])
        store.read(1, 6, 20, out)
        np.testing.assert_array_equal(out, data[:, 6:])


@pytest.fixture
def replaced(tmp_path):
    """A run's folder that is replaced, and the file of the run before."""
    with RunFolder(tmp_path) as folder:
        sink = folder.sink("result", ArraySpec((2, 3, 4), "f4"), 0)
        folder.finish()
        folder.write_report(f'{{"files": ["{sink.path.name}"], "timeline": null}}')
    return RunFolder(tmp_path, overwrite=True), sink.path


def test_an_earlier_result_is_gone_before_its_room_is_free(replaced, monkeypatch):
    slow = SlowFile()

    def with_slow(files):
        assert [file.name for file in files] == [str(path)]
        return Freeing([*files, slow])

    folder, path = replaced
    monkeypatch.setattr("maxslices.runner.results_folder.Freeing", with_slow)
    with folder:
        assert not path.exists()
    assert not slow.closed
    slow.may_end.set()
    room.wait_until_freed()
    assert slow.closed
