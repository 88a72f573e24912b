"""Dataclasses that are kept in files: their annotations say how."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxslices.core.plain_records import PlainRecord, json_text
from maxslices.errors import UsageError


@dataclass(frozen=True)
class Pair(PlainRecord):
    as_list = True

    first: int
    second: str


@dataclass(frozen=True)
class Kept(PlainRecord):
    pairs: Mapping[tuple[int, int], tuple[Pair, ...]]
    either: Pair | float
    by_number: Mapping[int, float]
    time_s: float = 0.0
    dims: tuple[int, int] | None = None

    def check(self):
        if self.time_s < 0:
            raise ValueError("before the beginning")


KEPT = Kept({(3, 4): (Pair(1, "a"), Pair(2, "b"))}, Pair(5, "c"), {7: 0.5}, 2.0, (8, 9))
PLAIN = {
    "pairs": {"3x4": [[1, "a"], [2, "b"]]},
    "either": [5, "c"],
    "by_number": {"7": 0.5},
    "time_s": 2.0,
    "dims": [8, 9],
}


def test_fields_are_written_and_read_as_they_are_declared():
    assert KEPT.as_plain() == PLAIN
    assert Kept.from_plain(json.loads(json_text(PLAIN))) == KEPT
    either = Kept.from_plain({"pairs": {}, "either": 1, "by_number": {}})
    assert either == Kept({}, 1.0, {})
    assert type(either.either) is float


@pytest.mark.parametrize(
    "damage",
    [
        {"surplus": 1},
        {"pairs": []},
        {"pairs": {"3": []}},
        {"pairs": {"3x4": [[1]]}},
        {"pairs": {"3x4": [[1.5, "a"]]}},
        {"either": "c"},
        {"by_number": {"seven": 0.5}},
        {"time_s": None},
        {"time_s": -1.0},
        {"dims": [8]},
        {"dims": [8, 2**70]},
        {"dims": [True, 9]},
    ],
    ids=str,
)
def test_what_is_not_as_declared_is_refused(damage):
    with pytest.raises((UsageError, ValueError, TypeError)):
        Kept.from_plain(PLAIN | damage)
    with pytest.raises(TypeError, match="either"):
        Kept.from_plain({"pairs": {}, "by_number": {}})


values = st.recursive(
    st.none() | st.integers() | st.text(max_size=60) | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=9), inner, max_size=9)
    ),
    max_leaves=200,
)


@given(values)
def test_text_is_the_value_in_lines_that_can_be_read(value):
    text = json_text(value)
    assert json.loads(text) == value
    if len(json.dumps(value)) <= 400:
        assert "\n" not in text
    assert all(len(line) <= 1000 for line in text.splitlines())
