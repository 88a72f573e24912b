"""Flat field and logarithm against the formulas, pixel by pixel."""

from __future__ import annotations

import math

import numpy as np
import pytest

from maxslices_methods.normalize import dark_flat_field_correction, minus_log


def frames(dtype, n=4, seed=1):
    rng = np.random.default_rng(seed)
    data = rng.integers(200, 900, (7, 5, 6)).astype(dtype)
    flats = rng.integers(1000, 1100, (n, 5, 6)).astype(dtype)
    darks = rng.integers(0, 90, (n, 5, 6)).astype(dtype)
    return data, flats, darks


@pytest.mark.parametrize("dtype", ["uint16", "int32", "float32", "float64"])
def test_correction_is_the_formula(dtype):
    data, flats, darks = frames(dtype)
    got = dark_flat_field_correction(data, flats, darks, flats_multiplier=1.5, darks_multiplier=0.5)
    assert got.dtype == np.float32
    for z, y, x in np.ndindex(data.shape):
        dark = 0.5 * math.fsum(darks[:, y, x]) / 4
        flat = 1.5 * math.fsum(flats[:, y, x]) / 4
        assert got[z, y, x] == pytest.approx((data[z, y, x] - dark) / (flat - dark), rel=1e-5)


def test_means_are_as_good_as_stacks_and_stay_as_they_are():
    data, flats, darks = frames("uint16", n=1)
    from_stacks = dark_flat_field_correction(data, flats, darks)
    means = flats[0].astype("float32"), darks[0].astype("float32")
    kept = [mean.copy() for mean in means]
    np.testing.assert_array_equal(dark_flat_field_correction(data, *means), from_stacks)
    np.testing.assert_array_equal(means, kept)


@pytest.mark.parametrize("darks", [None, np.empty((0, 5, 6), "uint16")])
def test_no_darks_are_zero(darks):
    data, flats, _ = frames("uint16")
    got = dark_flat_field_correction(data, flats, darks)
    np.testing.assert_array_equal(
        got, dark_flat_field_correction(data, flats, np.zeros((5, 6), "float32"))
    )
    np.testing.assert_allclose(got, data / flats.mean(0), rtol=1e-6)


def test_bounds():
    data, flats, darks = frames("uint16")
    free = dark_flat_field_correction(data, flats, darks)
    got = dark_flat_field_correction(data, flats, darks, upper_bound=0.6, lower_bound=0.3)
    np.testing.assert_array_equal(got, np.clip(free, np.float32(0.3), np.float32(0.6)))
    got = dark_flat_field_correction(data, flats, darks, lower_bound=0.5)
    np.testing.assert_array_equal(got, np.maximum(free, np.float32(0.5)))


@pytest.mark.parametrize("flat", [0, 10, 9, math.nan, math.inf, -math.inf, 10 + 5e-7])
def test_dead_pixels_have_the_denominator_one(flat):
    data = np.full((3, 2, 2), 250, "uint16")
    flats = np.full((2, 2, 2), 1000, "float32")
    flats[:, 0, 1] = flat
    got = dark_flat_field_correction(data, flats, np.full((2, 2, 2), 10, "uint16"))
    assert (got[:, 0, 1] == 240).all()
    assert (got[:, 0, 0] == np.float32(240) / np.float32(990)).all()


@pytest.mark.parametrize("dark", [math.nan, math.inf, -math.inf])
def test_darks_that_are_not_finite_are_zero(dark):
    data = np.full((3, 2, 2), 250, "uint16")
    darks = np.full((2, 2, 2), 10, "float32")
    darks[1, 0, 1] = dark
    got = dark_flat_field_correction(data, np.full((1, 2, 2), 1000, "uint16"), darks)
    assert (got[:, 0, 1] == 0.25).all()


def test_minus_log_is_finite_everywhere():
    data = np.array([0, -1, -math.inf, math.nan, 1e-9, math.inf, 1], "float32").reshape(1, 1, 7)
    got = minus_log(data)[0, 0]
    np.testing.assert_allclose(got[:5], -math.log(1e-6), rtol=1e-6)
    np.testing.assert_allclose(got[5:], [-math.log(np.finfo("float32").max), 0], rtol=1e-6)


@pytest.mark.parametrize(("is_asked", "n_told"), [(True, 1), (False, 0)])
def test_clipping_of_half_of_the_values_is_told_where_it_is_asked_for(caplog, is_asked, n_told):
    data = np.ones((4, 6, 5), np.float32)
    data[:, :3] = 9
    flats = np.ones((1, 6, 5), np.float32)
    parameters = {"upper_bound": 2.0, "lower_bound": 0.5, "clipping_warning": is_asked}
    dark_flat_field_correction(data, flats, **parameters)
    messages = [record.getMessage() for record in caplog.records]
    expected = "dark_flat_field_correction: 50 % of the values are set to the bound 2"
    assert messages == [expected] * n_told
