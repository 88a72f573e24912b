"""Stripe removal against algotom, dense linear algebra and plain PyWavelets."""

from __future__ import annotations

import math

import numpy as np
import pytest
import pywt
from algotom.prep import removal
from scipy import ndimage

from maxslices_methods import _stripe_sorting as sorting
from maxslices_methods import _stripe_wavelet as wavelet
from maxslices_methods import stripe
from maxslices_methods.stripe import remove_stripe_based_sorting, remove_stripe_fw, remove_stripe_ti


def sinograms(shape, dtype="float32", seed=3):
    """Return noise of both signs with a few stripes. As uint16 it has many equal values."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=shape) + 3 * (rng.random(shape[2]) > 0.9)
    return rng.integers(0, 50, shape).astype(dtype) if dtype == "uint16" else values.astype(dtype)


# Sorting


@pytest.mark.parametrize("shape", [(64, 3, 50), (61, 2, 67), (128, 2, 33), (2, 2, 40)])
@pytest.mark.parametrize(("size", "dim"), [(11, 1), (3, 1), (5, 2), (2, 1), (4, 2), (1, 1)])
def test_sorting_is_that_of_algotom(shape, size, dim):
    data = sinograms(shape)
    got = remove_stripe_based_sorting(data, size=size, dim=dim)
    for j in range(shape[1]):
        expected = removal.remove_stripe_based_sorting(data[:, j], size=size, dim=dim)
        np.testing.assert_array_equal(got[:, j], expected)


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_equal_values_keep_the_order_of_their_rows(dtype):
    data = sinograms((70, 2, 31), "uint16").astype(dtype)
    if dtype == "float32":
        data -= 25
        data[::3][data[::3] == 0] = -0.0
    got = remove_stripe_based_sorting(data, size=5)
    assert got.dtype == dtype
    for j in range(2):
        order = np.argsort(data[:, j], axis=0, kind="stable")
        medians = ndimage.median_filter(np.take_along_axis(data[:, j], order, 0), size=(1, 5))
        expected = np.empty_like(medians)
        np.put_along_axis(expected, order, medians, 0)
        np.testing.assert_array_equal(got[:, j], expected)


def test_one_angle_is_filtered_across_columns():
    data = sinograms((1, 4, 30))
    got = remove_stripe_based_sorting(data, size=3)
    np.testing.assert_array_equal(got[0], ndimage.median_filter(data[0], size=(1, 3)))


# Titarenko


@pytest.mark.parametrize("dtype", ["float32", "uint16"])
@pytest.mark.parametrize("beta", [0.1, 0.02, 0.7, 1.0])
@pytest.mark.parametrize("width", [50, 67, 1])
def test_ti_is_a_dense_product_with_the_kernel(width, beta, dtype):
    data = sinograms((40, 35, width), dtype)
    profile = data.mean(axis=0, dtype=float)
    if width % 2:
        profile = np.pad(profile, ((0, 0), (0, 1)), mode="edge")
    even = profile.shape[1]
    apart = np.abs(np.arange(even)[:, None] - np.arange(even))
    apart = np.minimum(apart, even - apart)
    kernel = beta * ((1 - beta) / (1 + beta)) ** apart - np.eye(even)
    expected = data + ((profile - profile[:, :1]) @ kernel)[:, :width]
    got = remove_stripe_ti(data, beta=beta)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6 * np.abs(data).max())


# Wavelets and Fourier transform


def muench(sinogram, sigma=2.0, wname="db5", level=None, pad=None):
    """Munch 2009, with the transforms of PyWavelets and NumPy in double precision."""
    n_pad = len(sinogram) // 2 if (level is None if pad is None else pad) else 0
    padded = np.pad(sinogram, ((n_pad, n_pad), (0, 0)), mode="reflect")
    approximation, bands = padded.astype(float), []
    for _ in range(level or max(1, int(math.log2(sinogram.shape[1] / 64)))):
        approximation, details = pywt.dwt2(approximation, wname, mode="symmetric")
        bands.append(details)
    for horizontal, vertical, diagonal in bands[::-1]:
        n = len(vertical)
        frequency = np.fft.ifftshift(np.arange(n) - n // 2)
        damping = 1 - np.exp(-(frequency**2) / (2 * sigma**2))
        spectrum = np.fft.fft(vertical, axis=0) * damping[:, None]
        damped = np.fft.ifft(spectrum, axis=0).real
        approximation = approximation[: len(vertical), : vertical.shape[1]]
        approximation = pywt.idwt2((approximation, (horizontal, damped, diagonal)), wname)
    return approximation[n_pad : n_pad + len(sinogram), : sinogram.shape[1]]


@pytest.mark.parametrize("shape", [(64, 2, 50), (61, 2, 67), (33, 1, 300), (90, 1, 7), (5, 1, 40)])
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"sigma": 0.5, "level": 1},
        {"wname": "haar", "level": 3},
        {"wname": "sym16", "sigma": 4.5},
        {"wname": "bior4.4"},
        {"level": 3, "pad": True},
        {"pad": False},
        {"wname": "bior1.3", "sigma": 30, "level": 4},
    ],
)
def test_fw_is_the_filter_of_muench(shape, parameters):
    data = sinograms(shape) + 5
    got = remove_stripe_fw(data, **parameters)
    assert got.dtype == np.float32
    for j in range(shape[1]):
        expected = muench(data[:, j], **parameters)
        np.testing.assert_allclose(got[:, j], expected, rtol=0, atol=3e-6 * np.abs(data).max())


def test_fw_takes_counts():
    data = sinograms((50, 2, 40), "uint16")
    expected = muench(data[:, 1])
    np.testing.assert_allclose(remove_stripe_fw(data)[:, 1], expected, rtol=0, atol=2e-4)


def test_fw_removes_a_stripe_and_leaves_the_rest():
    n = 256
    angle, x = np.mgrid[:n, :n]
    clean = np.exp(-(((x - 128 - 60 * np.sin(np.pi * angle / n)) / 20) ** 2)).astype(np.float32)
    striped = clean.copy()
    striped[:, 100] += 0.5
    left = remove_stripe_fw((striped - clean)[:, None], level=8)
    assert np.abs(left).max() < 0.02


# All

METHODS = [remove_stripe_based_sorting, remove_stripe_ti, remove_stripe_fw]


@pytest.mark.parametrize("dtype", ["float32", "uint16"])
@pytest.mark.parametrize("function", METHODS)
def test_the_way_of_a_gpu_gives_the_same(function, dtype, monkeypatch):
    data = sinograms((51, 33, 46), dtype)
    expected = function(data)
    for module in (stripe, sorting):
        monkeypatch.setattr(module, "on_gpu", lambda _: True)
    monkeypatch.setitem(sorting.SORT_CHUNK, "cuda", 7 * 51 * 46)
    monkeypatch.setitem(wavelet.CHUNK_NUMBERS, "cuda", 300_000)
    wavelet.chunk_slices.cache_clear()
    got = function(data)
    wavelet.chunk_slices.cache_clear()
    if function is remove_stripe_fw:
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6 * np.abs(data).max())
    else:
        np.testing.assert_array_equal(got, expected)
