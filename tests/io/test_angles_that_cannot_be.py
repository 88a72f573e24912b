"""Angles that are numbers, and yet not those of a scan in degrees."""

from __future__ import annotations

import warnings

import h5py
import numpy as np
import pytest

from maxslices.io import LoaderOptions, Preview, open_source

from . import scans

FRAMES = scans.frames("uint16")


def with_angles(path, angles, units=None):
    """A scan with an angle for each frame."""
    scans.write_dls(path, FRAMES)
    with h5py.File(path, "r+") as file:
        stored = file["entry1/tomo_entry/data/rotation_angle"]
        stored[...] = angles
        if units is not None:
            stored.attrs["units"] = units
    return path


@pytest.mark.parametrize(
    ("angles", "units", "message"),
    [
        (np.linspace(0, 2 * np.pi, 15), None, r"its 9 projections lie within 5\.39 degrees: if"),
        (np.linspace(0, 2 * np.pi, 15), "deg", r"its 9 projections lie within 5\.39 degrees: if"),
        (np.linspace(0, 180, 15), "rad", r"angles in radians cover 24\.6 turns: if they are deg"),
        (np.full(15, 7.0), None, "its 9 projections all have the same angle"),
    ],
)
def test_angles_that_are_likely_to_be_wrong_are_warned_of(tmp_path, angles, units, message):
    with pytest.warns(UserWarning, match=message):
        open_source(with_angles(tmp_path / "a.nxs", angles, units)).close()


def test_angles_of_a_preview_of_few_degrees_are_not_warned_of(tmp_path):
    path = with_angles(tmp_path / "a.nxs", np.linspace(0, 40, scans.KEYS.size))
    part = LoaderOptions(preview=Preview(angles=(2, 5)))
    with warnings.catch_warnings(), open_source(path, part) as source:
        warnings.simplefilter("error")
        assert np.rad2deg(np.ptp(source.angles)) < 6


def test_angles_of_flats_and_darks_may_be_nan(tmp_path):
    angles = np.where(scans.KEYS == 0, scans.DEGREES, np.nan)
    with open_source(with_angles(tmp_path / "a.nxs", angles)) as source:
        np.testing.assert_allclose(source.angles, np.deg2rad(angles[scans.KEYS == 0]), rtol=1e-6)
