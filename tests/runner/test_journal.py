"""What a journal has when writing it is interrupted, or fails."""

from __future__ import annotations

import errno
import os
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import maxslices
from maxslices.errors import StoreError
from maxslices.runner.folder import journal as journal_module
from maxslices.runner.folder.journal import Journal


def test_ctrl_c_once_a_block_is_noted_leaves_it_noted(tmp_path, monkeypatch):
    journal = Journal.create(tmp_path / "journal", {})
    write = os.write

    def write_and_stop(fd, line):
        write(fd, line)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write_and_stop)
        with pytest.raises(KeyboardInterrupt):
            journal.done(0, 0, 3, 3, {})
    assert journal.has_progress
    assert b'"done"' in (tmp_path / "journal").read_bytes()
    journal.close()


def test_what_cannot_be_noted_is_no_progress(tmp_path, monkeypatch):
    journal = Journal.create(tmp_path / "journal", {})

    def full(_fd, _line):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(StoreError):
            journal.done(0, 0, 3, 3, {})
    assert not journal.has_progress
    assert not journal.done(0, 0, 3, 3, {0: object()})
    assert not journal.has_progress
    journal.close()


def test_a_run_that_is_stopped_while_its_journal_is_made_leaves_nothing(tmp_path, monkeypatch):
    def stop_once_it_is_there(_journal, _path, _n_lines):
        raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "__init__", stop_once_it_is_there)
    np.save(tmp_path / "scan.npy", np.ones((4, 5, 6), np.float32))
    with pytest.raises(KeyboardInterrupt):
        maxslices.run(tmp_path / "scan.npy", ["minus_log"], tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def synced_at_once(monkeypatch):
    """File systems that are synced, by their numbers, in a run that does so all the time."""
    devices: list[int] = []
    monkeypatch.setattr(journal_module, "SYNC_INTERVAL_S", 0.001)
    monkeypatch.setattr(
        journal_module, "sync_file_system", lambda fd: devices.append(os.fstat(fd).st_dev)
    )
    return devices


def wait_for_line(path, word):
    while word not in path.read_bytes():
        pass


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="there is no other file system")
def test_the_file_system_of_scratch_files_is_synced_before_lines_are_called_safe(
    tmp_path, synced_at_once
):
    noted = Journal.create(tmp_path / "journal", {})
    noted.syncs(Path("/dev/shm"))
    noted.syncs(tmp_path)
    noted.begin(0, {"band_rows": 1, "n_files": 1})
    wait_for_line(tmp_path / "journal", b'"n_lines":2')
    noted.close()
    own, other = tmp_path.stat().st_dev, os.stat("/dev/shm").st_dev
    assert synced_at_once[-2:] == ([own, other] if own != other else [own, own])


def test_data_that_cannot_be_put_on_disk_are_never_called_safe(
    tmp_path, synced_at_once, monkeypatch
):
    calls = []

    def fail_once(fd):
        calls.append(fd)
        if len(calls) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(journal_module, "sync_file_system", fail_once)
    warned = threading.Event()
    monkeypatch.setattr(warnings, "showwarning", lambda *_, **__: warned.set())
    warnings.simplefilter("always")
    noted = Journal.create(tmp_path / "journal", {})
    assert warned.wait(10)
    noted.begin(0, None)
    noted.close()
    assert len(calls) == 1
    assert b"synced" not in (tmp_path / "journal").read_bytes()
