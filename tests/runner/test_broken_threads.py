"""A thread of a run that breaks off, as it finds no memory even for an error."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from maxslices import run
from maxslices.errors import OutOfMemoryError
from maxslices.runner.blocks.block_feed import ReadAhead

DATA = np.arange(40 * 6 * 8, dtype=np.float32).reshape(40, 6, 8)


def break_off(*_args):
    raise MemoryError("no memory is left")


class Unable:
    """An event that cannot be set."""

    def __init__(self):
        self.set = break_off

    def wait(self, timeout=None):
        return False


@pytest.mark.parametrize("thread", ["reader", "writer"])
def test_the_run_ends_with_an_error_and_does_not_hang(tmp_path, monkeypatch, thread):
    if thread == "reader":
        monkeypatch.setattr(ReadAhead, "_work", break_off)
    else:
        # Events of results alone: the journal's thread would never end without its own.
        events = SimpleNamespace(Event=Unable)
        monkeypatch.setattr("maxslices.runner.blocks.result_queue.threading", events)
    np.save(tmp_path / "scan.npy", DATA)
    with pytest.raises((OutOfMemoryError, MemoryError)):
        run(tmp_path / "scan.npy", ["minus_log"], tmp_path / "out", device="cpu", block=4)
