"""A real sinogram (metal dendrites, beamline I12 of Diamond Light Source), where it is at hand."""

from __future__ import annotations

from pathlib import Path

import algotom.prep.calculation as algotom
import numpy as np
import pytest
from scipy.ndimage import gaussian_filter, shift
from skimage.transform import iradon

from maxslices_methods.recon import fbp
from maxslices_methods.rotation import find_center_vo

PATH = Path(__file__).parents[3] / "shared" / "data" / "dendrite_sinogram.npz"
pytestmark = pytest.mark.skipif(not PATH.exists(), reason=f"{PATH} is not there")


@pytest.fixture(scope="module")
def scan():
    with np.load(PATH) as archive:
        return archive["sinogram"][:, None], archive["angles_rad"]


@pytest.fixture(scope="module")
def center(scan):
    return find_center_vo(scan[0])


def from_middle(image):
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]] - (image.shape[0] - 1) / 2
    return np.hypot(rows, columns)


def test_axis_is_near_the_middle_as_algotom_says(scan, center):
    sinogram = scan[0][:, 0]
    reference = algotom.find_center_vo(sinogram, start=618, stop=638, radius=2, ncore=1)
    assert abs(center - 629.5) < 5
    assert abs(center - reference) < 0.5


def test_slice_has_most_contrast_at_the_axis(scan, center):
    def contrast(at):
        image = gaussian_filter(fbp(*scan, at, filter_type="hann")[:, 0], 1.5)
        radius = from_middle(image)
        return np.std(image[(radius > 300) & (radius < 560)])  # off the rings, on the edges

    assert contrast(center) > max(contrast(center - 3), contrast(center + 3))


def test_middle_of_the_slice_is_scikit_images(scan, center):
    sinogram, angles = scan
    size = 301
    result = fbp(sinogram, angles, center, filter_type="hann", recon_size=size)[:, 0]
    centred = shift(sinogram[:, 0], (0, sinogram.shape[2] // 2 - center), order=3, mode="nearest")
    reference = iradon(
        centred.T, np.rad2deg(angles), filter_name="hann", circle=False, output_size=size
    )
    compared = from_middle(result) < 0.94 * size / 2
    # Smoothed, because linear interpolation in scikit-image reduces the noise. Compared except for
    # a constant, because the object is wider than the detector and both pad it differently.
    a, b = (gaussian_filter(image, 2)[compared] for image in (result, reference))
    assert np.corrcoef(a, b)[0, 1] > 0.99
    assert np.polyfit(b, a, 1)[0] == pytest.approx(1, abs=0.02)


def test_melt_is_brighter_than_crucible_and_dendrites_darker_than_melt(scan, center):
    image = gaussian_filter(fbp(*scan, center, filter_type="hann")[:, 0], 3)
    radius = from_middle(image)
    melt, crucible = image[radius < 350], image[(radius > 450) & (radius < 590)]
    assert np.median(melt) > 2 * np.median(crucible)
    dendrite = image[320:350, 580:660]  # the branches above the middle
    melt_around = image[520:550, 760:840]
    assert np.median(dendrite) < 0.9 * np.median(melt_around)
