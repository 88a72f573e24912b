"""Formulas for what a few calls took."""

from __future__ import annotations

import pytest

from maxslices.estimate.formula import first_fit


def rows_in_pairs(n):
    """Work area of FFTs of 1801 x n real rows of 2557, on an H200."""
    rows = 1801 * n
    return (rows + rows % 2) * 2557 * 8 + 512


@pytest.mark.parametrize("ns", [(3, 5, 8), (5, 8), (3, 8, 45), (5, 8, 84)])
def test_rows_that_are_computed_in_pairs_are_a_line_above_all(ns):
    found = first_fit({n: rows_in_pairs(n) for n in ns})
    assert found.counted == "n"
    assert all(found.at(n) >= rows_in_pairs(n) for n in ns)
    assert all(abs(found.at(n) / rows_in_pairs(n) - 1) < 2e-4 for n in range(9, 500))


def test_two_points_tell_no_size_of_chunks():
    assert first_fit({5: 1_000_000, 8: 2_000_001}).counted == "n"
    assert first_fit({1: 219_671, 3: 379_846}).counted == "n"  # odd by some bytes of Python's own
    assert first_fit({5: 1, 8: 2}).counted == "ceil(n/k)"  # numbers of arrays are exact
