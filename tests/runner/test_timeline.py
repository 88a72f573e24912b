"""Shares and bounds of known spans."""

from __future__ import annotations

import pytest

from maxslices.runner.report.run_timeline import Timeline

START = 100.0


def section(*spans, wall_s=10.0):
    """A section of spans (stage, start, stop) in seconds since its start."""
    timeline = Timeline(at_s=START)
    for stage, start, stop in spans:
        timeline.add(stage, START + start, START + stop, 3 * 10**9)
    timeline.end(at_s=START + wall_s)
    return timeline


def test_spans_that_overlap_count_once():
    found = section(("read", 0, 3), ("read", 1, 4), ("read", 6, 7), ("read", 6.2, 6.4))
    assert found.stages["read"].active_s == pytest.approx(5)
    assert found.stages["read"].share == pytest.approx(0.5)
    assert found.stages["read"].n_bytes == 12 * 10**9
    assert found.stages["read"].n_spans == 4
    assert found.stages["read"].gb_per_s == pytest.approx(12 / 5)
    assert found.idle_share == pytest.approx(0.5)


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
def test_the_busiest_stage_bounds(stage, bound):
    others = [other for other in ("read", "compute", "write") if other != stage]
    assert section((stage, 0, 9), *((other, 0, 8) for other in others)).bound_by == bound


def test_where_mostly_nothing_works_it_is_bound_by_overhead():
    assert section(("read", 0, 2), ("compute", 2, 4)).bound_by == "overhead"


def test_stages_that_wait_for_each_other_are_pipeline_stalls():
    stalled = section(("read", 0, 3), ("in", 3, 5), ("compute", 5, 9), ("write", 9, 10))
    assert stalled.bound_by == "pipeline stalls"
