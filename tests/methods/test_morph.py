"""Stitching against Algotom, resampling against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from algotom.prep.conversion import stitch_image
from scipy.interpolate import interpn

from maxslices import ArraySpec, plan
from maxslices.errors import EstimatorError
from maxslices_methods.morph import data_resampler, sino_360_to_180


def values(shape, dtype="float32", seed=0):
    data = np.random.default_rng(seed).random(shape)
    return (data * 60000).astype(dtype) if dtype == "uint16" else data.astype(dtype)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("overlap", [2, 8, 7, 20.4])
@pytest.mark.parametrize("n_angles", [12, 13])
def test_overlapping_halves_are_stitched_as_algotom_does(side, overlap, n_angles):
    data = values((n_angles, 3, 31))
    got = sino_360_to_180(data, overlap=overlap, side=side)
    even = {2: 2, 8: 8, 7: 8, 20.4: 20}[overlap]
    assert got.shape == (6, 3, 62)
    ends, got = got[:, :, [0, even // 2 - 1, -(even // 2), -1]], got[:, :, even // 2 : -(even // 2)]
    np.testing.assert_array_equal(ends, got[:, :, [0, 0, -1, -1]])
    for j in range(3):
        expected = stitch_image(
            data[:6, j], data[6:12, j, ::-1], even, int(side == "right"), norm=False
        )
        np.testing.assert_allclose(got[:, j], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("overlap", "gap"), [(0, 0), (-4, 4), (-5, 4), (-5.6, 6)])
def test_without_overlap_the_edge_of_the_left_view_fills_the_gap(overlap, gap):
    data = values((10, 2, 9))
    front, behind = data[:5], data[5:, :, ::-1]
    for side, left, right in (("left", behind, front), ("right", front, behind)):
        between = np.repeat(left[:, :, -1:], gap, axis=2)
        expected = np.concatenate([left, between, right], axis=2)
        got = sino_360_to_180(data, overlap=overlap, side=side)
        np.testing.assert_array_equal(got, expected)


def test_a_point_near_the_axis_is_where_it_belongs():
    angles = np.linspace(0, 2 * np.pi, 200, endpoint=False)
    axis, width = 15.0, 120
    places = axis + 70 * np.cos(angles)
    data = np.exp(-(((np.arange(width) - places[:, None]) / 2) ** 2)).astype("float32")[:, None]
    overlap = 2 * axis + 1
    got = sino_360_to_180(data, overlap=overlap)[:, 0]
    middle = (got.shape[1] - 1) / 2
    assert got.shape[1] == 2 * width
    columns = got.argmax(axis=1)
    assert np.abs(columns - (middle + 70 * np.cos(angles[:100]))).max() <= 1.0


def test_integers_are_rounded():
    data = values((8, 2, 30), "uint16")
    got = sino_360_to_180(data, overlap=10)
    exact = sino_360_to_180(data.astype("float32"), overlap=10)
    assert got.dtype == "uint16"
    np.testing.assert_array_equal(got, np.rint(exact))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["uint16", "float32"])
@pytest.mark.parametrize("interpolation", ["linear", "nearest"])
@pytest.mark.parametrize("newshape", [[5, 70], [30, 33], [1, 2], [16, 17], [31, 35]])
def test_resampling_is_interpn_on_an_even_grid(axis, dtype, interpolation, newshape):
    data = values((16, 16, 18), dtype)
    got = data_resampler(data, newshape, axis, interpolation)
    slices = np.moveaxis(data, axis, 0).astype("float64")
    points = [np.arange(n) for n in slices.shape[1:]]
    grid = [np.linspace(0, p.size - 1, n) for p, n in zip(points, newshape, strict=True)]
    places = np.stack(np.meshgrid(*grid, indexing="ij"), axis=-1)
    expected = [interpn(points, one, places, method=interpolation) for one in slices]
    assert got.dtype == np.float32
    np.testing.assert_allclose(np.moveaxis(got, axis, 0), expected, rtol=0, atol=2e-7 * data.max())


@pytest.mark.parametrize("newshape", [[130, 700], [3, 500]])
def test_pieces_join_without_seams(newshape):
    data = np.fromfunction(lambda z, y, x: z + 2 * y + 3 * x, (3, 40, 600)).astype("float32")
    got = data_resampler(data, newshape, slice_dim=0)
    z, y, x = np.meshgrid(
        range(3), np.linspace(0, 39, newshape[0]), np.linspace(0, 599, newshape[1]), indexing="ij"
    )
    np.testing.assert_allclose(got, z + 2 * y + 3 * x, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("sino_360_to_180", {"overlap": 500}, "overlap must be less than 4 pixels, not 500"),
        ("sino_360_to_180", {"overlap": float("inf")}, "less than 4 pixels, not inf"),
        ("sino_360_to_180", {"overlap": float("nan")}, "less than 4 pixels, not nan"),
    ],
)
def test_a_wrong_parameter_is_told_by_the_plan(name, parameters, words):
    step = {"method": name, "parameters": parameters}
    with pytest.raises(EstimatorError, match=words):
        plan(ArraySpec((4, 3, 5), "uint16"), [step], device="cpu", memory="10MB")


def test_auto_is_the_axis_along_which_the_data_are_cut():
    data = values((4, 6, 9))
    for dim in (0, 1):
        got = data_resampler(data, [5, 7], axis="auto", slice_dim=dim)
        np.testing.assert_array_equal(got, data_resampler(data, [5, 7], axis=dim))
