"""Dataclasses that are kept in files: their annotations say how."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxslices.core.arrays import ArraySpec
from maxslices.errors import UsageError
from maxslices.system.plain_records import from_plain, json_text, to_plain


class Pair(NamedTuple):
    first: int
    second: str = "a"


@dataclass(frozen=True)
class Kept:
    pairs: Mapping[str, tuple[Pair, ...]]
    either: Pair | float
    by_number: Mapping[int, float]
    time_s: float = 0.0
    dims: tuple[int, int] | None = None
    scan: ArraySpec | None = None
    peak_bytes: int = 0


KEPT = Kept(
    {"a": (Pair(1), Pair(2, "b"))},
    Pair(5, "c"),
    {7: 0.5},
    2.0,
    (8, 9),
    ArraySpec((3, 4, 5), "float32"),
    11,
)
PLAIN = {
    "pairs": {"a": [[1, "a"], [2, "b"]]},
    "either": [5, "c"],
    "by_number": {"7": 0.5},
    "time_s": 2.0,
    "dims": [8, 9],
    "scan": {"shape": [3, 4, 5], "dtype": "float32"},
    "peak_bytes": 11,
}


def test_fields_are_written_and_read_as_they_are_declared():
    assert json.loads(json_text(to_plain(KEPT))) == PLAIN
    assert from_plain(Kept, PLAIN, "kept") == KEPT
    either = from_plain(Kept, {"pairs": {}, "either": 1, "by_number": {}}, "kept")
    assert either == Kept({}, 1.0, {})
    assert type(either.either) is float


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"pairs": []}, "kept.pairs: Expected `object`"),
        ({"pairs": {"a": [[]]}}, "kept.pairs"),
        ({"pairs": {"a": [[1.5, "a"]]}}, r"kept.pairs\[...\]\[0\]\[0\]: Expected `int`"),
        ({"either": "c"}, "kept.either: Expected `float . array`"),
        ({"by_number": {"seven": 0.5}}, "kept.by_number: Expected `int`"),
        ({"by_number": {"\ud800": 0.5}}, r"kept: .*ud800.* is not valid text"),
        ({"time_s": None}, "kept.time_s: Expected `float`"),
        ({"dims": [8]}, "kept.dims"),
        ({"dims": [8, 2**70]}, r"kept.dims\[1\] must be at most 9223372036854775807"),
        ({"dims": [True, 9]}, r"kept.dims\[0\]: Expected `int`, got `bool`"),
        (
            {"scan": {"shape": [3, 4], "dtype": "f4"}},
            "kept: an array of slices must have three dims",
        ),
        ({"scan": {"shape": [3, 4, 5], "dtype": "zz"}}, "kept: 'zz' is not a dtype"),
        ({"scan": {"shape": [3, 4, 5], "dtype": 4}}, "kept.scan.dtype: Expected the name"),
        ({"peak_bytes": -1}, "kept.peak_bytes must be at least 0, not -1"),
    ],
    ids=str,
)
def test_value_of_another_type_is_rejected_in_one_line(damage, named):
    with pytest.raises(UsageError, match=named) as raised:
        from_plain(Kept, PLAIN | damage, "kept")
    assert "\n" not in str(raised.value)


def test_a_missing_field_is_named():
    with pytest.raises(UsageError, match="missing required field `either`"):
        from_plain(Kept, {"pairs": {}, "by_number": {}}, "kept")


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
