"""Cutting pipelines into sections."""

from __future__ import annotations

import pytest

from maxslices import Pipeline
from maxslices.pipeline import cut_into_sections
from tests.planner.fakes import fakes

P, S = 0, 1
PLAIN_P, PLAIN_S = (P, 1, (0, 0)), (S, 1, (0, 0))
FIND = {"method": "find_middle", "id": "f", "side_outputs": {"cor": "axis"}}
ALL = {"method": "extremes", "id": "e", "side_outputs": {"low": "low"}}


def refers(to):
    return {"method": "scaled_by", "parameters": {"centre": f"${{{{{to}}}}}"}}


CASES = {
    "one method": (["negate"], [(P, 1, (0, 0))]),
    "same pattern": (["negate", "negate"], [(P, 2, (0, 0))]),
    "pattern changes": (["negate", "work"], [(P, 1, (0, 0)), (S, 1, (0, 0))]),
    "pattern changes back": (["negate", "work", "negate"], [PLAIN_P, PLAIN_S, PLAIN_P]),
    "all alone": (["to_float"], [(P, 1, (0, 0))]),
    "all first takes the next": (["to_float", "work"], [(S, 2, (0, 0))]),
    "all last takes the one before": (["work", "to_float"], [(S, 2, (0, 0))]),
    "all between stays with the first": (
        ["negate", "to_float", "work"],
        [(P, 2, (0, 0)), PLAIN_S],
    ),
    "halo": (["to_float", "neighbours", "work"], [(S, 3, (2, 1))]),
    "second halo": (["neighbours", "reaching"], [(P, 1, (2, 1)), (P, 1, (3, 3))]),
    "all in a section of its own stays with the one before": (
        ["work", "neighbours", "neighbours"],
        [(S, 2, (2, 1)), (S, 1, (2, 1))],
    ),
    "halo of zero": (
        ["neighbours", {"method": "reaching", "parameters": {"reach": 0}}],
        [(P, 2, (2, 1))],
    ),
    "reference to a few slices": ([FIND, refers("f.side_outputs.axis")], [(S, 2, (0, 0))]),
    "reference to all slices": (
        ["work", ALL, refers("e.side_outputs.low")],
        [(S, 2, (0, 0)), PLAIN_S],
    ),
    "reference to all slices, later": (
        [ALL, "negate", refers("e.side_outputs.low"), refers("e.side_outputs.low")],
        [(P, 2, (0, 0)), (S, 2, (0, 0))],
    ),
    "all slices without reference": ([ALL, "work"], [(S, 2, (0, 0))]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_pipeline_is_cut_where_it_has_to_be(case):
    steps, expected = CASES[case]
    sections = cut_into_sections(Pipeline.from_steps(steps, fakes))
    assert [(s.slice_dim, len(s.steps), s.halo) for s in sections] == expected


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (["to_float", "work"], [PLAIN_P, PLAIN_S]),
        (["to_float", "neighbours", "work"], [(P, 2, (2, 1)), PLAIN_S]),
        (["to_float", "negate", "work"], [(P, 2, (0, 0)), PLAIN_S]),
        (["work", "to_float", "negate"], [(S, 2, (0, 0)), PLAIN_P]),  # no frames to begin with
        (["negate", "work", ALL, "work"], [PLAIN_P, (S, 3, (0, 0))]),  # a store has rows
    ],
)
def test_a_scan_whose_rows_cannot_be_read_alone_is_read_in_frames(steps, expected):
    sections = cut_into_sections(Pipeline.from_steps(steps, fakes), reads_rows=False)
    assert [(s.slice_dim, len(s.steps), s.halo) for s in sections] == expected


def test_data_that_are_saved_before_sinograms_are_saved_as_projections():
    saved = {"method": "to_float", "save_result": True}
    sections = cut_into_sections(Pipeline.from_steps([saved, "work"], fakes))
    assert [s.slice_dim for s in sections] == [P, S]
    last = {"method": "work", "save_result": True}
    sections = cut_into_sections(Pipeline.from_steps(["to_float", last], fakes))
    assert [s.slice_dim for s in sections] == [S]
