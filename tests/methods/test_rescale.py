"""Statistics and rescaling against plain NumPy in double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest

from maxslices_methods.rescale import calculate_stats, rescale_to_int

combine = calculate_stats.meta.combine


def values(shape=(5, 40, 300), seed=0):
    return np.random.default_rng(seed).normal(3, 2, shape).astype("float32")


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "float32", "float64"])
def test_statistics_are_those_of_numpy(dtype):
    data = (np.abs(values()) * 20).astype(dtype)
    least, most, mean, n, _ = calculate_stats(data)
    assert (least, most, n) == (data.min(), data.max(), data.size)
    assert mean == pytest.approx(math.fsum(data.ravel().tolist()) / data.size, rel=1e-13)


def test_what_is_not_finite_is_left_out():
    data = values()
    data[0, 0, :3] = math.nan, math.inf, -math.inf
    data[3] = math.nan
    finite = data[np.isfinite(data)]
    least, most, mean, n, _ = calculate_stats(data)
    assert (least, most, n) == (finite.min(), finite.max(), finite.size)
    assert mean == pytest.approx(finite.mean(dtype="float64"), rel=1e-12)


def test_nothing_finite():
    result = calculate_stats(np.full((2, 3, 4), math.nan, "float32"))
    assert result[3] == 0
    assert all(map(math.isnan, result[:3]))
    assert combine([result, (1.0, 2.0, 1.5, 4, (6.0,))]) == (1.0, 2.0, 1.5, 4)


@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_combine_to_the_whole(axis):
    data = values((23, 31, 50))
    whole = calculate_stats(data)
    for sizes in ([1] * 5, [7, 16], [20]):
        blocks = np.split(data, np.cumsum(sizes), axis=axis)
        stats = combine([calculate_stats(block) for block in blocks if block.size])
        assert repr(stats) == repr(combine([whole])) == repr(whole[:4])


def test_zeros_of_either_sign_are_one_number():
    data = np.array([0.0, -0.0], np.float32).reshape(2, 1, 1)
    both = [calculate_stats(block) for block in np.split(data, 2)]
    stats = combine(both), combine(both[::-1])
    assert repr(stats[0]) == repr(stats[1]) == "(0.0, 0.0, 0.0, 2)"


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize(("low", "high"), [(0.0, 100.0), (10.0, 75.0)])
def test_rescaling_is_linear_between_the_ends(bits, low, high):
    data = values()
    got = rescale_to_int(data, low, high, bits, glob_stats=(-2.0, 9.0, 3.0, data.size))
    assert got.dtype == f"uint{bits}"
    start, end = -2 + 0.11 * low, -2 + 0.11 * high
    exact = (np.clip(data.astype("longdouble"), start, end) - start) / (end - start)
    exact *= 2**bits - 1
    assert np.abs(got.astype("longdouble") - exact).max() <= 0.5 + 1e-5
    assert got.min() == 0
    assert got.max() == 2**bits - 1


def test_what_is_not_a_number_goes_to_the_ends():
    data = np.array([math.nan, -math.inf, math.inf, 0, 1e30, -1e30], "float32").reshape(1, 1, 6)
    got = rescale_to_int(data, glob_stats=[-1, 1])
    np.testing.assert_array_equal(got[0, 0], [0, 0, 255, 128, 255, 0])


def test_equal_minimum_and_maximum_give_zero():
    assert not rescale_to_int(values(), glob_stats=(3.0, 3.0)).any()


def test_uint16_to_uint8():
    data = np.arange(65536, dtype="uint16").reshape(4, 64, 256)
    got = rescale_to_int(data, glob_stats=(0, 65535))
    np.testing.assert_array_equal(got, np.rint(data / 257))
