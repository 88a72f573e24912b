"""Slices as PNGs with a histogram."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from maxslices.report_page.drawings import HISTOGRAM_BINS, draw_slice


def pixels(picture):
    data = base64.b64decode(picture.uri.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(data)))


def test_dark_is_black_and_bright_is_white():
    ramp = np.repeat(np.linspace(-3, 5, 100, dtype=np.float32)[None], 20, axis=0)
    picture = draw_slice("ramp", ramp, 512)
    drawn = pixels(picture)
    assert drawn.shape == (20, 100)
    assert (drawn[:, 0] == 0).all()
    assert (drawn[:, -1] == 252).all()
    assert (np.diff(drawn[0].astype(int)) >= 0).all()
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
