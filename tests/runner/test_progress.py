"""Lines about progress without a terminal."""

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


CASES = {
    "how far, how fast and how long still": (
        200,
        [(8, 20), (2, 20), (2, 20), (8, 80)],  # the first block with all that is loaded for it
        [
            "section 1/2: 40 of 200 slices (20 %), 10 slices/s, 16.0 s left",
            "section 1/2: 140 of 200 slices (70 %), 10 slices/s, 6.0 s left",
        ],
    ),
    "a short section": (100, [(0.9, 10)] * 10, []),
    "a slow one, each minute": (
        100_000,
        [(6, 10)] * 21,
        [
            "section 1/2: 100 of 100000 slices (0 %), 1.67 slices/s, 16 h 39 min left",
            "section 1/2: 200 of 100000 slices (0 %), 1.67 slices/s, 16 h 38 min left",
        ],
    ),
    "slices from before a stop do not count for the speed": (
        1000,
        [(0, 500), (100, 100)],
        ["section 1/2: 600 of 1000 slices (60 %), 1 slices/s, 6 min 40 s left"],
    ),
    "lost slices do not make the speed negative": (
        100,
        [(5, 40), (5, -40), (5, 10), (5, 20)],
        ["section 1/2: 10 of 100 slices (10 %), 2 slices/s, 45.0 s left"],
    ),
    "the first block alone": (100, [(70, 10)], ["section 1/2: 10 of 100 slices (10 %)"]),
}


@pytest.mark.parametrize("case", CASES)
def test_lines_say_how_far_a_section_is(case):
    n_slices, passes, expected = CASES[case]
    lines, clock = [], Clock()
    progress = ProgressLines(lines.append, clock=clock)
    progress.start("section 1/2", n_slices)
    for seconds, n_done in passes:
        clock.now_s += seconds
        progress.advance(n_done)
    assert lines == expected


def test_without_a_terminal_lines_go_to_standard_error(monkeypatch):
    monkeypatch.setattr("maxslices.runner.report.progress.LEAST_S", 0.0)
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with progress_shown(True) as progress:
        progress.start("section 1/1", 10)
        progress.advance(5)
    assert stream.getvalue() == "maxslices: section 1/1: 5 of 10 slices (50 %)\n"


@pytest.mark.parametrize("wanted", [True, False])
def test_closed_standard_error_is_ignored(wanted, monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    with progress_shown(wanted) as progress:
        progress.start("section 1/1", 10)
        progress.advance(10)


def test_a_run_logs_its_sections_for_whoever_listens(caplog):
    data = np.ones((5, 6, 8), np.float32)
    with caplog.at_level(logging.INFO, "maxslices"):
        maxslices.run(data, ["minus_log"], device="cpu")
    (message,) = [each.getMessage() for each in caplog.records if each.name == ENDS.name]
    assert message.startswith("section 1/1: 5 slices done in ")
