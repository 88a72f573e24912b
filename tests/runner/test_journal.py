"""A journal that is interrupted or fails, the values in it, and slices that are done."""

from __future__ import annotations

import errno
import json
import os
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from maxslices.errors import StoreError
from maxslices.runner.blocks.block_feed import blocks_of
from maxslices.runner.folder import journal as journal_module
from maxslices.runner.folder.journal import Journal, decode, encode
from maxslices.runner.folder.unfinished_run import DoneSlices


def test_failed_notes_leave_no_line(tmp_path, monkeypatch):
    journal = Journal.create(tmp_path / "journal", {})

    def full(_fd, _line):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(StoreError):
            journal.done(0, 0, 3, 3, {})
    assert not journal.done(0, 0, 3, 3, {0: object()})
    journal.close()
    assert len((tmp_path / "journal").read_bytes().splitlines()) == 1


@pytest.fixture
def synced_at_once(monkeypatch):
    """File systems that are synced, by their numbers, in a run that does so all the time."""
    devices: list[int] = []
    monkeypatch.setattr(journal_module, "SYNC_INTERVAL_S", 0.001)
    monkeypatch.setattr(
        journal_module, "sync_file_system", lambda fd: devices.append(os.fstat(fd).st_dev)
    )
    return devices


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="there is no other file system")
def test_file_system_of_scratch_files_is_synced_before_lines_are_safe(tmp_path, monkeypatch):
    own, other = tmp_path.stat().st_dev, os.stat("/dev/shm").st_dev
    if own == other:
        pytest.skip("/dev/shm is the file system of temporary files")
    path, syncs, is_synced = tmp_path / "journal", [], threading.Event()

    def sync(fd):
        syncs.append((os.fstat(fd).st_dev, path.read_bytes().count(b"synced")))
        if syncs[-1][0] == other:
            is_synced.set()

    monkeypatch.setattr(journal_module, "SYNC_INTERVAL_S", 0.001)
    monkeypatch.setattr(journal_module, "sync_file_system", sync)
    noted = Journal.create(path, {})
    noted.syncs(Path("/dev/shm"))
    noted.syncs(tmp_path)
    assert is_synced.wait(60)
    noted.close()
    at = next(i for i, (device, _) in enumerate(syncs) if device == other)
    assert syncs[at - 1][0] == own
    assert syncs[at][1] <= at  # a line is called safe once both are synced


def test_lines_are_not_safe_after_a_failed_sync(tmp_path, synced_at_once, monkeypatch):
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
    noted.note("begin", section=0)
    noted.close()
    assert len(calls) == 1
    assert b"synced" not in (tmp_path / "journal").read_bytes()


DTYPES = st.sampled_from(["?", "<i2", ">u4", "<f4", "<f8", "<c8", "<U3", "S2"])
ARRAYS = arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, max_side=3))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
KEYS = st.integers() | st.text()
VALUES = st.recursive(
    PLAIN | ARRAYS | ARRAYS.map(lambda array: array.reshape(-1)[0]),
    lambda each: st.lists(each) | st.lists(each).map(tuple) | st.dictionaries(KEYS, each),
    max_leaves=5,
)


def same(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    if isinstance(one, (np.ndarray, np.generic)):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return one == other or (one != one and other != other)


@given(VALUES)
def test_encoded_values_keep_bits_and_type(value):
    assert same(decode(json.loads(json.dumps(encode(value)))), value)


class Array(np.ndarray):
    """An array of another type."""


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, [object()], np.array([object()]), np.zeros(2).view(Array), b"x"]
)
def test_unsupported_value_is_rejected(value):
    with pytest.raises(TypeError, match="cannot be written to the journal"):
        encode(value)


@given(st.sets(st.integers(0, 30)), st.randoms(use_true_random=False))
def test_intervals_match_a_set(wanted, random):
    done, order = DoneSlices(), sorted(wanted)
    random.shuffle(order)
    for each in order:
        done.add(each, each + 1)
    assert {i for start, stop in done.parts for i in range(start, stop)} == wanted
    assert all(a[1] < b[0] for a, b in zip(done.parts, done.parts[1:], strict=False))
    assert {i for part in done.missing(31) for i in part} == set(range(31)) - wanted
    assert done.count == len(wanted)
    assert done.n_first == next(i for i in range(32) if i not in wanted)


@pytest.mark.parametrize("part", [(2, 2), (5, 4), (3, 6), (0, 3), (2, 9), (4, 5), (-1, 1)])
def test_empty_or_overlapping_interval_is_rejected(part):
    done = DoneSlices()
    done.add(2, 5)
    with pytest.raises(ValueError, match="slices"):
        done.add(*part)


def test_blocks_stay_within_intervals():
    blocks = blocks_of([range(1, 4), range(7, 8)], 2, (1, 2), 9)
    assert [(b.start, b.stop, b.first, b.last) for b in blocks] == [
        (1, 3, 0, 5), (3, 4, 2, 6), (7, 8, 6, 9)
    ]  # fmt: skip
