"""Overlap of a full turn, and the axis from two opposite projections."""

from __future__ import annotations

import numpy as np
import pytest
from algotom.prep import calculation as algotom

from maxslices_methods.morph import sino_360_to_180
from maxslices_methods.rotation_full_turn import find_center_360
from maxslices_methods.rotation_pair import OppositeFrames, find_center_pc


def sinogram(axis, turn=360.0, width=160, n_angles=240, noise=0.01):
    """Chords of discs that turn about `axis`, (angles, 1, width)."""
    angles = np.deg2rad(np.linspace(0, turn, n_angles, endpoint=turn == 180.0))[:, None]
    at = np.arange(width) - axis
    total = np.zeros((n_angles, width))
    for x, y, radius in ((10.0, -60.0, 90.0), (-70.0, 20.0, 15.0), (40.0, 50.0, 8.0)):
        away = at - x * np.cos(angles) - y * np.sin(angles)
        total += np.sqrt(np.clip(radius**2 - away**2, 0, None))
    total += np.random.default_rng(0).normal(0, noise * total.max(), total.shape)
    return total[:, None].astype(np.float32)


@pytest.mark.parametrize("axis, side", [(140.3, "right"), (25.8, "left")])
@pytest.mark.parametrize(
    "parameters, within",
    # Scaled rows find the same as Algotom: see below.
    [({}, 1), ({"norm": True}, 2), ({"use_overlap": True}, 1), ({"denoise": False}, 1)],
)
def test_the_overlap_is_found(axis, side, parameters, within):
    cor, overlap, found_side, _ = find_center_360(sinogram(axis), **parameters)
    distance = 159 - axis if side == "right" else axis
    assert found_side == side
    assert overlap == pytest.approx(2 * distance + 1, abs=within)
    assert cor == 159.5


@pytest.mark.parametrize("parameters", [{}, {"norm": True}, {"use_overlap": True}])
def test_algotom_finds_the_same(parameters):
    data = sinogram(140.3)
    half = len(data) // 2 + 1
    overlap, side, position = algotom.find_overlap(
        data[:half, 0], data[-half:, 0, ::-1], 10, side=1, denoise=True, ncore=1, **parameters
    )
    result = find_center_360(data, side="right", **parameters)
    assert (overlap, side, position) == pytest.approx((result[1], 1, result[3]), abs=1e-2)


def test_the_axis_of_the_stitched_sinogram_is_in_its_middle():
    data = sinogram(140.3, noise=0.0)
    cor, overlap, side, _ = find_center_360(data)
    stitched = sino_360_to_180(data, overlap, side)
    assert cor == (stitched.shape[2] - 1) / 2
    # Opposite views of a half turn are mirrored about the axis.
    first, last = stitched[0, 0], stitched[-1, 0, ::-1]
    inside = slice(60, -60)
    assert np.abs(first - last)[inside].mean() < 0.06 * first.max()


def frames(axis, shape=(48, 160)):
    """First and last projection of a half turn: bright spots, mirrored about the axis."""
    rng = np.random.default_rng(3)
    y, x = np.mgrid[: shape[0], : shape[1]]
    first, last = np.zeros(shape), np.zeros(shape)
    for row, away, size in zip(
        rng.uniform(4, 44, 12), rng.uniform(-45, 45, 12), rng.uniform(2, 5, 12), strict=True
    ):
        for frame, column in ((first, axis + away), (last, axis - away)):
            frame += np.exp(-((x - column) ** 2 + (y - row) ** 2) / (2 * size**2))
    stack = np.stack([first, last]) + rng.normal(0, 0.01, (2, *shape))
    return stack.astype(np.float32)


@pytest.mark.parametrize("axis", [79.5, 84.25, 71.0])
@pytest.mark.parametrize("tol", [1.0, 0.5, 0.1])
def test_two_projections_tell_the_axis(axis, tol):
    center = find_center_pc.meta.combine([find_center_pc(frames(axis), tol=tol)])
    assert center == pytest.approx(axis, abs=max(tol, 0.3))


def test_a_guess_far_from_the_middle_helps():
    center = find_center_pc.meta.combine([find_center_pc(frames(100.0), rotc_guess=97.0)])
    assert center == pytest.approx(100.0, abs=0.5)


def test_the_first_of_the_first_block_and_the_last_of_the_last_count():
    data = np.random.default_rng(0).random((9, 8, 20), np.float32)
    blocks = [find_center_pc(data[:4]), find_center_pc(data[4:])]
    both = OppositeFrames(data[0].copy(), data[-1].copy(), 0.5, None)
    assert find_center_pc.meta.combine(blocks) == find_center_pc.meta.combine([both])
