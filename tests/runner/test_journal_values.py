"""Side results written down and read again."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from maxslices.runner.folder.journal import decode, encode

DTYPES = st.sampled_from(["?", "<i2", ">u4", "<f4", "<f8", "<c8", "<U3", "S2"])
ARRAYS = arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, max_side=3))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
KEYS = st.integers() | st.text()
VALUES = st.recursive(
    PLAIN | ARRAYS | ARRAYS.map(lambda array: array.reshape(-1)[0]),
    lambda each: st.lists(each) | st.lists(each).map(tuple) | st.dictionaries(KEYS, each),
    max_leaves=5,
)


def same(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    if isinstance(one, (np.ndarray, np.generic)):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return one == other or (one != one and other != other)


@given(VALUES)
def test_a_value_comes_back_bit_for_bit_and_of_its_type(value):
    assert same(decode(json.loads(json.dumps(encode(value)))), value)


class Array(np.ndarray):
    """An array of another type."""


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, [object()], np.array([object()]), np.zeros(2).view(Array), b"x"]
)
def test_what_cannot_be_written_down_is_said(value):
    with pytest.raises(TypeError, match="cannot be written down"):
        encode(value)
