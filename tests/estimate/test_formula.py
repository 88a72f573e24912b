"""Formulas for the memory of a few calls, in the pool and outside it."""

from __future__ import annotations

import pytest

from maxslices.estimate.formula import Formula, first_fit
from maxslices.estimate.sequence_probe import outside_formula


def rows_in_pairs(n):
    """Work area of FFTs of 1801 x n real rows of 2557, on an H200."""
    rows = 1801 * n
    return (rows + rows % 2) * 2557 * 8 + 512


@pytest.mark.parametrize("ns", [(3, 5, 8), (5, 8), (3, 8, 45), (5, 8, 84)])
def test_rows_that_are_computed_in_pairs_are_a_line_above_all(ns):
    formula = first_fit({n: rows_in_pairs(n) for n in ns})
    assert formula.counted == "n"
    assert all(formula.at(n) >= rows_in_pairs(n) for n in ns)
    assert all(abs(formula.at(n) / rows_in_pairs(n) - 1) < 2e-4 for n in range(9, 500))


def test_two_points_tell_no_size_of_chunks():
    assert first_fit({5: 1_000_000, 8: 2_000_001}).counted == "n"
    assert first_fit({1: 219_671, 3: 379_846}).counted == "n"  # odd by some bytes of Python's own
    assert first_fit({5: 1, 8: 2}).counted == "ceil(n/k)"  # numbers of arrays are exact


# Readings on an NVIDIA H100 (2026-11-25), and the arrays that explain them.
FBP3D = {3: 58_640_803, 5: 117_376_973, 8: 117_422_529, 17: 472_007_054, 34: 708_622_246}
SIRT3D = {3: 104_663_552, 5: 209_521_152, 8: 209_521_152, 32: 838_666_752}
FBP2D = {1: 169_869_312, 3: 169_869_312, 5: 169_869_312}


@pytest.mark.parametrize(
    ("readings", "dims", "growth"),
    [
        (FBP3D, [(1801, 2048), (2048, 2048)], Formula(0, 1801 * 2048 * 4, "depth(n)")),
        (SIRT3D, [(1801, 2560), (2560, 2560)], Formula(0, 2560 * 2560 * 4, "depth(n)")),
        (FBP2D, [(1801, 2560), (2560, 2560)], Formula(169_869_312)),
    ],
)
@pytest.mark.parametrize("most", [8, 40])
def test_readings_are_explained(readings, dims, growth, most):
    few = {n: n_bytes for n, n_bytes in readings.items() if n <= most}
    assert outside_formula(few, dims) == growth


def test_what_one_call_took_is_no_constant():
    assert outside_formula({5: 169_869_312}, [(1801, 2560)]) is None
