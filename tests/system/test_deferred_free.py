"""Files that are closed in threads, and runs that wait for their disk space."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from maxslices.errors import StoreError
from maxslices.system.disk_space import (
    check_free_space,
    close_in_background,
    wait_until_freed,
)


class SlowFile:
    """A file whose closing takes until it may end."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.closed = threading.Event(), threading.Event(), False

    def close(self) -> None:
        self.begun.set()
        assert self.may_end.wait(10)
        self.closed = True


def test_all_files_are_closed_at_the_same_time():
    files = [SlowFile() for _ in range(3)]
    close_in_background(files)
    assert all(file.begun.wait(10) for file in files)
    for file in files:
        file.may_end.set()
    wait_until_freed()
    assert all(file.closed for file in files)


def test_a_run_short_of_disk_waits_for_space_that_is_being_freed(tmp_path, monkeypatch):
    file = SlowFile()
    usage = lambda path: SimpleNamespace(free=100 if file.closed else 50)  # noqa: E731
    monkeypatch.setattr("shutil.disk_usage", usage)
    close_in_background([file])
    check_free_space(tmp_path, 50)
    assert not file.closed
    file.may_end.set()
    check_free_space(tmp_path, 51)
    assert file.closed
    with pytest.raises(StoreError, match="has 100 B free"):
        check_free_space(tmp_path, 101)
