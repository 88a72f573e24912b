"""Scans in arrays, and functions as steps: in `run`, `plan`, `check` and sweeps."""

from __future__ import annotations

import json
from functools import partial

import h5py
import numpy as np
import pytest

import maxslices
from maxslices import ArrayScan, from_ledger
from maxslices.errors import MaxslicesError, SourceError, UsageError

RNG = np.random.default_rng(5)
COUNTS = RNG.integers(100, 900, (31, 6, 40)).astype(np.uint16)
FLATS, DARKS = np.full((3, 6, 40), 1000, np.uint16), np.full((6, 40), 10, np.uint16)
ANGLES = np.linspace(0, np.pi, 31)
SCAN = ArrayScan(COUNTS, flats=FLATS, darks=DARKS, angles=ANGLES, pixel_size="3.25um")
CORRECT, FBP = "dark_flat_field_correction", ("fbp", {"center": 19.5})


@from_ledger
def needs(m, shape, dtype):
    m.alloc(shape, dtype)
    m.alloc(shape, "float32")


@maxslices.method("projection", calc_max_slices=needs, output_dtype="float32")
def scaled(data, *, factor: float = 2.0):
    return data.astype(np.float32) * np.float32(factor)


@pytest.fixture
def in_a_file(tmp_path):
    with h5py.File(tmp_path / "scan.nxs", "w") as file:
        entry = file.create_group("entry1/tomo_entry")
        entry["data/data"] = np.concatenate([DARKS[None], FLATS, COUNTS])
        entry["data/rotation_angle"] = [0, 0, 0, 0, *np.rad2deg(ANGLES)]
        entry["instrument/detector/image_key"] = [2, 1, 1, 1] + [0] * 31
    return tmp_path / "scan.nxs"


def result(scan, steps, **options):
    return maxslices.run(scan, steps, device="cpu", memory="100MB", **options).result


def test_a_scan_in_arrays_gives_what_its_file_gives(in_a_file):
    steps = [CORRECT, "minus_log", FBP]
    np.testing.assert_array_equal(result(SCAN, steps), result(in_a_file, steps))


@pytest.mark.parametrize(
    "part", [{"rows": "2:5"}, {"columns": (4, 30)}, {"angles": "::3"}, {"rows": "mid"}]
)
def test_a_part_of_it_is_read(in_a_file, part):
    steps = [CORRECT, "minus_log"]
    if "angles" in part:
        expected = result(ArrayScan(COUNTS[::3], flats=FLATS, darks=DARKS), steps)
    else:
        expected = result(in_a_file, steps, **part)
    np.testing.assert_array_equal(result(SCAN, steps, **part), expected)


@pytest.mark.filterwarnings("ignore:.*within 90 degrees of a half turn")
def test_pipeline_sets_options_of_the_loader():
    steps = [
        {
            "method": "standard_tomo",
            "parameters": {
                "preview": {"detector_y": {"start": 1, "stop": 3}},
                "rotation_angles": {
                    "user_defined": {"start_angle": 0, "stop_angle": 90, "angles_total": 31}
                },
            },
        },
        CORRECT,
        "minus_log",
        FBP,
    ]
    half = ArrayScan(COUNTS[:, 1:3], flats=FLATS[:, 1:3], darks=DARKS[1:3], angles=ANGLES / 2)
    np.testing.assert_array_equal(result(SCAN, steps), result(half, [CORRECT, "minus_log", FBP]))


def test_the_pixel_size_is_in_the_results(tmp_path):
    maxslices.run(SCAN, [CORRECT], tmp_path / "out", device="cpu", memory="100MB")
    with h5py.File(tmp_path / "out/result.h5") as file:
        assert file["entry/x_pixel_size"][()] == 3.25


def test_plan_and_check_take_arrays():
    plan = maxslices.plan(SCAN, [CORRECT, "minus_log", FBP], device="cpu", memory="100MB")
    assert plan.sections[-1].steps[-1].name == "fbp"
    summary = maxslices.check([CORRECT, "minus_log", FBP], SCAN)
    assert "flats: 3" in summary
    assert "darks: 1" in summary
    assert "angles: 31, 0 to 180 degrees" in summary


@pytest.mark.parametrize(
    ("lacks", "steps", "how"),
    [
        ("angles", [CORRECT, "minus_log", FBP], "maxslices.ArrayScan(data, angles=...)"),
        ("flats", [CORRECT], "maxslices.ArrayScan(data, flats=...)"),
    ],
)
@pytest.mark.parametrize("of_array", [True, False])
def test_what_an_array_lacks_is_named_with_how_to_give_it(lacks, steps, how, of_array):
    parts = {"flats": FLATS, "darks": DARKS, "angles": ANGLES}
    del parts[lacks]
    scan = ArrayScan(COUNTS, **parts)
    if of_array:
        scan, steps = COUNTS, (steps if lacks == "flats" else [FBP])
    for call in (
        lambda: maxslices.run(scan, steps, device="cpu"),
        lambda: maxslices.plan(scan, steps, device="cpu"),
        lambda: maxslices.check(steps, scan),
    ):
        with pytest.raises(SourceError) as raised:
            call()
        assert f"array has no {lacks}" in str(raised.value)
        assert how in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": [[1, 2]]}, "array: list is not a NumPy array: give numpy.asarray of it"),
        ({"flats": 3}, "array flats: int is not a NumPy array"),
        ({"flats": np.ones((2, 6, 39))}, "flats of 6x39 pixels do not fit the projections"),
        ({"angles": [0, 1]}, "2 rotation angles for 31 projections"),
        ({"pixel_size": "3.25"}, "the pixel size '3.25' is not a length"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(MaxslicesError, match=message):
        ArrayScan(**{"data": COUNTS, **arguments})


def test_its_memory_is_not_the_place_of_the_result():
    data = COUNTS.astype(np.float32)
    with pytest.raises(UsageError, match="out shares memory with the scan"):
        maxslices.run(ArrayScan(data), [scaled], data, device="cpu")


@pytest.mark.parametrize(
    "steps", [[scaled], [(scaled, {"factor": 2.0})], [partial(scaled, factor=2.0)], ["scaled"]]
)
def test_a_function_is_a_step(steps, tmp_path):
    expected = COUNTS.astype(np.float32) * 2
    np.testing.assert_array_equal(result(COUNTS, steps), expected)
    assert maxslices.plan(COUNTS, steps, device="cpu").sections[0].steps[0].name == "scaled"
    assert "scaled" in maxslices.check(steps)
    maxslices.run(COUNTS, steps, tmp_path / "out", device="cpu")
    assert maxslices.check(tmp_path / "out/pipeline_as_run.yaml")
    made_for = json.loads((tmp_path / "out/report.json").read_text())["plan"]["made_for"]
    assert made_for["pipeline"][1]["method"] == f"{__name__}.scaled"


def test_a_parameter_of_a_function_is_swept():
    pictures = result(COUNTS, [scaled], sweep={"scaled.factor": [1.0, 3.0]})
    np.testing.assert_array_equal(pictures[1], 3 * COUNTS[:, 3].astype(np.float32))
