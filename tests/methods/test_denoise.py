from __future__ import annotations

import numpy as np
import pytest
from skimage.data import binary_blobs
from skimage.restoration import denoise_tv_chambolle

from maxslices_methods.denoise import total_variation_pd, total_variation_rof


def noisy(shape=(12, 19, 23), dtype="float32"):
    rng = np.random.default_rng(3)
    blobs = binary_blobs(32, n_dim=3, volume_fraction=0.4, rng=3)[tuple(map(slice, shape))]
    return (blobs + rng.normal(0, 0.2, shape)).astype(dtype)


def minmod(a, b):
    return np.sign(a) * min(abs(a), abs(b)) if a * b > 0 else 0.0


def rof_literally(data, strength, iterations, step):
    """The explicit scheme, voxel by voxel, in float64."""
    source = np.array(data, dtype=float)
    u = source.copy()
    for _ in range(iterations):
        padded = np.pad(u, 1, mode="edge")
        flow = np.zeros((3, *padded.shape))
        for where in np.ndindex(*(n + 1 for n in u.shape)):
            at = np.array(where)
            for axis in range(3):
                if sum(at[i] == 0 for i in range(3) if i != axis):
                    continue  # only faces of voxels of the volume are used
                e = np.eye(3, dtype=int)
                d = padded[tuple(at + e[axis])] - padded[tuple(at)]
                square = d**2 + 1e-8
                for other in {0, 1, 2} - {axis}:
                    here = padded[tuple(at)]
                    after = padded[tuple(at + e[other])] - here
                    before = here - padded[tuple(at - e[other])]
                    square += minmod(after, before) ** 2
                flow[axis][tuple(at)] = d / np.sqrt(square)
        inside = (slice(1, -1),) * 3
        divergence = sum((flow[a] - np.roll(flow[a], 1, axis=a))[inside] for a in range(3))
        u = u + step * (strength * divergence - (u - source))
    return u


def variation(volume):
    gradient = np.zeros((3, *volume.shape))
    for axis in range(3):
        inside = tuple(slice(0, -1) if a == axis else slice(None) for a in range(3))
        gradient[axis][inside] = np.diff(volume, axis=axis)
    return np.sqrt((gradient**2).sum(axis=0)).sum()


def energy(volume, data, strength):
    volume = volume.astype(float)
    return strength * variation(volume) + 0.5 * ((volume - data) ** 2).sum()


def test_rof_is_the_explicit_scheme():
    data = noisy((4, 5, 6))
    result = total_variation_rof(data, 0.1, iterations=7, time_marching_parameter=0.05)
    expected = rof_literally(data, 0.1, 7, 0.05)
    assert np.abs(expected - data).max() > 0.05
    np.testing.assert_allclose(result, expected, atol=2e-6)


@pytest.mark.parametrize("strength", [0.03, 0.3])
def test_pd_finds_the_minimum_that_scikit_image_finds(strength):
    data = noisy()
    reference = denoise_tv_chambolle(
        data.astype(float), weight=strength, eps=1e-9, max_num_iter=3000
    )
    result = total_variation_pd(data, strength, iterations=400)
    assert np.abs(reference - data).max() > 0.1
    np.testing.assert_allclose(result, reference, atol=0.02)
    assert np.sqrt(np.mean((result - reference) ** 2)) < 0.003
    assert energy(result, data, strength) < energy(reference, data, strength) * (1 + 1e-4)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_pd_default_iterations_come_near_the_minimum_at_any_scale(scale):
    data = noisy() * np.float32(scale)
    strength = 0.1 * scale
    best = energy(total_variation_pd(data, strength, 500), data, strength)
    reached = energy(total_variation_pd(data, strength), data, strength)
    assert reached - best < 0.01 * (energy(data, data, strength) - best)


def test_pd_anisotropic_variation_is_the_sum_of_components():
    data = noisy()
    strength = 0.2

    def sum_energy(volume):
        volume = volume.astype(float)
        total = sum(np.abs(np.diff(volume, axis=a)).sum() for a in range(3))
        return strength * total + 0.5 * ((volume - data) ** 2).sum()

    isotropic = total_variation_pd(data, strength, 300)
    anisotropic = total_variation_pd(data, strength, 300, isotropic=False)
    assert sum_energy(anisotropic) < sum_energy(isotropic) * 0.999
    assert energy(isotropic, data, strength) < energy(anisotropic, data, strength) * 0.999


def test_pd_nonnegativity():
    data = noisy() - np.float32(0.3)
    assert total_variation_pd(data, 0.05).min() < 0
    assert total_variation_pd(data, 0.05, nonnegativity=True).min() >= 0
