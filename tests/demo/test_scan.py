"""Contents and physics of the demo's scan file."""

import subprocess
import sys

import h5py
import numpy as np
import pytest

from maxslices.demo.phantom import flower_head
from maxslices.demo.scan_file import N_DARKS, N_FLATS, make_scan


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    path = tmp_path_factory.mktemp("scan") / "scan.nxs"
    return make_scan(path, flower_head(rows=8, columns=120), n_angles=61, shift=0.7)


@pytest.fixture(scope="module")
def frames(scan):
    with h5py.File(scan.path) as file:
        entry = file["entry1/tomo_entry"]
        key = entry["instrument/detector/image_key"][()]
        data = entry["data/data"][()]
        degrees = entry["data/rotation_angle"][()]
    return {"key": key, "data": data, "degrees": degrees}


def test_the_file_is_an_nxtomo_scan(scan, frames):
    assert frames["data"].dtype == np.uint16
    assert frames["data"].shape == (N_DARKS + N_FLATS + 61, 8, 120)
    assert [np.sum(frames["key"] == k) for k in (0, 1, 2)] == [61, N_FLATS, N_DARKS]
    np.testing.assert_allclose(frames["degrees"][frames["key"] == 0], np.linspace(0, 180, 61))
    assert scan.shape == (61, 8, 120)
    assert scan.n_bytes == 61 * 8 * 120 * 2


def test_corrected_projections_are_the_line_integrals_up_to_noise_and_rings(scan, frames):
    key, data = frames["key"], frames["data"].astype(np.float64)
    dark, flat = data[key == 2].mean(0), data[key == 1].mean(0)
    measured = -np.log((data[key == 0] - dark) / (flat - dark))
    truth = scan.phantom.line_integrals(np.linspace(0, np.pi, 61), scan.axis)
    assert abs(np.median(measured - truth)) < 2e-3
    assert np.median(np.abs(measured - truth)) < 0.015


def test_an_axis_that_is_too_far_out_is_told_before_a_file_is_there(tmp_path):
    path = tmp_path / "scan.nxs"
    path.write_bytes(b"an earlier one")
    message = "leaves the detector of 64 columns around the axis at 40: move the axis to the middle"
    with pytest.raises(ValueError, match=message):
        make_scan(path, flower_head(rows=4, columns=64), n_angles=11, shift=8.5)
    assert path.read_bytes() == b"an earlier one"


def test_a_file_for_which_there_is_no_room_is_an_error_and_no_crash(tmp_path):
    code = """
import resource, sys
from pathlib import Path
from maxslices.demo.phantom import flower_head
from maxslices.demo.scan_file import make_scan

resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    make_scan(Path(sys.argv[1]), flower_head(rows=4, columns=128), n_angles=11, shift=0.5)
except OSError as error:
    print(error.strerror)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "scan.nxs")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    assert not list(tmp_path.iterdir())
