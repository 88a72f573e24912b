"""The phantom's slices and projections, against each other and against scikit-image."""

import numpy as np
import pytest
from skimage.transform import radon

from maxslices.demo.phantom import flower_head


@pytest.fixture(scope="module")
def phantom():
    return flower_head(rows=5, columns=151)


def test_projections_at_right_angles_are_the_sums_of_the_slice(phantom):
    middle = (phantom.columns - 1) / 2
    integrals = phantom.line_integrals(np.array([0, np.pi / 2]), middle)
    for row in (0, phantom.rows - 1):
        image = phantom.slice(row, oversampling=16) * phantom.pixel_mm
        np.testing.assert_allclose(integrals[0, row], image.sum(axis=0), atol=1e-3)
        np.testing.assert_allclose(integrals[1, row], image[::-1].sum(axis=1), atol=1e-3)


def test_projections_are_those_of_scikit_image(phantom):
    degrees = np.linspace(0, 180, 19)
    middle = (phantom.columns - 1) / 2
    integrals = phantom.line_integrals(np.deg2rad(degrees), middle)[:, 2]
    # a pixel of scikit-image's axis is at columns // 2, which is the middle of an odd number
    expected = radon(phantom.slice(2), theta=degrees, circle=True).T * phantom.pixel_mm
    assert np.sqrt(np.mean((integrals - expected) ** 2)) < 0.01 * expected.max()
