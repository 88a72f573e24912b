from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from skimage.data import shepp_logan_phantom
from skimage.transform import iradon, radon, resize

from maxslices_methods import _fbp_cpu
from maxslices_methods._fbp_geometry import angle_weights
from maxslices_methods.recon import fbp

SIZE = 129
DEGREES = np.linspace(0, 180, 201, endpoint=False)
RADIANS = np.deg2rad(DEGREES)


def disc(size, radius=0.95):
    across = np.linspace(-1, 1, size)
    return np.hypot(across[:, None], across) < radius


@pytest.fixture(scope="module")
def phantom():
    image = resize(shepp_logan_phantom(), (SIZE, SIZE), anti_aliasing=True)
    return image * disc(SIZE)


@pytest.fixture(scope="module")
def sinogram(phantom):
    return radon(phantom, DEGREES).T.astype(np.float32)[:, None, :]


def ellipses(center, detector, angles, offset=0.0):
    """Exact line integrals of an off-centre disc of 0.02 per pixel with a hole, in pixels."""
    at = np.arange(detector) - center
    total = np.zeros((len(angles), detector))
    for value, radius, x, y in ((0.02, 40, 8, -5), (-0.01, 11, 20, 3)):
        shifted = at - (x * np.cos(angles) + y * np.sin(angles))[:, None]
        total += 2 * value * np.sqrt(np.clip(radius**2 - shifted**2, 0, None))
    return (total + offset).astype(np.float32)[:, None, :]


def inside(image, center_x, center_y, radius):
    middle = (image.shape[0] - 1) / 2
    y = (middle - np.arange(image.shape[0]))[:, None]
    x = np.arange(image.shape[1]) - middle
    return image[np.hypot(x - center_x, y - center_y) < radius]


@pytest.mark.parametrize("filter_type", ["ram-lak", "shepp-logan", "cosine", "hamming", "hann"])
def test_slice_is_scikit_images(sinogram, phantom, filter_type):
    result = fbp(sinogram, RADIANS, filter_type=filter_type)[:, 0]
    name = {"ram-lak": "ramp"}.get(filter_type, filter_type)
    reference = iradon(sinogram[:, 0].T, DEGREES, filter_name=name, interpolation="cubic")
    error = (result - reference)[disc(SIZE, 0.94)]
    assert np.sqrt(np.mean(error**2)) < 0.012
    assert abs(error.mean()) < 1e-4
    to_phantom = [
        np.sqrt(np.mean((r - phantom)[disc(SIZE, 0.94)] ** 2)) for r in (result, reference)
    ]
    assert to_phantom[0] < to_phantom[1] * 1.02


@pytest.mark.parametrize("center", [63.5, 70.8, 55.25])
@pytest.mark.parametrize("detector, size", [(128, None), (129, 128), (131, 101), (127, 161)])
def test_values_are_attenuation_per_pixel_wherever_the_axis_is(center, detector, size):
    data = ellipses(center, detector, RADIANS)
    image = fbp(data, RADIANS, center, recon_size=size, recon_mask_radius=None)[:, 0]
    assert image.shape == (size or detector,) * 2
    assert inside(image, 20, 3, 7).mean() == pytest.approx(0.01, abs=2e-5)
    assert inside(image, -8, -5, 14).mean() == pytest.approx(0.02, abs=2e-5)
    assert abs(inside(image, -10, 40, 5).mean()) < 6e-5


@pytest.mark.parametrize(
    "angles",
    [
        np.linspace(0, np.pi, 201),
        np.linspace(0, 2 * np.pi, 400, endpoint=False),
        np.linspace(0, 2 * np.pi, 401),
        -np.linspace(0, np.pi, 200, endpoint=False) + 1.0,
        np.random.default_rng(1).permutation(np.linspace(0, np.pi, 200, endpoint=False)),
        np.arange(377) * np.pi * (np.sqrt(5) - 1) / 2,
    ],
    ids=["both ends", "360", "360 both ends", "backwards", "shuffled", "golden ratio"],
)
def test_any_order_and_range_of_angles_gives_the_same_values(angles):
    image = fbp(ellipses(64.0, 129, angles), angles)[:, 0]
    assert inside(image, 20, 3, 7).mean() == pytest.approx(0.01, abs=2e-5)
    assert inside(image, -8, -5, 14).mean() == pytest.approx(0.02, abs=2e-5)


def test_angle_weights():
    np.testing.assert_allclose(angle_weights(RADIANS), np.pi / 201)
    both_ends = angle_weights(np.linspace(0, np.pi, 11))
    np.testing.assert_allclose(both_ends[1:-1], np.pi / 10)
    np.testing.assert_allclose(both_ends[[0, -1]].sum(), np.pi / 10)
    wedge = angle_weights(np.deg2rad(np.arange(0, 120, 2.0)))
    assert wedge.max() < 1.5 * np.deg2rad(2)
    wide = angle_weights(np.deg2rad(np.arange(0, 50, 2.0)))
    np.testing.assert_allclose(wide, np.deg2rad(2))
    np.testing.assert_allclose(angle_weights(np.full(3, 0.3)), np.pi / 3)


@pytest.mark.parametrize("n_turns", [2, 3, 4, 11])
@pytest.mark.parametrize("jitter", [0, 1e-5])
def test_repeated_angles_and_turns_share_their_weight(n_turns, jitter):
    angles = np.linspace(0, np.pi * n_turns, 100 * n_turns, endpoint=False)
    angles += np.random.default_rng(0).uniform(0, jitter, angles.size)
    weights = angle_weights(angles)
    assert weights.sum() == pytest.approx(np.pi)
    np.testing.assert_allclose(weights, weights[0], rtol=2 * jitter * 100 / np.pi + 1e-6)


def test_detector_pad_flattens_an_object_wider_than_the_detector():
    chords = 2 * np.sqrt(60**2 - (np.arange(61) - 30) ** 2)
    data = np.broadcast_to(chords.astype(np.float32), (201, 1, 61))
    plain, padded, wide = (
        inside(fbp(data, RADIANS, detector_pad=pad, recon_mask_radius=None)[:, 0], 0, 0, 24)
        for pad in (False, 30, True)
    )
    assert np.ptp(padded) < 0.3 * np.ptp(plain)
    np.testing.assert_array_equal(wide, padded)  # True: half of the detector


def test_mask_is_a_disc_and_can_be_left_out(sinogram):
    masked = fbp(sinogram, RADIANS, recon_mask_radius=0.5)[:, 0]
    whole = fbp(sinogram, RADIANS, recon_mask_radius=None)[:, 0]
    middle = (SIZE - 1) / 2
    radius = np.hypot(*(np.mgrid[:SIZE, :SIZE] - middle))
    assert not masked[radius > 0.25 * SIZE].any()
    assert whole[0, 0] != 0
    near = radius <= 0.25 * SIZE
    np.testing.assert_allclose(masked[near], whole[near], atol=2e-4)


@pytest.mark.parametrize("workers", [1, 3])
def test_blocks_and_threads_do_not_change_a_bit(monkeypatch, workers):
    data = np.random.default_rng(0).random((61, 9, 67), dtype=np.float32)
    angles = np.linspace(0, np.pi, 61)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    whole = fbp(data, angles)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(workers)))
    parts = [fbp(data[:, :2], angles), fbp(data[:, 2:3], angles), fbp(data[:, 3:], angles)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


def test_an_axis_beside_the_detector_is_warned_of(sinogram):
    n = sinogram.shape[2]
    fbp(sinogram, RADIANS, n - 0.5)
    with pytest.warns(UserWarning, match=f"center {n} is not on the detector's {n} columns"):
        fbp(sinogram, RADIANS, n)


HELD_BY_FINUFFT = """
import json, os, sys
import finufft, numpy as np
from maxslices.measure.resident_memory import ResidentPeak
from maxslices_methods import _fbp_cpu
side, n_angles, around = (int(each) for each in sys.argv[1:])
def waves(n_angles, n):
    frequencies = np.arange(n) * (np.pi / n)
    angles = np.linspace(0, around * np.pi, n_angles)
    positions = [np.outer(f(angles), frequencies).astype(np.float32) for f in (np.sin, np.cos)]
    return positions, np.ones(positions[0].size, np.complex64)
def execute(side, positions, values):
    plan = _fbp_cpu._plan(side, *positions)
    plan.execute(values, out=np.ones((side, side), np.complex64))
library = ResidentPeak()
execute(30, *waves(40, 16))
library_bytes = library.grown_bytes
positions, factors = waves(n_angles, side // 2 + 1)
values = np.ones((side, side), np.complex64)
peak = ResidentPeak()
plan = _fbp_cpu._plan(side, *positions)
plan.execute(factors, out=values)
print(json.dumps([peak.grown_bytes, _fbp_cpu.plan_bytes(side, factors.size), library_bytes]))
"""


@pytest.mark.parametrize(("side", "n_angles", "around"), [(1000, 60, 2), (700, 361, 1)])
def test_finufft_takes_what_the_ledger_says(side, n_angles, around):
    """By the kernel's count, which does not take the library's word for it.

    In a process of its own: C's allocator may reuse pages that other tests left resident.
    """
    pytest.importorskip("finufft")
    arguments = [str(each) for each in (side, n_angles, around)]
    command = [sys.executable, "-c", HELD_BY_FINUFFT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    taken, plan_bytes, library_bytes = json.loads(done.stdout)
    spare = 2**19  # pages that the library touches for the first time, and the heap's own
    assert 0.75 * plan_bytes <= taken <= plan_bytes + spare
    assert library_bytes <= _fbp_cpu.LIBRARY_BYTES


def test_what_loading_the_library_takes_is_not_counted_as_the_method():
    pytest.importorskip("finufft")
    code = (
        "import numpy as np; from maxslices import run\n"
        "from maxslices.io import ArrayScan\n"
        "data = np.ones((61, 1, 96), np.float32)\n"
        "scan = ArrayScan(data, angles=np.linspace(0, np.pi, 61, dtype=np.float32))\n"
        "section, = run(scan, ['fbp'], device='cpu').sections\n"
        "print(section.measured_bytes, section.estimated_bytes)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    measured, estimated = map(int, done.stdout.split())
    assert 0 < measured <= estimated
