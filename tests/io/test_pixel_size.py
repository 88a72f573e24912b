"""Pixel sizes of files as beamlines write them, and as users give them."""

import h5py
import numpy as np
import pytest

from maxslices.errors import UsageError
from maxslices.io import open_source
from maxslices.io.scans.facts import parse_pixel_size

NXTOMO, ESRF = "entry1/tomo_entry", "entry0000"


def scan(tmp_path, data, values):
    path = tmp_path / "scan.nxs"
    with h5py.File(path, "w") as file:
        file[data] = np.ones((3, 4, 5), np.uint16)
        for where, (value, unit) in values.items():
            file[where] = value
            if unit is not None:
                file[where].attrs["units"] = unit
    return path


@pytest.mark.parametrize(
    ("data", "values", "rows_and_columns"),
    [
        (
            f"{NXTOMO}/data/data",
            {
                f"{NXTOMO}/sample/x_pixel_size": (3.25e-6, "m"),
                f"{NXTOMO}/sample/y_pixel_size": ([2e-3], "mm"),
            },
            (2.0, 3.25),
        ),
        (
            f"{ESRF}/instrument/detector/data",
            {
                f"{ESRF}/instrument/detector/x_pixel_size": (6.5, "um"),
                f"{ESRF}/sample/x_pixel_size": (0.65, b"um"),
            },
            (0.65, 0.65),  # of the sample
        ),
        (
            "exchange/data",
            {"measurement/instrument/detection_system/objective/pixel_size": (1.1, "micron")},
            (1.1, 1.1),
        ),
        (f"{NXTOMO}/data/data", {f"{NXTOMO}/sample/x_pixel_size": (3.0, None)}, None),
        (f"{NXTOMO}/data/data", {f"{NXTOMO}/sample/x_pixel_size": (3.0, "px")}, None),
        (f"{NXTOMO}/data/data", {f"{NXTOMO}/sample/x_pixel_size": (0.0, "um")}, None),
        (f"{NXTOMO}/data/data", {f"{NXTOMO}/sample/x_pixel_size": (np.nan, "um")}, None),
        (f"{NXTOMO}/data/data", {f"{NXTOMO}/sample/x_pixel_size": ("wide", "um")}, None),
        (f"{NXTOMO}/data/data", {f"{NXTOMO}/sample/x_pixel_size": ([1.0, 2.0], "um")}, None),
    ],
)
def test_what_files_store(tmp_path, data, values, rows_and_columns):
    with open_source(scan(tmp_path, data, values)) as source:
        found = source.pixel_size
    assert (found and (found.row_um, found.column_um)) == rows_and_columns


@pytest.mark.parametrize(
    "given",
    [
        *("3.25um", " 3.25 µm", "0.00325 mm", "3250nm", 3.25, "3.25e-6m"),
        *("3.25 microns", "3.25 Micrometers", "0.00325 millimetres"),
    ],
)
def test_what_users_give(given):
    assert parse_pixel_size(given).row_um == pytest.approx(3.25)


@pytest.mark.parametrize("given", ["", "um", "3.25", "-1um", "0um", "1e999m", "3 px", 0, -1.0])
def test_what_is_no_length(given):
    with pytest.raises(UsageError, match="is not a length"):
        parse_pixel_size(given)
