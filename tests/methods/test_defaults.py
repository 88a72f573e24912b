"""What methods do by default to a slice: little where nothing is wrong, something where it is.

Reported situations, each with its source in a public tracker.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.fft

from maxslices_methods.denoise import total_variation_rof
from maxslices_methods.recon import fbp
from maxslices_methods.stripe import remove_stripe_fw, remove_stripe_ti

from .made_scans import disc_slice, line_integrals


def wrong(reason):
    return pytest.mark.xfail(strict=True, reason=reason)


def sinogram(n_angles, columns):
    degrees = np.linspace(0, 180, n_angles)
    return line_integrals(degrees, columns, rows=1).astype("f4"), np.deg2rad(degrees)


def stripes(columns, seed=0):
    """Columns whose gain is wrong by 2 %, one pixel wide."""
    return np.random.default_rng(seed).normal(0, 0.02, columns).astype("f4")


def psnr(data, angles):
    """Peak signal to noise ratio, in dB, of the slice reconstructed from a sinogram."""
    right = disc_slice(data.shape[2])
    error = fbp(data, angles, recon_mask_radius=None)[:, 0] - right
    place = np.arange(len(right)) - (len(right) - 1) / 2
    inside = place**2 + place[:, None] ** 2 < (0.45 * len(right)) ** 2
    return 10 * np.log10(right.max() ** 2 / np.mean(error[inside] ** 2))


@pytest.mark.parametrize(("n_angles", "columns"), [(361, 256), (91, 256), (721, 128)])
def test_remove_stripe_fw_leaves_a_slice_without_stripes(n_angles, columns):
    """Source: tomopy/tomopy #67 asks which levels and sigmas are reasonable; by default tomopy's
    levels, too, are as many as the longer side has."""
    data, angles = sinogram(n_angles, columns)
    assert psnr(remove_stripe_fw(data), angles) > psnr(data, angles) - 3


def test_remove_stripe_fw_removes_stripes():
    """Source: DiamondLightSource/Savu #345, which adds a wavelet filter for it to be usable."""
    data, angles = sinogram(361, 256)
    data += stripes(256)
    assert psnr(remove_stripe_fw(data), angles) > psnr(data, angles) + 3


@wrong("the convolution reaches from one end of the detector to the other")
def test_remove_stripe_ti_leaves_an_object_that_leaves_the_field_of_view():
    """Source: tomopy/tomopy #254, cyclic convolution makes dark zones where the object comes close
    to the edge of the field of view."""
    data = np.broadcast_to(np.linspace(0, 2, 128, dtype="f4"), (91, 1, 128))
    change = np.abs(remove_stripe_ti(data) - data)
    assert change.max() < 0.1


def test_total_variation_rof_comes_close_to_its_minimum_by_default():
    """Source: TomographicImaging/CIL #813, regularisers need default values; deepinv/deepinv #106,
    a denoiser that does not seem to denoise by default."""
    rng = np.random.default_rng(0)
    noisy = np.repeat(disc_slice(32)[None], 4, axis=0) + rng.normal(0, 2e-3, (4, 32, 32))
    data = noisy.astype("f4")
    far = total_variation_rof(data, iterations=3000, time_marching_parameter=1e-3) - data
    change = total_variation_rof(data) - data
    assert np.linalg.norm(change - far) < 0.1 * np.linalg.norm(far)


@pytest.mark.parametrize("filter_type", ["ram-lak", "shepp-logan", "hann"])
def test_noise_of_fbp_is_that_of_linear_interpolation(filter_type):
    """Source: tomopy/tomopy #481, the same filter gives noisier slices in one program than in
    another."""
    rng = np.random.default_rng(0)
    n, columns = 180, 96
    angles = np.arange(n) * np.pi / n
    rows = rng.normal(size=(n, 1, columns)).astype("f4")
    got = fbp(rows, angles, filter_type=filter_type, recon_mask_radius=0.8, interpolation="linear")
    got = got[:, 0]
    period = 4 * columns
    frequency = np.arange(period // 2 + 1) / period
    window = {
        "ram-lak": 1,
        "shepp-logan": np.sinc(frequency),
        "hann": 0.5 + 0.5 * np.cos(2 * np.pi * frequency),
    }[filter_type]
    filtered = scipy.fft.irfft(scipy.fft.rfft(rows[:, 0], period) * frequency * window, period)
    place = np.arange(columns) - (columns - 1) / 2
    linear = np.zeros((columns, columns))
    for angle, row in zip(angles, filtered[:, :columns], strict=True):
        at = place * np.cos(angle) - place[:, None] * np.sin(angle) + (columns - 1) / 2
        linear += np.interp(at, np.arange(columns), row)
    linear *= np.pi / n
    inside = got != 0
    assert got[inside].std() == pytest.approx(linear[inside].std(), rel=0.02)
