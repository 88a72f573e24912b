"""Pieces of a file that are read by one call, one by one, and from several threads."""

from __future__ import annotations

import os
import platform
from contextlib import suppress

import numpy as np
import pytest

from maxslices.tuning import file_transfer
from maxslices.tuning.file_transfer import pread_pieces

DATA = np.random.default_rng(3).integers(0, 255, 50_000).astype("u1")
OFFSETS = np.random.default_rng(4).integers(0, 49_000, 700)


@pytest.fixture
def fd(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(DATA.tobytes())
    fd = os.open(path, os.O_RDWR)
    yield fd
    os.close(fd)


@pytest.fixture(params=["at once", "one by one"])
def how(request, monkeypatch):
    if request.param == "one by one":
        monkeypatch.setattr(platform, "machine", lambda: "unknown")


@pytest.mark.parametrize("count", [1, 2, 256, 257, 700])
def test_every_piece_is_read(fd, how, count):
    outs = np.zeros((count, 3, 100), "u1")
    pread_pieces(fd, outs, OFFSETS[:count])
    for out, offset in zip(outs, OFFSETS, strict=False):
        np.testing.assert_array_equal(out.ravel(), DATA[offset:][:300])


def test_pieces_with_gaps_between_them(fd, how):
    whole = np.zeros((20, 5, 10), "u2")
    pread_pieces(fd, whole[:, 1:4], OFFSETS[:20])
    for rows, offset in zip(whole, OFFSETS, strict=False):
        np.testing.assert_array_equal(rows[1:4].ravel(), DATA[offset:][:60].view("u2"))
    assert not whole[:, [0, 4]].any()


def test_a_file_that_ends_within_a_piece(fd, how):
    outs = np.zeros((3, 100), "u1")
    with pytest.raises(EOFError, match="ends at byte 50000, 50 bytes too early"):
        pread_pieces(fd, outs, np.array([0, 49_950, 100]))
    np.testing.assert_array_equal(outs[0], DATA[:100])


def test_a_file_that_cannot_be_read(tmp_path, how):
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(IsADirectoryError):
            pread_pieces(fd, np.zeros((3, 100), "u1"), np.arange(3))
    finally:
        os.close(fd)


def test_events_of_an_interrupted_read_are_dropped(fd, monkeypatch):
    call, calls = file_transfer.system_call, []
    numbers = file_transfer.CALL_NUMBERS.get(platform.machine(), (0, 0, 0, 0))

    def stopped(number, *arguments):
        calls.append(number)
        if number == numbers[2]:  # io_getevents
            raise KeyboardInterrupt
        return call(number, *arguments)

    outs = np.zeros((3, 100), "u1")
    with monkeypatch.context() as patch:
        patch.setattr(file_transfer, "system_call", stopped)
        with suppress(KeyboardInterrupt):
            pread_pieces(fd, outs, OFFSETS[:3])
    if numbers[2] not in calls:
        pytest.skip("this system reads one by one")
    with pytest.raises(EOFError):
        pread_pieces(fd, outs, np.full(3, len(DATA)))
