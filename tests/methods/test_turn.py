"""Methods for a half or a full turn warn of scans with another extent of angles."""

import numpy as np
import pytest

import maxslices
from maxslices.io import ArrayScan

WIDTH, AXIS = 48, 24.3


def scan(degrees):
    """Transmission of a disk next to the axis."""
    angles = np.deg2rad(np.arange(0, degrees + 1, 3))
    away = np.arange(WIDTH) - AXIS - 8 * np.cos(angles)[:, None]
    chords = 0.05 * np.sqrt(np.maximum(0, 49 - away**2))
    frames = np.repeat(np.exp(-chords)[:, None].astype(np.float32), 4, axis=1)
    return ArrayScan(frames, angles=angles)


@pytest.mark.filterwarnings("ignore:.*projections lie within")  # of the scan, at its opening
@pytest.mark.parametrize(
    ("name", "enough", "too_little"),
    [
        ("find_center_vo", 180, 150),
        ("find_center_pc", 180, 150),
        ("find_center_360", 360, 180),
        ("sino_360_to_180", 360, 180),
    ],
)
def test_a_turn_that_is_too_short_is_warned_of(caplog, name, enough, too_little):
    for covered in (enough, too_little):
        caplog.clear()
        maxslices.run(scan(covered), ["minus_log", name], device="cpu", block=2)
        texts = [record.getMessage() for record in caplog.records]
        warned = [text for text in texts if text.startswith(name) and "likely wrong" in text]
        assert bool(warned) == (covered == too_little)
