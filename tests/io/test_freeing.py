from __future__ import annotations

import threading

import pytest

from maxslices.arrays import ArraySpec
from maxslices.errors import StoreError
from maxslices.io import ScratchStore, threads
from maxslices.io.freeing import Freeing
from maxslices.runner import RunFolder


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
    freeing = Freeing(files)
    assert all(file.begun.wait(10) for file in files)
    for file in files:
        file.may_end.set()
    freeing.wait()
    assert all(file.closed for file in files)
    freeing.wait()


def test_a_closed_scratch_store_has_given_its_room_back(tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "N_THREADS", 4)
    store = ScratchStore(ArraySpec((2, 3, 4), "f4"), tmp_path)
    files = store._files
    store.close()
    assert len(files) == 4
    assert all(file.closed for file in files)


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
    monkeypatch.setattr("maxslices.runner.folder.Freeing", with_slow)
    with folder:
        assert not path.exists()
        folder.check_room(1)  # there is plenty
        assert not slow.closed
        slow.may_end.set()
    assert slow.closed


def test_where_room_is_short_that_of_an_earlier_result_is_waited_for(replaced, monkeypatch):
    waited = []
    monkeypatch.setattr(Freeing, "wait", lambda self: waited.append(self))
    usage = type("usage", (), {"free": 100})
    monkeypatch.setattr("maxslices.runner.folder.disk_usage", lambda path: usage)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    folder, _ = replaced
    with folder:
        folder.check_room(50)
        assert waited == []
        folder.check_room(100)
        assert len(waited) == 1
        with pytest.raises(StoreError, match="has 100 B free"):
            folder.check_room(101)
