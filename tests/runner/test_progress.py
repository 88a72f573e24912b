"""Lines about progress where there is no terminal."""

from __future__ import annotations

import io
import logging

import numpy as np
import pytest

import maxslices
from maxslices.runner.report.progress import ENDS, ProgressLines, progress_shown


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def lines():
    return []


@pytest.fixture
def clock():
    return Clock()


def passes(progress, clock, seconds, n_slices):
    clock.now_s += seconds
    progress.advance(n_slices)


def test_a_line_says_how_far_how_fast_and_how_long_still(lines, clock):
    progress = ProgressLines(lines.append, clock=clock)
    progress.start("section 1/2", 200)
    passes(progress, clock, 8, 20)  # the first block, with all that is loaded for it
    passes(progress, clock, 2, 20)
    passes(progress, clock, 2, 20)
    passes(progress, clock, 8, 80)
    assert lines == [
        "section 1/2: 40 of 200 slices (20 %), 10 slices/s, 16.0 s left",
        "section 1/2: 140 of 200 slices (70 %), 10 slices/s, 6.0 s left",
    ]


def test_short_sections_say_nothing(lines, clock):
    progress = ProgressLines(lines.append, clock=clock)
    for number in (1, 2):
        progress.start(f"section {number}/2", 100)
        for _ in range(10):
            passes(progress, clock, 0.9, 10)
    assert lines == []


def test_a_slow_section_says_each_minute_that_it_is_alive(lines, clock):
    progress = ProgressLines(lines.append, clock=clock)
    progress.start("section 1/1", 100_000)
    for _ in range(50):
        passes(progress, clock, 6, 10)
    assert len(lines) == 5
    assert lines[0].startswith(
        "section 1/1: 100 of 100000 slices (0 %), 1.67 slices/s, 16 h 39 min"
    )


def test_what_was_done_before_a_stop_is_no_speed(lines, clock):
    progress = ProgressLines(lines.append, clock=clock)
    progress.start("section 1/1", 1000)
    progress.advance(500)
    passes(progress, clock, 100, 100)
    assert lines == ["section 1/1: 600 of 1000 slices (60 %), 1 slices/s, 6 min 40 s left"]


def test_slices_that_were_lost_are_no_negative_speed(lines, clock):
    progress = ProgressLines(lines.append, clock=clock)
    progress.start("section 1/1", 100)
    passes(progress, clock, 5, 40)
    passes(progress, clock, 5, -40)
    passes(progress, clock, 5, 10)
    passes(progress, clock, 5, 20)
    assert lines == [
        "section 1/1: 10 of 100 slices (10 %), 2 slices/s, 45.0 s left",
    ]


def test_the_first_block_alone_has_no_speed(lines, clock):
    progress = ProgressLines(lines.append, clock=clock)
    progress.start("section 1/1", 100)
    passes(progress, clock, 70, 10)
    assert lines == ["section 1/1: 10 of 100 slices (10 %)"]


def test_ends_are_written_if_wanted(lines, clock):
    progress = ProgressLines(lines.append, at_end=lines.append, clock=clock)
    progress.start("section 1/1", 30)
    passes(progress, clock, 1.5, 30)
    assert lines == ["section 1/1: 30 slices done in 1.5 s"]


def test_without_a_terminal_lines_go_to_standard_error(monkeypatch):
    monkeypatch.setattr("maxslices.runner.report.progress.LEAST_S", 0.0)
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with progress_shown(True) as progress:
        progress.start("section 1/1", 10)
        progress.advance(5)
    assert stream.getvalue() == "maxslices: section 1/1: 5 of 10 slices (50 %)\n"


@pytest.mark.parametrize("wanted", [True, False])
def test_a_closed_standard_error_is_no_fault(wanted, monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    with progress_shown(wanted) as progress:
        progress.start("section 1/1", 10)
        progress.advance(10)


def test_a_run_logs_its_sections_for_whoever_listens(caplog):
    data = np.ones((5, 6, 8), np.float32)
    with caplog.at_level(logging.INFO, "maxslices"):
        maxslices.run(data, ["minus_log"], device="cpu")
    (said,) = [each.getMessage() for each in caplog.records if each.name == ENDS.name]
    assert said.startswith("section 1/1: 5 slices done in ")
