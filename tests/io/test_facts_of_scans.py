"""What files say about a scan, in situations of facilities' own definitions and public reports.

Each test names its source. The data are made; the values are those that the source asks for.
"""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import tifffile

import maxslices
from maxslices import describe
from maxslices.cli.main import main
from maxslices.errors import MethodError, UsageError
from maxslices.io import open_source
from maxslices.io.scans.facts import parse_pixel_size
from tests.io.made_scans import (
    HALF_TURN,
    counts,
    exchange,
    flats_and_darks,
    noted,
    nxtomo,
    put,
)

ROTATION = "process/acquisition/rotation"
SETUP = "process/acquisition/setup"
FULL_TURN = np.linspace(-90, 270, 121)
STEPS = [
    {"method": "dark_flat_field_correction"},
    {"method": "minus_log"},
    {"method": "fbp", "parameters": {"center": 49.0}},
]


def result_of(scan, tmp_path, **options):
    """Result file of a reconstruction, and what was noted."""
    with noted() as text:
        maxslices.run(scan, STEPS, tmp_path / "out", device="cpu", **options)
    return tmp_path / "out", text()


# Angles by their start, step and number


STEPS_OF_ANGLES = {
    # Data Exchange as SLS and APS implement it: data-exchange/dxfile doc/source/xraytomo.rst,
    # rotation_start_angle 0, rotation_end_angle 180, angular_step 0.125, 1441 projections.
    "start and end, included": (
        HALF_TURN + 10,
        None,
        {f"{SETUP}/rotation_start_angle": 10.0, f"{SETUP}/rotation_end_angle": 190.0},
    ),
    # ALS 8.3.2: its Data Exchange files have /process/acquisition/rotation/range and num_angles,
    # and no start; tomopy.angles(num_angles, 0, range) are the angles.
    "a range without a start": (
        np.linspace(0, 360, 121),
        None,
        {f"{ROTATION}/range": [360.0], f"{ROTATION}/num_angles": [121]},
    ),
    # mantidproject/mantidimaging pull request 1584: a writer that has no angles stores zeros.
    "all angles are zero": (
        FULL_TURN,
        np.zeros(121),
        {f"{ROTATION}/rotation_start": -90.0, f"{ROTATION}/rotation_step": 3.0},
    ),
}
"""What is stored -> angles, the column of angles, and other values."""


@pytest.mark.parametrize("stored", STEPS_OF_ANGLES)
def test_angles_are_computed_from_start_step_end_and_number(tmp_path, stored):
    degrees, theta, values = STEPS_OF_ANGLES[stored]
    angles = describe(exchange(tmp_path / "x.h5", degrees, theta, **values)).angles
    assert angles.n_angles == len(degrees)
    assert (angles.first, angles.last) == pytest.approx((degrees[0], degrees[-1]))


def test_frames_that_are_fewer_than_the_angles_are_warned_of(tmp_path):
    """dxchange, read_aps_tomoscan_hdf5: "num_angles(%d) is not the same as tomo.shape[0](%d)";
    frames are lost where the detector is too slow (tomoscan_2bm.py, add_theta)."""
    values = {"rotation_start": 0.0, "rotation_step": 3.0, "num_angles": 64}
    scan = exchange(
        tmp_path / "x.h5", HALF_TURN, None, **{f"{ROTATION}/{n}": v for n, v in values.items()}
    )
    with noted() as text:
        angles = describe(scan).angles
    assert (angles.first, angles.last) == (0, pytest.approx(180))
    assert "64" in text()
    assert "61" in text()
    assert f"/{ROTATION}" in text()


# Set and measured angles, and other candidates


def odd(path, **values):
    """Write a scan of no known layout, whose frames are projections."""
    flats, darks = flats_and_darks()
    with h5py.File(path, "w") as file:
        put(file, {"scan/camera/frames": counts(HALF_TURN), **values})
        put(file, {"scan/camera/flats": flats, "scan/camera/darks": darks})
    return path


MEASURED = HALF_TURN + np.random.default_rng(0).normal(0, 1e-3, 61)


POSITIONER, DATA = "scan/instrument/rot", "scan/data"
COLUMNS = {
    # NXpositioner (manual.nexusformat.org/classes/base_classes/NXpositioner.html): value is "best
    # known value of positioner", target_value "targeted (commanded) value"; GDA writes value_set.
    **{
        name: {f"{POSITIONER}/value": MEASURED, f"{POSITIONER}/{name}": HALF_TURN}
        for name in ("target_value", "value_set")
    },
    # EPICS motor record: RBV is the readback, VAL the requested position
    # (epics-modules/motor, motorRecord documentation); GDA and Bluesky name the latter setpoint.
    **{
        name: {f"{DATA}/{measured}": MEASURED, f"{DATA}/{name}": HALF_TURN}
        for measured, name in (
            ("theta", "theta_set"),
            ("rot_rbv", "rot_val"),
        )
    },
    # GDA and EPICS: a demand in the user's coordinates, and an encoder's own zero.
    "another zero": {f"{DATA}/theta": MEASURED + 30, f"{DATA}/theta_demand": HALF_TURN},
    # areaDetector and PandA boxes record times of triggers next to positions.
    "times and speeds": {
        f"{DATA}/theta": (MEASURED, "deg"),
        f"{DATA}/theta_timestamp": np.arange(61) * 10.0,
        f"{DATA}/rot_rate": (np.arange(61) * 1e3, "deg/s"),
        f"{DATA}/rot": (np.arange(61) * 1e3, "counts"),
    },
    # BLISS stores a motor under measurement and under instrument; Diamond's DIAD in several NXdata
    # (DiamondLightSource/httomo issue 157).
    "equal copies": {f"{DATA}/theta": MEASURED, "scan/sum/theta": MEASURED},
    # BLISS fscan: rot_center and rot_delta next to rot (FABLE-3DXRD/ImageD11, sinograms).
    "a continuous scan": {
        "scan/measurement/rot": MEASURED,
        "scan/measurement/rot_center": MEASURED + 1.5,
        "scan/measurement/rot_delta": np.full(61, 3.0),
    },
}
"""Columns that are stored next to each other; the first has the measured angles."""


@pytest.mark.parametrize("name", COLUMNS)
def test_the_measured_angles_are_read(tmp_path, name):
    angles = describe(odd(tmp_path / "x.h5", **COLUMNS[name])).angles
    off = 30 if name == "another zero" else 0
    assert angles.first == pytest.approx(MEASURED[0] + off, abs=1e-4)
    assert angles.last - angles.first == pytest.approx(180, abs=0.01)


@pytest.mark.parametrize(
    ("base", "texts"),
    [
        (np.linspace(0, 0.1, 61), ["/scan/rot_base/value", "/scan/rot_top/value"]),
        (
            HALF_TURN[::-1],
            [
                "/scan/rot_base/value (180 to 0 degrees)",
                "/scan/rot_top/value (0 to 180 degrees)",
                "are assumed",
            ],
        ),
    ],
    ids=["one of a whole scan", "two of a whole scan"],
)
def test_two_stages_that_differ_are_listed(tmp_path, capsys, monkeypatch, base, texts):
    """Two rotation stages that are recorded for each frame, a base and the sample's own; which is
    the scan's cannot be told from shapes (the layout in DiamondLightSource/httomo issue 157)."""
    monkeypatch.chdir(tmp_path)
    values = {"scan/rot_base/value": base, "scan/rot_top/value": HALF_TURN}
    main(["try", str(odd(tmp_path / "x.h5", **values)), "--device", "cpu"])
    stderr = capsys.readouterr().err
    assert "no angles are stored" not in stderr
    assert all(text in stderr for text in texts)


# Pixel size and magnification

DETECTOR = "measurement/instrument/detector"
OBJECTIVE = "measurement/instrument/detection_system/objective"
NX_DETECTOR = "instrument/detector"
X_SIZE = "sample/x_pixel_size"
SIZES = {
    # dxfile xraytomo.rst: actual_pixel_size_x, "Actual pixel size on the sample plane"; read first
    # by tomography/tomopy-cli file_io.read_pixel_size.
    "at the sample": (
        exchange,
        {
            f"{DETECTOR}/pixel_size_x": (3.45, "microns"),
            f"{DETECTOR}/actual_pixel_size_x": (0.69, "microns"),
        },
        (0.69, 0.69),
    ),
    # dxfile xraytomo.rst: binning_x, binning_y; tomopy-cli: pixel_size_x / magnification.
    "binned": (
        exchange,
        {
            f"{DETECTOR}/pixel_size_x": (3.45, "um"),
            f"{DETECTOR}/binning_x": 2,
            f"{DETECTOR}/binning_y": 2,
            f"{OBJECTIVE}/magnification": 5.0,
        },
        (1.38, 1.38),
    ),
    # APS 7-BM and 2-BM: the objective is 5x; EPICS has 0 for values that are not set.
    "text, and 0 that is not set": (
        exchange,
        {
            f"{DETECTOR}/pixel_size_x": (3.45, "um/pixel"),
            f"{OBJECTIVE}/magnification": "5x",
            f"{OBJECTIVE}/resolution": (0.0, "um"),
        },
        (0.69, 0.69),
    ),
    # nxtomo, paths/nxdetector.py: x_pixel_size, x_magnified_pixel_size, magnification.
    "magnified": (
        nxtomo,
        {
            f"{NX_DETECTOR}/x_pixel_size": (3.45e-6, "m"),
            f"{NX_DETECTOR}/x_magnified_pixel_size": (0.69e-6, "m"),
        },
        (0.69, 0.69),
    ),
    "rows and columns": (
        nxtomo,
        {X_SIZE: (3.25e-6, "m"), "sample/y_pixel_size": ([2e-3], "mm")},
        (2.0, 3.25),
    ),
    # NXdetector: x_pixel_size is "size of each detector pixel"; neutronimaging/imagingsuite issue
    # 130: slices had the detector's pixel size.
    "the detector's alone": (nxtomo, {f"{NX_DETECTOR}/x_pixel_size": (3.45e-6, "m")}, None),
    "without a unit": (nxtomo, {X_SIZE: 3.0}, None),
    "not set": (nxtomo, {X_SIZE: (0.0, "um")}, None),
    "not a number": (nxtomo, {X_SIZE: (np.nan, "um")}, None),
    "several": (nxtomo, {X_SIZE: ([1.0, 2.0], "um")}, None),
}
"""Name -> writer, values, and micrometres of rows and columns at the sample."""


@pytest.mark.parametrize("name", SIZES)
def test_the_pixel_size_is_that_at_the_sample(tmp_path, name):
    write, values, um = SIZES[name]
    with open_source(write(tmp_path / "x.h5", **values)) as source:
        size = source.pixel_size
    assert (size and (size.row_um, size.column_um)) == (um and pytest.approx(um))


@pytest.mark.parametrize(
    "text",
    [
        *("3.25um", " 3.25 µm", "0.00325 mm", "3250nm", 3.25, "3.25e-6m"),
        *("3.25 microns", "3.25 Micrometers", "0.00325 millimetres"),
    ],
)
def test_pixel_sizes_that_users_give(text):
    assert parse_pixel_size(text).row_um == pytest.approx(3.25)


@pytest.mark.parametrize("text", ["", "um", "3.25", "-1um", "0um", "1e999m", "3 px", 0, -1.0])
def test_invalid_pixel_sizes(text):
    with pytest.raises(UsageError, match="is not a length"):
        parse_pixel_size(text)


# Facts that go into results


def test_facts_of_the_scan_are_in_the_result(tmp_path):
    """NXtomo (manual.nexusformat.org): entry/title and entry/start_time of the raw data.

    mantid imaging issue 1463: results held constants in their place. nxtomo, paths/nxdetector.py
    and nxsample.py (version 1.5): distance, propagation_distance.
    """
    values = {
        "title": "bone, left",
        "start_time": "2024-05-06T07:08:09+02:00",
        "instrument/detector/distance": (0.3, "m"),
        "sample/propagation_distance": (0.297, "m"),
    }
    result = result_of(nxtomo(tmp_path / "x.h5", **values), tmp_path)[0] / "result.h5"
    with h5py.File(result) as file:
        for name, value in values.items():
            stored = file[f"entry/{name}"][()]
            if isinstance(value, tuple):
                assert stored == value[0]
            else:
                assert stored.decode() == value


@pytest.mark.parametrize("format", ["tiff-stack", "ome-zarr"])
def test_images_carry_the_sample_too(tmp_path, format):
    """mobie/mobie-viewer-fiji issue 440, chanzuckerberg/cryoet-data-portal issue 20: what the
    scan's file says is lost in exports."""
    scan = nxtomo(
        tmp_path / "x.nx",
        **{"sample/name": "rock 7", "instrument/beam/incident_energy": (25.0, "keV")},
    )
    out, _ = result_of(scan, tmp_path, format=format)
    if format == "ome-zarr":
        text = (out / "result.ome.zarr/zarr.json").read_text()
    else:
        with tifffile.TiffFile(out / "result.tif") as file:
            text = file.imagej_metadata["Info"]
    assert "rock 7" in text
    assert "25 keV" in text


def test_slices_are_per_length_where_it_is_asked_for(tmp_path):
    """mantidproject/mantidimaging pull request 511: attenuation is divided by the pixel size."""
    scan = nxtomo(tmp_path / "x.nx", **{"sample/x_pixel_size": (2e-6, "m")})
    per_pixel = maxslices.run(scan, STEPS, device="cpu").result
    for options, um in (({}, 2.0), ({"pixel_size": "0.5um"}, 0.5)):
        per_mm = maxslices.run(scan, [*STEPS, "per_length"], device="cpu", **options).result
        np.testing.assert_allclose(per_mm, per_pixel * np.float32(1000 / um), rtol=1e-6)


def test_slices_are_not_per_length_of_an_unknown_pixel(tmp_path):
    """As above."""
    with pytest.raises(MethodError, match="set it with --pixel-size"):
        maxslices.run(nxtomo(tmp_path / "x.nx"), [*STEPS, "per_length"], device="cpu")


# Flips and motion


def test_a_sample_that_moves_between_frames_is_warned_of(tmp_path):
    """NXtomo: sample/x_translation for each frame; the ESRF's random displacements against rings.
    Flats are taken with the sample moved out, which is no motion between projections."""
    at = np.r_[[0.0] * 3, [5e-3] * 3, 1e-5 * np.sin(np.arange(61))]
    scan = nxtomo(tmp_path / "x.nx", **{"sample/x_translation": (at, "m")})
    assert "/entry0000/sample/x_translation is not applied" in str(describe(scan))
    assert "/entry0000/sample/x_translation is not applied" in result_of(scan, tmp_path)[1]
    still = {"sample/x_translation": (np.where(np.arange(67) < 6, at, 0.0), "m")}
    assert "translation" not in str(describe(nxtomo(tmp_path / "y.nx", **still)))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("instrument/detector/x_flipped", True),
        ("instrument/detector/field_of_view", "Half"),
        ("instrument/detector/z_camera_tilt", 0.3),
    ],
)
def test_what_changes_the_picture_and_is_not_applied_is_warned_of(tmp_path, where, value, capsys):
    """nxtomo, paths/nxdetector.py: x_flipped, field_of_view; nabu's calibration: z_camera_tilt."""
    scan = nxtomo(tmp_path / "x.nx", **{where: value})
    assert f"/entry0000/{where}" in result_of(scan, tmp_path)[1]
    assert main(["info", str(scan)]) == 0
    assert "not applied" in "".join(capsys.readouterr())
