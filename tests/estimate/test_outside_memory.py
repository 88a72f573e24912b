"""Readings beside CuPy's pool on an NVIDIA H100 (2026-11-25), and the arrays that explain them."""

from __future__ import annotations

import pytest

from maxslices.estimate.formula import Formula
from maxslices.estimate.sequence_probe import outside_formula

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
