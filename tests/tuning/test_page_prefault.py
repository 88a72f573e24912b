"""Pages that a thread makes before an array is written to."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from maxslices.tuning.heap import PagePrefault, is_glibc, libc
from tests.system.started_threads import record_started
from tests.tuning.page_faults import faults_of

N_BYTES = 2**26


def can_populate():
    place = np.empty(2**24, np.uint8)
    first = -(-place.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    return is_glibc() and libc().madvise(first, mmap.PAGESIZE, 23) == 0


@pytest.mark.skipif(not can_populate(), reason="the system makes no pages ahead")
def test_pages_are_there_before_they_are_written_to():
    place = np.empty(N_BYTES, np.uint8)
    place[: 2**20] = 7
    PagePrefault(place.ctypes.data, place.nbytes).wait()
    assert (place[: 2**20] == 7).all()
    assert faults_of(lambda: place.fill(1)) < 8


def test_pages_that_cannot_be_made_ahead_are_made_when_written_to(monkeypatch):
    monkeypatch.setattr("maxslices.tuning.heap._POPULATE_WRITE", 12345)
    place = np.empty(N_BYTES, np.uint8)
    asked = libc().madvise(place.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE, 1, 12345)
    assert asked == -1
    PagePrefault(place.ctypes.data, place.nbytes).wait()
    assert faults_of(lambda: place.fill(1)) >= 16  # pages of 4 MiB at most
    assert (place == 1).all()


def test_memory_that_is_gone_is_left_alone(monkeypatch):
    started = record_started(monkeypatch)
    place = np.empty(N_BYTES, np.uint8)
    ahead = PagePrefault(place.ctypes.data, place.nbytes)
    del place
    ahead.stop()
    assert [(thread.name, thread.is_alive) for thread in started] == [("pages", False)]
