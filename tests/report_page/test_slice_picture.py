"""Slices as PNGs with a histogram."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from maxslices.report_page.drawings import HISTOGRAM_BINS, draw_slice, grey_png


def pixels(picture):
    data = base64.b64decode(picture.uri.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(data)))


@pytest.mark.parametrize("shape", [(1, 1), (7, 13), (64, 3)])
def test_a_png_holds_the_image(shape):
    image = np.random.default_rng(3).integers(0, 256, shape, np.uint8)
    found = Image.open(io.BytesIO(grey_png(image)))
    assert found.mode == "L"
    np.testing.assert_array_equal(np.asarray(found), image)


def test_dark_is_black_and_bright_is_white():
    ramp = np.repeat(np.linspace(-3, 5, 100, dtype=np.float32)[None], 20, axis=0)
    picture = draw_slice("ramp", ramp, 512)
    found = pixels(picture)
    assert found.shape == (20, 100)
    assert (found[:, 0] == 0).all()
    assert (found[:, -1] == 252).all()
    assert (np.diff(found[0].astype(int)) >= 0).all()
    assert (picture.least, picture.most) == (-3, 5)


@pytest.mark.parametrize(
    ("shape", "side", "size"),
    [
        ((100, 100), 100, (100, 100)),
        ((101, 100), 100, (50, 50)),
        ((1801, 2160), 512, (360, 432)),
        ((3, 2000), 512, (1, 500)),
        ((2000, 1), 512, (500, 1)),
    ],
)
def test_large_slices_are_averaged(shape, side, size):
    picture = draw_slice("large", np.ones(shape, np.uint16), side)
    assert pixels(picture).shape == (picture.height, picture.width) == size


def test_averages_keep_the_mean():
    image = np.zeros((8, 8), np.float32)
    image[::2, ::2] = 4
    image[4:] += 2
    found = pixels(draw_slice("mean", image, 4))
    assert len(np.unique(found[:2])) == 1
    assert found[2, 0] > found[0, 0]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64", "complex64"])
def test_every_dtype_is_drawn(dtype):
    picture = draw_slice("any", np.arange(60).reshape(6, 10).astype(dtype), 512)
    assert picture.n_not_finite == 0
    assert pixels(picture).max() == 252


def test_values_that_are_not_finite_are_counted_and_left_out():
    image = np.ones((10, 10), np.float32)
    image[0] = np.nan
    image[1, :5] = np.inf
    image[2, 0] = 3
    picture = draw_slice("broken", image, 512)
    assert picture.n_not_finite == 15
    assert (picture.least, picture.most) == (1, 3)
    assert (pixels(picture)[0] == 0).all()


@pytest.mark.parametrize(
    "image",
    [
        np.full((4, 5), np.nan),
        np.zeros((4, 5)),
        np.full((4, 5), 1e300),
        np.array([[-1.7e308, 1.7e308]]),
        np.array([[1.0, np.nextafter(1.0, 2.0)]]),
        np.array([[np.finfo(np.float64).tiny, 0.0]]),
        np.array([[5e-324, 0.0]]),
    ],
    ids=["nan", "zero", "huge", "widest", "closest", "tiny", "denormal"],
)
def test_extreme_slices_are_drawn(image):
    picture = draw_slice("extreme", image, 512)
    assert pixels(picture).shape == image.shape
    assert picture.histogram.count("h1") == HISTOGRAM_BINS


def test_the_histogram_is_logarithmic():
    image = np.zeros((1000, 1), np.float32)
    image[:9] = 1
    tops = draw_slice("two", image, 2000).histogram.split("V")[1:-1]
    assert tops[0].startswith("0.0h")
    wanted = 40 * (1 - np.log1p(9) / np.log1p(991))
    assert float(tops[-1].split("h")[0]) == pytest.approx(wanted, abs=0.06)
