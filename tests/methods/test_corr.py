"""Medians against SciPy, on every edge, with the network checked by itself."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import ndimage

from maxslices_methods import _median
from maxslices_methods.corr import median_filter, remove_outlier

SHAPES = [(1, 1, 1), (2, 3, 1), (1, 5, 2), (5, 2, 7), (7, 67, 131), (4, 13, 2051), (3, 2, 8200)]


def values(shape, dtype, seed=0):
    """Return noise of the whole range of a dtype, and in places few values, many times."""
    rng = np.random.default_rng(seed)
    if dtype == "float32":
        data = rng.normal(size=shape).astype(dtype)
        data[..., ::3] = np.round(data[..., ::3])
        return data
    data = rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    data[..., ::3] %= 4
    return data


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_median_of_27_is_that_of_scipy(shape, dtype):
    data = values(shape, dtype)
    got = median_filter(data)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, ndimage.median_filter(data, 3, mode="nearest"))


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
@pytest.mark.parametrize(("size", "shape"), [(5, (19, 13, 11)), (5, (3, 4, 5)), (7, (15, 8, 9))])
def test_larger_cubes_are_those_of_scipy(dtype, size, shape):
    data = values(shape, dtype)
    expected = ndimage.median_filter(data, size, mode="nearest")
    np.testing.assert_array_equal(median_filter(data, size), expected)


def test_the_network_is_right_for_all_arrangements_of_zeros_and_ones():
    for ones in itertools.product(range(10), repeat=3):
        planes = [np.arange(9) >= 9 - n for n in ones]
        low, middle, high = np.sort(planes, axis=0)
        steps = [*low[_median.LOWEST], *middle[_median.MIDDLE], *high[_median.HIGHEST]]
        for a, b, which in _median.SELECT:
            least, most = min(steps[a], steps[b]), max(steps[a], steps[b])
            steps[a] = least if which != "high" else None
            steps[b] = most if which != "low" else None
        assert steps[_median.SELECTED] == (sum(ones) > 13), ones


@pytest.mark.parametrize("size", [3, 5])
def test_nan_is_above_all_numbers(size):
    data = values((9, 10, 11), "float32")
    data[4, 5, 6] = math.nan
    data[0, 0, 0] = -math.nan
    data[:2, 7:, 9:] = math.nan
    as_large = np.where(np.isnan(data), np.inf, data)
    expected = ndimage.median_filter(as_large, size, mode="nearest")
    got = median_filter(data, size)
    assert np.isfinite(got[4, 5, 6])
    assert np.isnan(got[0, 9, 10])
    np.testing.assert_array_equal(np.where(np.isnan(got), np.inf, got), expected)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize(
    ("dtype", "dif"),
    [("uint8", 40), ("uint16", 1), ("uint16", 9000.5), ("float32", 0.7), ("float32", 1.0)],
)
def test_outliers_are_replaced_by_the_median(size, dtype, dif):
    data = values((7, 20, 21), dtype)
    medians = ndimage.median_filter(data, size, mode="nearest")
    exact = np.float32 if dtype == "float32" else np.int64
    far = np.abs(data.astype(exact) - medians.astype(exact)) >= exact(0) + np.float32(dif)
    assert far.any()
    assert not far.all()
    got = remove_outlier(data, kernel_size=size, dif=dif)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, np.where(far, medians, data))


def test_no_difference_of_uint16_reaches_70000():
    data = values((5, 6, 7), "uint16")
    data[2, 3, 3], data[2, 3, 4] = 0, 65535
    np.testing.assert_array_equal(remove_outlier(data, dif=70000), data)


def test_single_voxels_that_are_not_numbers_are_outliers():
    data = values((5, 6, 7), "float32")
    data[2, 3, 4], data[0, 0, 0], data[4, 5, 1] = math.nan, math.inf, -math.inf
    got = remove_outlier(data, dif=1000.0)
    medians = median_filter(data)
    bad = ~np.isfinite(data)
    np.testing.assert_array_equal(got, np.where(bad, medians, data))
    assert np.isfinite(got).all()
