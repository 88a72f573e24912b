"""Methods for half a turn, or a whole one, say that a scan covers another part."""

import numpy as np
import pytest

import maxslices
from maxslices.io.scans.array_source import ArrayScan

WIDTH, AXIS = 48, 24.3


def scan(degrees):
    """Transmission of a disk beside the axis."""
    angles = np.deg2rad(np.arange(0, degrees + 1, 3))
    away = np.arange(WIDTH) - AXIS - 8 * np.cos(angles)[:, None]
    chords = 0.05 * np.sqrt(np.maximum(0, 49 - away**2))
    frames = np.repeat(np.exp(-chords)[:, None].astype(np.float32), 4, axis=1)
    return ArrayScan(frames, angles=angles)


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("find_center_vo", 180),
        ("find_center_pc", 180),
        ("find_center_360", 360),
        ("sino_360_to_180", 360),
    ],
)
def test_another_part_of_a_turn_is_said(caplog, name, degrees):
    for covered in (degrees, 540 - degrees):
        caplog.clear()
        maxslices.run(scan(covered), ["minus_log", name], device="cpu", block=2)
        said = f"the last is {covered} degrees from the first: its result is likely wrong"
        found = [record for record in caplog.records if record.name.endswith("_turn")]
        assert bool(found) == (covered != degrees)
        assert all(said in record.getMessage() for record in found)
