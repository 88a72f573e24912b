"""Shares and bounds of known spans."""

from __future__ import annotations

import threading
import time

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


def test_what_lies_outside_of_the_section_does_not_count():
    found = section(("in", -5, 1), ("in", 9, 30), ("out", 40, 50))
    assert found.stages["in"].active_s == pytest.approx(2)
    assert found.stages["out"].active_s == 0
    assert found.stages["out"].gb_per_s == 0


def test_nothing_is_idle_while_any_stage_works():
    found = section(("read", 0, 4), ("compute", 3, 8), ("write", 9, 10))
    assert found.idle_share == pytest.approx(0.1)
    assert list(found.stages) == ["read", "compute", "write"]


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


def test_nothing_recorded_is_bound_by_nothing_known():
    found = section()
    assert found.bound_by is None
    assert found.idle_share == 1


def test_threads_may_add_at_the_same_time():
    timeline = Timeline()

    def work():
        for _ in range(500):
            now = time.perf_counter()
            timeline.add("read", now, now, 1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timeline.end()
    assert timeline.stages["read"].n_bytes == 4000
