"""Sums that are bitwise independent of how the values are cut."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxslices.core.exact_sum import exact_terms, sum_of_terms

FINITE = st.floats(-1e300, 1e300, width=64)


@given(st.lists(FINITE, min_size=1, max_size=40), st.integers(0, 40))
def test_terms_are_the_exact_sum_and_parts_add_up_to_it(values, at):
    array = np.array(values)
    exact = sum(map(Fraction, values))
    assert sum(map(Fraction, exact_terms(array))) == exact
    parts = [part for part in (array[:at], array[at:]) if part.size]
    assert sum_of_terms(map(exact_terms, parts)) == float(exact)


@pytest.mark.parametrize(
    ("values", "total"),
    [([1e308, 1e308], math.inf), ([math.inf, 1.0], math.inf), ([math.inf, -math.inf], math.nan)],
)
def test_sums_beyond_the_range_are_infinite_or_nan(values, total):
    np.testing.assert_equal(exact_terms(np.array(values)), (total,))
