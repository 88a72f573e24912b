"""Files as facilities write them: from the file to a right slice in one command, or a clear line.

The source of the layout is beside each; the data are made, with the axis of rotation on column 49.
"""

from __future__ import annotations

import re
from typing import Any

import h5py
import numpy as np
import pytest

from maxslices import describe
from maxslices.cli.main import main
from tests.io.made_scans import HALF_TURN, counts, exchange, flats_and_darks, nxtomo, put, write

FLATS, DARKS = flats_and_darks()
KEY = np.r_[[2] * 3, [1] * 3, [0] * 61]
FRAMES = np.concatenate([DARKS, FLATS, counts(HALF_TURN)])
ALL_ANGLES = np.r_[np.zeros(6), HALF_TURN]


def aps_tomoscan(path):
    """APS 2-BM, 13-BM: dxfile doc/demo/areadetector/13-BM/tomoLayout.xml; tomoscan tomoscan_2bm.py
    (add_theta). areaDetector stores each value in an array of one."""
    return exchange(
        path,
        **{
            "measurement/instrument/source/beamline": ["13-BM-D"],
            "measurement/instrument/monochromator/energy": ([25.0], "keV"),
            "measurement/instrument/sample/name": ["microCT sample stages"],
            "measurement/instrument/detector/binning_x": [1],
            "measurement/instrument/detector/pixel_size": ([3.45], "microns"),
            "measurement/instrument/detection_system/objective/resolution": ([0.69], "microns"),
            "measurement/sample/name": ["rock 7"],
            "process/acquisition/rotation/rotation_start": [0.0],
        },
    )


def aps_without_theta(path):
    """APS 13-BM without theta, darks as one value: dxchange exchange.py, read_aps_tomoscan_hdf5."""
    exchange(path, HALF_TURN, None)
    with h5py.File(path, "a") as file:
        del file["exchange/data_dark"]
        rotation = "process/acquisition/rotation"
        put(file, {f"{rotation}/rotation_start": [0.0], f"{rotation}/rotation_step": [3.0]})
        put(file, {f"{rotation}/num_angles": [61]})
        put(file, {"process/acquisition/dark_fields/dark_field_value": [100.0]})
        put(file, {"measurement/sample/name": ["rock 7"]})
        objective = "measurement/instrument/detection_system/objective"
        put(file, {f"{objective}/resolution": ([0.69], "microns")})
    return path


def esrf_nxtomo(path):
    """ESRF: nxtomo, paths/nxdetector.py and nxsample.py (version 1.5): sizes at the sample."""
    detector = "instrument/detector"
    return nxtomo(
        path,
        **{
            "title": "rock 7",
            "sample/name": "rock 7",
            "sample/x_pixel_size": (0.69e-6, "m"),
            "sample/y_pixel_size": (0.69e-6, "m"),
            "sample/x_translation": (np.zeros(67), "m"),
            "beam/incident_energy": (25.0, "keV"),
            f"{detector}/x_pixel_size": (3.45e-6, "m"),
            f"{detector}/y_pixel_size": (3.45e-6, "m"),
            f"{detector}/field_of_view": "Full",
            f"{detector}/transformations/ry": (0.0, "degree"),
            f"{detector}/x_rotation_axis_pixel_position": 49.0,
        },
    )


def esrf_bliss(path):
    """ESRF: the raw file of BLISS, an entry a kind of frames, as its reader in the ESRF's Tomo2Nx
    task takes it: technique/scan, technique/optic, measurement/<detector>."""
    return write(
        path,
        {
            "1.1/title": "tomo:fulltomo",
            "1.1/technique/scan/energy": (25.0, "keV"),
            "1.1/technique/scan/tomo_n": 61,
            "1.1/technique/scan/sample_detector_distance": (300.0, "mm"),
            "1.1/technique/optic/optics_pixel_size": (0.7, "um"),
            "1.1/technique/optic/sample_pixel_size": (0.69, "um"),
            "1.1/sample/name": "rock 7",
            "2.1/title": "dark images",
            "2.1/measurement/pco": DARKS,
            "3.1/title": "flat images",
            "3.1/measurement/pco": FLATS,
            "4.1/title": "projections 0 - 180",
            "4.1/measurement/pco": counts(HALF_TURN),
            "4.1/measurement/srot": HALF_TURN,
            "4.1/instrument/srot/value": HALF_TURN,
        },
    )


def diamond(path):
    """Diamond I12, I13: NXtomo in entry1/tomo_entry, as httomo and Savu read it
    (DiamondLightSource/Savu, nxtomo loader); the detector's pixels have no magnification."""
    entry = "entry1/tomo_entry"
    with h5py.File(path, "w") as file:
        put(
            file,
            {
                f"{entry}/data/data": FRAMES,
                f"{entry}/data/rotation_angle": (ALL_ANGLES, "degree"),
                f"{entry}/instrument/detector/image_key": KEY,
                f"{entry}/instrument/detector/x_pixel_size": (3.45, "um"),
                f"{entry}/sample/name": "rock 7",
                "entry1/instrument/source/energy": (3.0, "GeV"),
            },
        )
        file[f"{entry}/instrument/detector/data"] = file[f"{entry}/data/data"]
    return path


def sls_tomcat(path):
    """SLS TOMCAT: Data Exchange with flats before and after (exchange/data_white_pre, _post), and
    start and end of the rotation (dxfile doc/source/xraytomo.rst, as the SLS implements it)."""
    return write(
        path,
        {
            "exchange/data": counts(HALF_TURN),
            "exchange/data_white_pre": FLATS,
            "exchange/data_white_post": FLATS,
            "exchange/data_dark": DARKS,
            "process/acquisition/setup/rotation_start_angle": 0.0,
            "process/acquisition/setup/rotation_end_angle": 180.0,
            "process/acquisition/setup/angular_step": 3.0,
            "process/acquisition/setup/number_of_projections": 61,
            "measurement/instrument/detector/actual_pixel_size_x": (0.69, "um"),
            "measurement/instrument/detector/actual_pixel_size_y": (0.69, "um"),
            "measurement/sample/name": "rock 7",
        },
    )


def max_iv(path):
    """MAX IV DanMAX: frames in /entry/measurement/orca, motors beside them; darks and flats are
    scans of their own (readers of DanMAX's scan-NNNN.h5). The rotation's name is an example."""
    values = {"orca": counts(HALF_TURN), "tom_rz": HALF_TURN, "tom_y": np.ones(61)}
    stored = {f"entry/measurement/{name}": value for name, value in values.items()}
    return write(path, {**stored, "entry/sample/name": "rock 7"})


def nsls_fxi(path):
    """NSLS-II FXI 18-ID: export_fly_scan of the beamline; dxchange read_nsls2_fxi18_h5."""
    return write(
        path,
        {
            "note": "rock 7",
            "scan_id": 7,
            "X_eng": 8.5,
            "img_bkg": FLATS,
            "img_dark": DARKS,
            "img_bkg_avg": FLATS[:1].astype("f4"),
            "img_dark_avg": DARKS[:1].astype("f4"),
            "img_tomo": counts(HALF_TURN),
            "angle": HALF_TURN,
            "Magnification": 9.42,
            "Pixel Size": "690nm",
        },
    )


def elettra(path):
    """Elettra SYRMEP: ElettraSciComp/STP-Core exec_edf2tdf.py: sinograms, axes "y:theta:x"."""
    with h5py.File(path, "w") as file:
        for name, frames in (
            ("data", counts(HALF_TURN)),
            ("data_white", FLATS),
            ("data_dark", DARKS),
        ):
            file[f"exchange/{name}"] = frames.swapaxes(0, 1)
            file[f"exchange/{name}"].attrs["axes"] = "y:theta:x"
        put(file, {"measurement/sample/name": "rock 7"})
        put(file, {"measurement/instrument/monochromator/energy": (25.0, "KeV")})
        put(file, {"measurement/instrument/detector/pixel_size": (3.45, "micron")})
    return path


MEMBERS: dict[str, tuple[Any, float | None, bool]] = {
    "aps": (aps_tomoscan, 0.69, True),
    "aps without theta": (aps_without_theta, 0.69, True),
    "esrf nxtomo": (esrf_nxtomo, 0.69, True),
    "esrf bliss": (esrf_bliss, 0.69, True),
    "diamond": (diamond, None, True),
    "sls": (sls_tomcat, 0.69, True),
    "max iv": (max_iv, None, False),
    "nsls-ii": (nsls_fxi, 0.69, True),
    "elettra": (elettra, None, True),
}
"""Name -> writer, pixel size at the sample, and whether flats and darks are in the file."""


@pytest.mark.filterwarnings("always:.*no pixel size at the sample")
@pytest.mark.parametrize("name", MEMBERS)
def test_one_command_makes_a_right_slice(name, tmp_path, capsys):
    make, size_um, has_sides = MEMBERS[name]
    scan, out = make(tmp_path / "scan.h5"), tmp_path / "out"
    assert main(["try", str(scan), str(out), "--device", "cpu"]) == 0
    stderr = capsys.readouterr().err
    assert ("no flats and darks" in stderr) == (not has_sides)
    axis = re.search(r"cor = ([0-9.]+)", (out / "run.log").read_text())
    assert float(axis[1]) == pytest.approx(49, abs=0.5)
    with h5py.File(out / "result.h5") as file:
        stored = file["entry"].get("x_pixel_size")
        assert (None if stored is None else stored[()]) == (size_um and pytest.approx(size_um))
        title = file["entry"].get("sample/name", file["entry"].get("title"))
        assert title[()].decode() == "rock 7"
    assert ("no pixel size at the sample is known" in stderr) == (
        name in ("diamond", "elettra")  # which store the size of a detector's pixels alone
    )


def test_what_a_facility_stores_is_described(tmp_path):
    text = str(describe(esrf_bliss(tmp_path / "scan.h5")))
    assert "25 keV  (/1.1/technique/scan/energy)" in text
    assert "0.69 x 0.69 um" in text
    assert "300 mm" in text
