"""Phase retrieval against the formula, written out in double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.fft import next_fast_len

from maxslices_methods import phase
from maxslices_methods.phase import _padding, paganin_filter

PLANCK_KEV_S, LIGHT_UM_S = 4.135667696e-18, 2.99792458e14


def reference(frame, margins, pixel_size=1.28, distance=1.0, energy=53.0, ratio_delta_beta=250):
    """Paganin 2002, equation 12, by complex transforms of one frame padded with `margins`."""
    padded = np.pad(frame.astype(float), margins, mode="edge")
    wavelength = PLANCK_KEV_S * LIGHT_UM_S / energy
    wave_number = 2 * math.pi / wavelength
    beta = 1e-10
    mu = 2 * wave_number * beta
    kx, ky = (2 * math.pi * np.fft.fftfreq(n, pixel_size) for n in padded.shape)
    k2 = kx[:, None] ** 2 + ky[None, :] ** 2
    ratio = 1 + distance * 1e6 * ratio_delta_beta * beta / mu * k2
    filtered = np.fft.ifft2(np.fft.fft2(padded) / ratio).real
    (top, bottom), (left, right) = margins
    filtered = filtered[top : padded.shape[0] - bottom, left : padded.shape[1] - right]
    return -np.log(filtered)


def frames(shape, dtype="float32"):
    rng = np.random.default_rng(5)
    values = rng.random(shape) * 0.8 + 0.1
    return (values * 50000).astype(dtype) if dtype == "uint16" else values.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "uint16"])
@pytest.mark.parametrize("shape", [(20, 60, 72), (19, 61, 73), (3, 37, 130), (2, 1, 9)])
def test_power_of_two_padding_gives_the_formula(shape, dtype):
    data = frames(shape, dtype)
    got = paganin_filter(data)
    assert got.dtype == np.float32
    margins = []
    for size in shape[1:]:
        extra = 2 ** math.ceil(math.log2(size + 1)) - size
        margins.append((extra // 2, extra - extra // 2))
    for frame, result in zip(data, got, strict=True):
        np.testing.assert_allclose(result, reference(frame, margins), rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("name", "changed"),
    [("pixel_size", 3.1), ("distance", 0.2), ("energy", 20.0), ("ratio_delta_beta", 20.0)],
)
def test_each_physical_parameter_enters_the_formula(name, changed):
    data = frames((1, 64, 48))
    got = paganin_filter(
        data,
        calculate_padding_value_method="use_pad_x_y",
        pad_x_y=[8, 5],
        **{name: changed},
    )
    expected = reference(data[0], [(5, 5), (8, 8)], **{name: changed})
    np.testing.assert_allclose(got[0], expected, rtol=0, atol=2e-5)
    assert np.abs(expected - reference(data[0], [(5, 5), (8, 8)])).max() > 0.01


@pytest.mark.parametrize("size", [1, 2, 53, 1801, 2160, 2557, 2560])
def test_fast_lengths_are_the_next_even_ones_without_large_primes(size):
    (top, left), (height, width) = _padding((1, size, size), "next_fast_length", None)
    assert height == width == 2 * next_fast_len((size + 1) // 2, real=True)
    assert top == left == (width - size) // 2


def test_a_constant_keeps_its_thickness():
    np.testing.assert_allclose(
        paganin_filter(np.full((3, 20, 30), math.exp(-2), np.float32)), 2.0, rtol=1e-6
    )


def test_blackness_has_a_finite_thickness():
    got = paganin_filter(np.zeros((2, 16, 16), np.float32))
    np.testing.assert_allclose(got, -math.log(1e-6), rtol=1e-6)


def test_chunks_of_a_constant_number_of_frames_give_the_same(monkeypatch):
    data = frames((21, 29, 41))
    expected = paganin_filter(data)
    monkeypatch.setattr(phase, "on_gpu", lambda _: True)
    monkeypatch.setitem(phase.CHUNK_BYTES, "cuda", 5 * 32 * 64 * 4)
    np.testing.assert_array_equal(paganin_filter(data), expected)
