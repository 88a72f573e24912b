"""What a run's report says its wall time went to, by a clock that each test moves by hand."""

from __future__ import annotations

import itertools
import json
import time
from contextlib import suppress
from importlib import import_module

import numpy as np
import pytest

from maxslices import Pipeline, run
from maxslices.runner.report.run_timeline import WallTime
from tests.planner.fakes import fakes

TICK_S = 2**-10
STEPS = ["to_float", "reaching", "work", "negate"]


class ManualTime:
    """Moves by a tick each time that it is asked, and by whatever is added."""

    def __init__(self):
        self._ticks = itertools.count(1)
        self.added_s = 0.0

    def perf_counter(self):
        return next(self._ticks) * TICK_S + self.added_s


@pytest.fixture
def manual(monkeypatch):
    made = ManualTime()
    monkeypatch.setattr(time, "perf_counter", made.perf_counter)
    return made


def test_phases_add_up_and_an_interrupted_one_goes_on(manual):
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
    found = wall_time.beside_sections(sections_s=10)
    assert {name: int(spent_s) for name, spent_s in found.items()} == {
        "importing": 2,
        "preparing": 10,
        "waiting for disk space": 5,
        "finishing": 13,
        "other": 1,
    }
    assert sum(found.values()) + 10 == wall_time.total_s


def slow(manual, seconds, function):
    def called(*args, **kwargs):
        manual.added_s += seconds
        return function(*args, **kwargs)

    return called


def run_slowly(manual, monkeypatch, tmp_path, delays):
    """A run into a folder in which functions, named with their modules, take so many seconds."""
    for name, seconds in delays.items():
        module, function = name.rsplit(".", 1)
        found = import_module(f"maxslices.{module}")
        monkeypatch.setattr(found, function, slow(manual, seconds, getattr(found, function)))
    data = np.ones((23, 17, 64), np.uint16)
    return run(data, Pipeline.from_steps(STEPS, fakes), tmp_path / "out", device="cpu", block=4)


def test_a_report_names_what_else_took_time(manual, monkeypatch, tmp_path):
    delays = {
        "runner.folder.run_folder.check_free_space": 5.5,
        "api.carry_out.select_backend": 0.25,
        "api.team.plan_pipeline": 0.75,
        "runner.execute.require_libraries": 1.5,
        "api.carry_out.correct_records": 0.5,
    }
    report = run_slowly(manual, monkeypatch, tmp_path, delays)
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
