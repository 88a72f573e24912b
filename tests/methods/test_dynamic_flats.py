"""A beam that moves between projections is divided out by components of its flats."""

from __future__ import annotations

import numpy as np

from maxslices_methods.dynamic_flats import dynamic_flat_field_correction
from maxslices_methods.normalize import dark_flat_field_correction

SHAPE = (48, 80)


def moving_scan(n_flats=30, n=6, size=0.03, seed=0):
    """Flats and projections under a beam with two modes, and the right transmission."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: SHAPE[0], : SHAPE[1]]
    modes = np.array([np.sin(y / 3.0), np.cos(x / 7.0 + y / 5.0)])
    base = 20000 * (1 - 0.2 * (x / SHAPE[1] - 0.5) ** 2)

    def beam(weights):
        return base * (1 + np.tensordot(weights, modes, 1))

    flats = 100 + beam(size * rng.normal(size=(n_flats, 2)))
    right = np.ones((n, *SHAPE))
    for i in range(n):
        right[i, 10:40, 20 + 3 * i : 50 + 3 * i] = 0.6
    data = 100 + right * beam(size * rng.normal(size=(n, 2)))
    noisy = [rng.poisson(each).astype("u2") for each in (data, flats)]
    darks = np.full((3, *SHAPE), 100, "u2")
    return *noisy, darks, right


def test_what_the_mean_flat_leaves_is_removed():
    data, flats, darks, right = moving_scan()
    rms = []
    for correction in (dark_flat_field_correction, dynamic_flat_field_correction):
        # Up to the brightness as a whole, which total variation does not tell.
        ratio = correction(data, flats, darks) / right
        rms.append((ratio / ratio.mean((1, 2), keepdims=True)).std(axis=(1, 2)))
    assert rms[0].mean() > 0.025
    assert rms[1].max() < 0.011, "noise of the photons is 0.007 to 0.009"


def test_flats_that_differ_by_noise_alone_give_the_mean_flat():
    data, flats, darks, _ = moving_scan(size=0.0)
    got = dynamic_flat_field_correction(data, flats, darks)
    np.testing.assert_array_equal(got, dark_flat_field_correction(data, flats, darks))
