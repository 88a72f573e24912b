"""The benchmark of the runner works: its table, its data, and each part at a tiny size."""

from __future__ import annotations

import importlib
import threading
import weakref

import h5py
import numpy as np
import pytest

from .goals import data, machine
from .goals.__main__ import PARTS
from .goals.rows import Row, table


@pytest.mark.parametrize("name", PARTS)
def test_every_part_runs_at_a_tiny_size(name, tmp_path):
    part = importlib.import_module(f"tests.benchmarks.goals.part_{name}")
    rows = list(part.rows(True, tmp_path))
    assert rows
    # whatever the speed: what is computed must be right
    wrong = [row for row in rows if row.better == "more" and row.unit == "" and not row.passed]
    assert wrong == []


def test_a_target_is_met_from_its_side():
    assert Row("a", "b", 1.0, "s", 1.0).passed
    assert not Row("a", "b", 1.1, "s", 1.0).passed
    assert Row("a", "b", 4.1, "x", 4.0, "more").passed
    assert not Row("a", "b", 3.9, "x", 4.0, "more").passed
    assert Row("a", "b", 3.9, "x").passed is None


def test_the_table_says_how_many_targets_are_met():
    rows = [Row("link", "run", 0.2, "s", 0.25), Row("link", "bits", 0.0, "", 1.0, "more")]
    text = table([*rows, Row("link", "limit", 55.5, "GB/s", note="pinned")])
    assert "| link | run | 0.2000 s | <= 0.2500 s | 0.800 | yes |" in text
    assert "| link | limit (pinned) | 55.50 GB/s |  |  |  |" in text
    assert text.endswith("1 of 2 targets met")


def test_a_scan_written_by_offset_is_a_scan(tmp_path):
    offset, n_bytes = data.write_nexus(tmp_path / "a.nxs", 9, 5, 16)
    assert n_bytes == 9 * 5 * 16 * 2
    with h5py.File(tmp_path / "a.nxs") as file:
        frames = file["entry1/tomo_entry/data/data"]
        raw = np.fromfile(tmp_path / "a.nxs", np.uint16, 80, offset=offset)
        np.testing.assert_array_equal(frames[40].reshape(-1), raw)
        assert frames[:20].max() < 200  # darks
        assert frames[20:40].min() >= 40000  # flats
        assert frames.chunks == (1, 5, 16)


def test_a_plain_file_is_written_and_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "PIECE_BYTES", 1000)
    path, n_bytes = tmp_path / "plain", 10_500
    assert machine.plain_write_s(path, n_bytes, 3) > 0
    assert path.stat().st_size == n_bytes
    out = np.zeros(n_bytes, np.uint8)
    machine.plain_read_s(path, out, 3)
    np.testing.assert_array_equal(out, np.fromfile(path, np.uint8))


def test_only_the_call_is_timed(monkeypatch):
    clock, done = [0.0], []

    def takes(seconds, name):
        clock[0] += seconds
        done.append(name)

    monkeypatch.setattr(machine.time, "perf_counter", lambda: clock[0])
    times = iter([9.0, 1.0, 2.0, 4.0])
    median_s, taken = machine.timed(
        lambda: takes(next(times), "call"), 3, before=lambda: takes(100, "before")
    )
    assert (median_s, taken) == (2.0, [1.0, 2.0, 4.0])
    assert done == ["before", "call"] * 4


def test_an_earlier_result_is_freed_before_the_next_run_is_timed(tmp_path, monkeypatch):
    part, earlier, alive = (importlib.import_module("tests.benchmarks.goals.part_httomo"), [], [])
    run = part.run

    def noting(scan, pipeline, out, **options):
        alive.extend(result() is not None for result in earlier)
        report = run(scan, pipeline, out, **options)
        if out is None:
            earlier.append(weakref.ref(report.result))
        return report

    monkeypatch.setattr(part, "run", noting)
    list(part.rows(True, tmp_path))
    assert len(earlier) == 4
    assert not any(alive)


def test_samples_keep_the_highest():
    now, seen = [5], threading.Event()

    def read():
        if now[0] == 9:
            seen.set()
        return now[0]

    with machine.sampled({"a": read}, interval_s=1e-4) as peaks:
        now[0] = 9
        assert seen.wait(5)
        now[0] = 2
    assert (peaks.before, peaks.highest, peaks.grown("a")) == ({"a": 5}, {"a": 9}, 4)
