"""httomolibgpu's names in the pack: parameters, and messages about ignored ones."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from maxslices_methods import denoise, httomo_names
from maxslices_methods.httomo_names import FBP2d_astra, FBP3d_tomobar, LPRec3d_tomobar
from maxslices_methods.recon import fbp

RADIANS = np.linspace(0, np.pi, 61)


@pytest.fixture
def rows():
    return np.random.default_rng(2).random((61, 2, 48), np.float32)


def test_without_a_cutoff_the_log_polar_name_is_fbp(rows):
    expected = fbp(rows, RADIANS, 21.5)
    np.testing.assert_array_equal(LPRec3d_tomobar(rows, RADIANS, 21.5), expected)


def test_astras_windows_are_fbps(rows):
    expected = fbp(rows, RADIANS, 21.5, filter_type="hann")
    result = FBP2d_astra(rows, RADIANS, 21.5, filter_type="hann")
    np.testing.assert_array_equal(result, expected)


def test_a_narrow_sinc_is_the_ramp_and_a_wide_one_smoother(rows):
    ramp = fbp(rows, RADIANS, filter_type="ram-lak")
    np.testing.assert_allclose(
        FBP3d_tomobar(rows, RADIANS, filter_freq_cutoff=1e-3), ramp, atol=1e-6
    )
    # At a width of 1, this is the window of Shepp and Logan.
    np.testing.assert_allclose(
        FBP3d_tomobar(rows, RADIANS, filter_freq_cutoff=1.0), fbp(rows, RADIANS), atol=1e-6
    )


def test_nothing_is_left_above_the_cutoff():
    n_angles, width = 40, 64
    waves = np.cos(2 * np.pi * 0.3 * np.arange(width), dtype=np.float32)
    rows = np.broadcast_to(waves, (n_angles, 1, width))
    angles = np.linspace(0, np.pi, n_angles, endpoint=False)
    inside = LPRec3d_tomobar(rows, angles, filter_type="ramp", filter_freq_cutoff=0.8)
    outside = LPRec3d_tomobar(rows, angles, filter_type="ramp", filter_freq_cutoff=0.4)
    # Differences remain at the ends of the rows.
    assert np.abs(outside[16:48, 0, 16:48]).max() < 0.1 * np.abs(inside[16:48, 0, 16:48]).max()


def test_parameters_for_gpus_only_are_logged_once_as_ignored(rows, caplog, monkeypatch):
    monkeypatch.setattr(httomo_names, "logged_unused", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            LPRec3d_tomobar(rows, RADIANS, min_mem_usage_filter=False)
    assert [record.getMessage() for record in caplog.records] == [
        "LPRec3d_tomobar: min_mem_usage_filter=False applies only to httomolibgpu on a GPU, and "
        "is ignored"
    ]


def test_total_variation_has_the_parameters_of_both():
    volume = np.random.default_rng(1).random((5, 12, 13), np.float32)
    parameters = {"regularisation_parameter": 0.1, "iterations": 4}
    np.testing.assert_array_equal(
        httomo_names.total_variation_PD(volume, **parameters),
        denoise.total_variation_pd(volume, lipschitz_const=8.0, **parameters),
    )
    np.testing.assert_array_equal(
        httomo_names.total_variation_ROF(volume, **parameters),
        denoise.total_variation_rof(volume, time_marching_parameter=1e-3, **parameters),
    )


@pytest.mark.parametrize("iterations, halo", [(3, 3), (20, 20), (1000, 20)])
def test_the_halo_of_many_iterations_is_bounded(iterations, halo):
    meta = httomo_names.total_variation_PD.meta
    assert meta.halo_slices(iterations=iterations) == (halo, halo)


def test_slices_beyond_the_halo_hardly_matter():
    rng = np.random.default_rng(0)
    volume = rng.normal(0, 0.1, (90, 24, 24)).astype(np.float32)
    volume[20:70, 6:18, 6:18] += 1
    whole = httomo_names.total_variation_PD(volume, 0.1, 200)
    block = httomo_names.total_variation_PD(volume[25:66], 0.1, 200)
    assert np.abs(whole[45] - block[20]).max() < 0.01 * np.ptp(volume)
