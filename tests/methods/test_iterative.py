"""Iterative reconstruction: a matched pair of projections, and slices as good as from fbp."""

from __future__ import annotations

import numpy as np
import pytest
from skimage.data import shepp_logan_phantom
from skimage.transform import resize

from maxslices_methods._fbp_geometry import lengths
from maxslices_methods._projector_cpu import Projector
from maxslices_methods.fista import FISTA3d_tomobar
from maxslices_methods.iterative import CGLS3d_tomobar, SIRT3d_tomobar
from maxslices_methods.recon import fbp

SIDE = 64
RADIANS = np.linspace(0, np.pi, 60, endpoint=False)
CENTER = 33.25


@pytest.fixture(scope="module")
def phantom():
    return resize(shepp_logan_phantom(), (SIDE, SIDE)).astype(np.float32)


@pytest.fixture(scope="module")
def projector():
    return Projector(RADIANS, CENTER, lengths((60, 1, SIDE), False, None, None))


@pytest.fixture(scope="module")
def rows(phantom, projector):
    """Projections with noise of a twentieth of the largest, one slice."""
    out = np.empty((60, SIDE), np.float32)
    projector.forward(phantom, out)
    noise = np.random.default_rng(0).normal(0, 0.02 * out.max(), out.shape)
    return (out + noise)[:, None].astype(np.float32)


@pytest.mark.parametrize("subset", [slice(None), slice(1, None, 4)])
def test_the_transpose_is_the_projections(projector, subset):
    rng = np.random.default_rng(1)
    image = rng.normal(size=(SIDE, SIDE)).astype(np.float32)
    measured = rng.normal(size=(60, SIDE)).astype(np.float32)[subset]
    projected = np.empty_like(measured)
    projector.forward(image, projected, subset)
    there, back = (
        np.vdot(projected, measured),
        np.vdot(image, projector.transpose(measured, subset)),
    )
    scale = np.linalg.norm(projected) * np.linalg.norm(measured)
    assert abs(there - back) < 1e-4 * scale


def test_a_disc_is_projected_to_its_chords(projector):
    radius = 20.0
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    disc = np.clip(radius + 0.5 - np.hypot(x, y), 0, 1).astype(np.float32)
    out = np.empty((60, SIDE), np.float32)
    projector.forward(disc, out)
    distance = np.arange(SIDE) - CENTER
    chords = 2 * np.sqrt(np.clip(radius**2 - distance**2, 0, None))
    assert np.abs(out - chords).max() < 0.06 * chords.max()


def error(result, phantom):
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    inside = np.hypot(x, y) < 0.9 * SIDE / 2
    return float(np.sqrt(np.mean((result[:, 0] - phantom)[inside] ** 2)))


@pytest.mark.parametrize(
    "method, given",
    [
        (SIRT3d_tomobar, {"iterations": 150}),
        (CGLS3d_tomobar, {"iterations": 12}),
        (FISTA3d_tomobar, {"iterations": 10, "regularisation_parameter": 2e-4}),
    ],
)
def test_slices_are_as_good_as_fbps(rows, phantom, method, given):
    result = method(rows, RADIANS, CENTER, **given)
    assert result.dtype == np.float32
    assert result.shape == (SIDE, 1, SIDE)
    assert error(result, phantom) < error(fbp(rows, RADIANS, CENTER), phantom)


@pytest.mark.parametrize("method", [SIRT3d_tomobar, CGLS3d_tomobar, FISTA3d_tomobar])
def test_values_below_zero_are_kept_where_wanted(rows, method):
    # SIRT starts smooth, and takes some steps to ring.
    parameters = {"iterations": 30, "recon_mask_radius": None}
    assert method(rows, RADIANS, CENTER, **parameters).min() >= 0
    assert method(rows, RADIANS, CENTER, nonnegativity=False, **parameters).min() < 0


def test_the_mask_and_the_size_are_fbps(rows):
    result = CGLS3d_tomobar(rows, RADIANS, CENTER, recon_size=40, iterations=2)
    assert result.shape == (40, 1, 40)
    assert result[0, 0, 0] == 0
    assert result[20, 0, 20] != 0
