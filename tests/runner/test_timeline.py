"""Shares and bottlenecks of given spans, and phases of a run with a manual clock."""

from __future__ import annotations

import itertools
import json
import time
from contextlib import suppress
from importlib import import_module

import numpy as np
import pytest

from maxslices import Pipeline, run
from maxslices.runner.report.run_timeline import Timeline, WallTime
from tests.planner.fakes import fakes

START = 100.0


def section(*spans, wall_s=10.0):
    """A section of spans (stage, start, stop) in seconds since its start."""
    timeline = Timeline(at_s=START)
    for stage, start, stop in spans:
        timeline.add(stage, START + start, START + stop, 3 * 10**9)
    timeline.end(at_s=START + wall_s)
    return timeline


def test_overlapping_spans_count_once():
    timeline = section(("read", 0, 3), ("read", 1, 4), ("read", 6, 7), ("read", 6.2, 6.4))
    assert timeline.stages["read"].active_s == pytest.approx(5)
    assert timeline.stages["read"].share == pytest.approx(0.5)
    assert timeline.stages["read"].n_bytes == 12 * 10**9
    assert timeline.stages["read"].n_spans == 4
    assert timeline.stages["read"].gb_per_s == pytest.approx(12 / 5)
    assert timeline.idle_share == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("stage", "bound"),
    [
        ("read", "read"),
        ("in", "link in"),
        ("compute", "compute"),
        ("out", "link out"),
        ("write", "write"),
    ],
)
def test_busiest_stage_is_the_bottleneck(stage, bound):
    idler = [name for name in ("read", "compute", "write") if name != stage]
    assert section((stage, 0, 9), *((name, 0, 8) for name in idler)).bound_by == bound


def test_mostly_idle_section_is_bound_by_overhead():
    assert section(("read", 0, 2), ("compute", 2, 4)).bound_by == "overhead"


def test_waiting_stages_are_pipeline_stalls():
    stalled = section(("read", 0, 3), ("in", 3, 5), ("compute", 5, 9), ("write", 9, 10))
    assert stalled.bound_by == "pipeline stalls"


TICK_S = 2**-10
STEPS = ["to_float", "reaching", "work", "negate"]


class ManualTime:
    """A clock that advances by a tick at each reading, and by `added_s`."""

    def __init__(self):
        self._ticks = itertools.count(1)
        self.added_s = 0.0

    def perf_counter(self):
        return next(self._ticks) * TICK_S + self.added_s


@pytest.fixture
def manual(monkeypatch):
    clock = ManualTime()
    monkeypatch.setattr(time, "perf_counter", clock.perf_counter)
    return clock


def test_phases_add_up_and_resume_after_an_interruption(manual):
    wall_time = WallTime()
    manual.added_s += 2
    wall_time.begin("preparing")
    manual.added_s += 3
    with wall_time.during("waiting for disk space"):
        manual.added_s += 5
    manual.added_s += 7
    with suppress(ValueError), wall_time.during("sections"):
        manual.added_s += 11
        raise ValueError
    wall_time.begin("finishing")
    manual.added_s += 13
    wall_time.stop()
    phases_s = wall_time.other_phases(sections_s=10)
    assert {name: int(spent_s) for name, spent_s in phases_s.items()} == {
        "importing": 2,
        "preparing": 10,
        "waiting for disk space": 5,
        "finishing": 13,
        "other": 1,
    }
    assert sum(phases_s.values()) + 10 == wall_time.total_s


def test_report_attributes_time_to_phases(manual, monkeypatch, tmp_path):
    delays = {
        "runner.folder.run_folder.check_free_space": 5.5,
        "api.carry_out.select_backend": 0.25,
        "api.team.plan_pipeline": 0.75,
        "runner.execute.require_libraries": 1.5,
        "api.carry_out.correct_records": 0.5,
    }

    def slow(seconds, function):
        def delayed(*args, **kwargs):
            manual.added_s += seconds
            return function(*args, **kwargs)

        return delayed

    for name, seconds in delays.items():
        module, _, function = name.rpartition(".")
        owner = import_module(f"maxslices.{module}")
        monkeypatch.setattr(owner, function, slow(seconds, getattr(owner, function)))
    data, steps = np.ones((23, 17, 64), np.uint16), Pipeline.from_steps(STEPS, fakes)
    report = run(data, steps, tmp_path / "out", device="cpu", block=4)
    assert {name: int(4 * s) / 4 for name, s in report.phases_s.items() if s >= 0.25} == {
        "starting": 0.25,
        "planning": 0.75,
        "preparing": 1.5,
        "waiting for disk space": 5.5,
        "finishing": 0.5,
    }
    sections_s = sum(section.duration_s for section in report.sections)
    assert sum(report.phases_s.values()) + sections_s == pytest.approx(report.duration_s)
    entry = json.loads((tmp_path / "out" / "report.json").read_text())
    in_file_s = sum(entry["phases_s"].values()) + sum(s["duration_s"] for s in entry["sections"])
    assert in_file_s == pytest.approx(entry["duration_s"])
