"""What a journal has when writing it is interrupted, or fails."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

import maxslices
from maxslices.errors import StoreError
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
            journal.done(0, 3, 3, {})
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
            journal.done(0, 3, 3, {})
    assert not journal.has_progress
    assert not journal.done(0, 3, 3, {0: object()})
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
