"""Outlines of stages, whose size does not depend on the number of blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxslices.report_page.drawings import LANE_BINS, SectionSpans, busy_until, draw_lanes

ORDER = ("read", "compute")


def test_shares_are_those_of_the_whole_time():
    sections = [
        SectionSpans(10.0, 14.0, {"read": np.array([[10.0, 11.0], [10.5, 12.0]])}),
        SectionSpans(16.0, 20.0, {"compute": np.array([[15.0, 18.0]])}),  # 1 s of it before
    ]
    lanes = draw_lanes(sections, ORDER)
    assert lanes.duration_s == 10.0
    assert [(lane.stage, lane.share) for lane in lanes.lanes] == [
        ("read", pytest.approx(0.2)), ("compute", pytest.approx(0.2))
    ]  # fmt: skip
    assert lanes.starts == (0.0, pytest.approx(0.6 * LANE_BINS))
    read, compute = (lane.path for lane in lanes.lanes)
    assert read == f"M0 20V0H{LANE_BINS // 5}V20H{LANE_BINS}V20z"
    assert compute == f"M0 20V20H{3 * LANE_BINS // 5}V0H{4 * LANE_BINS // 5}V20H{LANE_BINS}V20z"


@pytest.mark.parametrize("sections", [[], [SectionSpans(1.0, 1.0, {})]])
def test_nothing_is_drawn_of_nothing(sections):
    assert draw_lanes(sections, ORDER) is None


def test_a_section_without_spans_is_idle():
    assert draw_lanes([SectionSpans(0.0, 1.0, {})], ORDER).lanes == ()


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=12),
    st.lists(st.integers(0, 60), min_size=1, max_size=8),
)
def test_time_at_work_is_counted_once_whatever_overlaps(spans, times):
    array = np.array([(start, start + length) for start, length in spans], float)
    covered = {t for start, length in spans for t in range(start, start + length)}
    wanted = [sum(t < until for t in covered) for until in times]
    assert busy_until(array, np.array(times, float)).tolist() == wanted


def test_an_outline_of_many_blocks_is_no_longer_than_its_bins():
    starts = np.sort(np.random.default_rng(7).random(50_000)) * 100
    spans = np.stack([starts, starts + 1e-3], axis=1)
    path = draw_lanes([SectionSpans(0.0, 100.0, {"read": spans})], ORDER).lanes[0].path
    assert len(path) < 12 * LANE_BINS
