"""Images of slices, and means of projections, and the distortion of a lens."""

from __future__ import annotations

import numpy as np
import pytest
import tifffile
from PIL import Image

import maxslices
from maxslices_methods.alignment import distortion_correction_proj_discorpy as undistorted
from maxslices_methods.averaging import average_projection_frames
from maxslices_methods.images import save_to_images


@pytest.fixture
def data():
    return np.random.default_rng(0).random((5, 4, 6), np.float32)


@pytest.mark.parametrize("dtype, bits", [("float32", 32), ("uint16", 16), ("uint8", 8)])
def test_tiffs_have_the_values(data, tmp_path, dtype, bits):
    stored = (data * 200).astype(dtype)
    folder = save_to_images(stored, slice_dim=1, first_slice=7, results_folder=tmp_path)
    assert folder == str(tmp_path)
    files = sorted((tmp_path / f"images{bits}bit_tif").iterdir())
    assert [file.name for file in files] == [f"{i:05d}.tif" for i in range(7, 11)]
    for index, file in enumerate(files):
        np.testing.assert_array_equal(tifffile.imread(file), stored[:, index])


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_other_kinds_are_of_8_bits(data, tmp_path, kind):
    save_to_images(data, file_format=kind, bit_depth=8, results_folder=tmp_path)
    image = np.asarray(Image.open(tmp_path / f"images8bit_{kind}" / f"00000.{kind}"))
    assert image.dtype == np.uint8
    assert image.shape == (4, 6)
    if kind == "png":
        low, high = data.min(), data.max()
        assert np.abs(image - (data[0] - low) / (high - low) * 255).max() <= 1
    with pytest.raises(ValueError, match="put rescale_to_int with bits: 8"):
        save_to_images(data, file_format=kind, results_folder=tmp_path)


def test_values_that_are_not_finite_are_black(data, tmp_path):
    data[0, 1, 2] = np.nan
    save_to_images(data, results_folder=tmp_path)
    assert tifffile.imread(tmp_path / "images32bit_tif" / "00000.tif")[1, 2] == 0
    assert np.isnan(data[0, 1, 2])


def test_images_are_in_the_folder_of_a_run(tmp_path):
    scan = np.random.default_rng(0).random((6, 5, 8), np.float32)
    steps = [{"method": "minus_log"}, {"method": "save_to_images"}]
    maxslices.run(scan, steps, tmp_path / "out", device="cpu", block=2)
    files = sorted(tmp_path.rglob("*.tif"))
    assert [file.name for file in files] == [f"{i:05d}.tif" for i in range(6)]
    np.testing.assert_allclose(tifffile.imread(files[3]), -np.log(scan[3]), rtol=1e-5)


def test_means_and_their_angles(data):
    means = average_projection_frames(data, 2)
    np.testing.assert_allclose(means[0], data[:2].mean(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(means[2], data[4])
    angles = np.array([0, 1, 2, 3, 4], np.float32)
    averaged = average_projection_frames.meta.output_angles(angles, projection_averaging_factor=2)
    np.testing.assert_array_equal(averaged, [0.5, 2.5, 4])
    over_the_turn = np.deg2rad([359, 1], dtype=np.float32)
    averaged = average_projection_frames.meta.output_angles(over_the_turn)
    np.testing.assert_allclose(averaged, np.deg2rad([360]), rtol=1e-6)


def test_means_of_integers_are_integers():
    data = np.array([[[1]], [[2]]], np.uint16)
    assert average_projection_frames(data)[0, 0, 0] == 1


def test_a_lens_without_distortion_changes_nothing(data):
    distortion = {"xcenter": 2.5, "ycenter": 1.5, "list_fact": [1.0]}
    np.testing.assert_allclose(undistorted(data, **distortion), data, atol=1e-6)


def test_a_magnified_frame_is_made_smaller():
    y, x = np.mgrid[:41, :51]
    frame = (100 + x + 2 * y).astype(np.float32)[None]
    got = undistorted(frame, xcenter=25.0, ycenter=20.0, list_fact=[0.5])
    expected = 100 + (25 + 0.5 * (x - 25)) + 2 * (20 + 0.5 * (y - 20))
    np.testing.assert_allclose(got[0], expected, atol=1e-3)


def test_coefficients_are_read_from_discorpys_file(data, tmp_path):
    file = tmp_path / "coefficients.txt"
    file.write_text("xcenter = 2.5\nycenter = 1.5\nfactor0 = 0.9\nfactor1 = 0.01\n")
    expected = undistorted(data, xcenter=2.5, ycenter=1.5, list_fact=[0.9, 0.01])
    np.testing.assert_array_equal(undistorted(data, metadata_path=str(file)), expected)
    with pytest.raises(ValueError, match="not a file of Discorpy"):
        undistorted(data, metadata_path=str(tmp_path / "none.txt"))
    file.write_text("xcenter = 2.5\nycenter = 1.5\n")
    with pytest.raises(ValueError, match="list_fact"):
        undistorted(data, metadata_path=str(file))


def test_a_preview_moves_the_centre(data):
    distortion = {"xcenter": 12.5, "ycenter": 11.5, "list_fact": [0.9]}
    expected = undistorted(data, xcenter=2.5, ycenter=1.5, list_fact=[0.9])
    np.testing.assert_array_equal(
        undistorted(data, detector_start=(10, 10), **distortion), expected
    )
