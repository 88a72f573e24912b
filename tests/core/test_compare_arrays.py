"""Comparing two arrays, for every kind of value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from maxslices.core.compare_arrays import compare_arrays, value_range

NAN, INF = float("nan"), float("inf")
DTYPES = ["bool", "u1", "i2", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize(
    ("expected", "got", "largest"),
    [
        ([1.0, NAN], [1.0, NAN], 0),
        ([1.0, NAN], [NAN, 1.0], INF),
        ([INF, -INF], [INF, -INF], 0),
        ([INF, 1.0], [-INF, 1.0], INF),
        ([INF, 1.0], [1e300, 1.0], INF),
        ([0.0, 2.0], [-0.0, 2.5], 0.5),
        ([1 + 2j, 3j], [1 + 2j, 7j], 4),
        ([complex(1, NAN)], [complex(1, NAN)], 0),
        ([complex(1, NAN)], [complex(2, NAN)], 1),
        ([complex(NAN, 1)], [complex(1, NAN)], INF),
        ([complex(INF, 0)], [complex(INF, 0)], 0),
        ([complex(0, 1e200)], [complex(0, 0)], 1e200),
        ([True, False], [True, True], 1),
    ],
)
def test_special_values(expected, got, largest):
    difference = compare_arrays(np.array(expected), np.array(got))
    assert difference.largest == largest
    assert (difference.n_different > 0) == (difference.where is not None) == (largest > 0)


@pytest.mark.parametrize(
    ("dtype", "one", "other"),
    [
        ("uint64", 2**63, 2**63 + 1),
        ("int64", 2**62, 2**62 + 1),
        ("int64", -(2**63), 2**63 - 1),
        ("uint8", 255, 0),
        ("int8", -128, 127),
    ],
)
def test_integers_are_compared_exactly(dtype, one, other):
    a, b = np.array([one], dtype), np.array([other], dtype)
    assert compare_arrays(a, b).largest == compare_arrays(b, a).largest == float(abs(one - other))


@given(
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: arrays.arrays(dtype, st.tuples(*[st.integers(0, 4)] * 3))
    )
)
def test_an_array_differs_from_every_array_with_another_value(array):
    assert compare_arrays(array, array.copy()).n_different == 0
    if array.size:
        other = array.copy()
        place = tuple(n // 2 for n in array.shape)
        with np.errstate(over="ignore"):
            other[place] = 1 if array[place] != 1 else 0
        for axis in range(3):
            difference = compare_arrays(array, other, axis)
            assert (difference.n_different, difference.where) == (1, place)


@pytest.mark.parametrize(
    ("values", "extent"),
    [
        ([1.0, 4.0, NAN, INF], 3),
        ([3.0, 3.0], 3),
        ([0.0], 1),
        ([NAN], 1),
        ([], 1),
        ([3 + 4j, 0], 5),
        ([-5, 2], 7),
        (np.float32(-2.5), 2.5),
    ],
)
def test_the_range_is_of_the_finite_values(values, extent):
    assert value_range(np.array(values)) == extent
