from __future__ import annotations

import logging

import algotom.prep.calculation as algotom
import numpy as np
import pytest

from maxslices_methods.rotation import find_center_vo

MIDDLE = 127.5


def sinogram(offset, n_angles=181, detector=256, noise=0.02, seed=0):
    """Exact line integrals of ellipses, with the axis `offset` pixels from the middle."""
    angles = np.linspace(0, np.pi, n_angles)[:, None]
    at = np.arange(detector) - (detector - 1) / 2 - offset
    scale = detector / 256
    total = np.zeros((n_angles, detector))
    for value, a, b, x, y, tilt in (
        (1.0, 70, 55, 5, -4, 0.3),
        (-0.4, 20, 9, -25, 10, 1.0),
        (0.7, 6, 11, 30, 20, 0.0),
        (0.9, 4, 3, -10, -38, 0.0),
        (-0.6, 15, 15, 20, -15, 0.0),
    ):
        half_square = (a * np.cos(angles - tilt)) ** 2 + (b * np.sin(angles - tilt)) ** 2
        distance = at / scale - (x * np.cos(angles) + y * np.sin(angles))
        chord = np.sqrt(np.clip(half_square - distance**2, 0, None))
        total += 2 * value * a * b * chord / half_square
    total += np.random.default_rng(seed).normal(0, noise * total.max(), total.shape)
    return total.astype(np.float32)[:, None, :]


@pytest.mark.parametrize("offset", [0.0, 7.3, -11.6, 3.49, -41.13])
@pytest.mark.parametrize("step", [0.5, 0.2])
def test_axis_is_found_within_a_quarter_of_a_pixel(offset, step):
    center = find_center_vo(sinogram(offset), step=step)
    assert isinstance(center, float)
    assert abs(center - MIDDLE - offset) < 0.25


@pytest.mark.parametrize("offset", [78.0, -83.4])
def test_the_search_is_around_the_value_that_is_given(offset):
    data, about = sinogram(offset), MIDDLE + offset + 7
    center = find_center_vo(data, cor_initialisation_value=about, smin=-20, smax=10)
    assert abs(center - MIDDLE - offset) < 0.25


def test_algotom_finds_the_same():
    data = sinogram(7.3)
    reference = algotom.find_center_vo(
        data[:, 0], start=118, stop=148, step=0.5, radius=6, dsp=False, ncore=1
    )
    assert abs(find_center_vo(data) - reference) < 0.5


@pytest.mark.parametrize("n_angles, detector", [(2003, 256), (361, 2051), (360, 2052)])
def test_wide_detectors_and_many_angles_are_searched_on_means(n_angles, detector):
    data = sinogram(-21.3, n_angles=n_angles, detector=detector)
    center = find_center_vo(data, srad=2.0, step=1.0)
    assert abs(center - (detector - 1) / 2 + 21.3) < 0.25


def test_the_sinograms_given_are_averaged():
    data = np.concatenate([sinogram(7.3, noise=0.3, seed=s) for s in range(5)], axis=1)
    mean = data.mean(axis=1, keepdims=True)
    assert find_center_vo(data) == pytest.approx(find_center_vo(mean), abs=0.01)


def test_values_that_are_not_finite_do_not_spoil_it():
    data = sinogram(7.3)
    data[40, 0, 100], data[90, 0, 30] = np.nan, np.inf
    assert abs(find_center_vo(data) - MIDDLE - 7.3) < 0.25


def test_an_axis_outside_the_search_is_said(caplog):
    with caplog.at_level(logging.WARNING):
        find_center_vo(sinogram(30.0), smin=-10, smax=10)
    assert "-10 to 10 pixels" in caplog.text


@pytest.mark.parametrize(
    "parameters, expected",
    [
        ({}, [50]),
        ({"ind": "mid"}, [50]),
        ({"ind": 3}, [3]),
        ({"ind": 3, "average_radius": 2}, [1, 2, 3, 4, 5]),
        ({"ind": 0, "average_radius": 2}, [0, 1, 2]),
        ({"ind": 100, "average_radius": 1}, [99, 100]),
    ],
)
def test_which_sinograms_it_sample_slices(parameters, expected):
    assert list(find_center_vo.meta.sample_slices(101, **parameters)) == expected
