"""Warnings about results and frames: NaN and infinite values, and flats without beam."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

import maxslices
from maxslices import Pipeline, Registry
from maxslices.devices.non_finite import NonFiniteCount

methods = Registry()
methods.register(lambda data: np.log(data), name="log", module="own", pattern="all")
methods.register(lambda data: data + 1, name="plus", module="own", pattern="all", halo=1)
methods.register(
    lambda data: data * np.where(np.isinf(data), 0, 1).astype("f4"),
    name="spoil",
    module="own",
    pattern="sinogram",
)


@pytest.mark.filterwarnings("ignore:.*encountered in (log|multiply|divide)")
def test_non_finite_values_are_counted_once_for_the_method_that_causes_them():
    scan = np.ones((12, 6, 5), np.float32)
    scan[3, 2, 1], scan[4:6, 0, 0], scan[7, 5, 4] = -1, 0, 5
    pipeline = Pipeline.from_steps(["plus", "log", "plus", "spoil"], methods)
    scan -= 1
    report = maxslices.run(scan, pipeline, device="cpu", block=4)
    texts = [warning for section in report.sections for warning in section.warnings]
    left = "values, which stay unchanged"
    assert texts == [
        f"the result of log has 1 NaN and 2 infinite {left}",
        f"the result of spoil has 3 NaN and 0 infinite {left}",
    ]
    assert np.count_nonzero(np.isnan(report.result)) == 3
    assert "warning: the result of log has 1 NaN" in str(report)


@pytest.mark.parametrize(
    ("dtype", "value"), [("float32", 3e38), ("float64", 1e300), ("uint16", 60000)]
)
def test_large_finite_values_are_not_counted(dtype, value):
    count = NonFiniteCount(1)
    count.look(0, np.full((3, 4, 5), value, dtype))
    np.testing.assert_array_equal(count.totals(), [[0, 0]])


SHAPE = (9, 70, 130)
RANDOM = np.random.default_rng(5)
DARKS = 100 + RANDOM.integers(0, 9, (3, *SHAPE[1:]))
FLATS = 900 + RANDOM.integers(0, 9, (2, *SHAPE[1:]))


def write(folder, flats, darks):
    with h5py.File(folder / "scan.h5", "w") as file:
        file["exchange/data"] = RANDOM.integers(400, 500, SHAPE).astype("u2")
        file["exchange/theta"] = np.linspace(0, 180, SHAPE[0])
        file["exchange/data_white"] = flats.astype("u2")
        if darks is not None:
            file["exchange/data_dark"] = darks.astype("u2")


ON_ROWS = np.repeat(DARKS[:1], 2, axis=0)
ON_ROWS[:, 40:44] = FLATS[:, 40:44]
NO_BEAM = "the flats are nowhere brighter than the darks: look at them"


@pytest.mark.parametrize(
    ("flats", "darks", "is_warned"),
    [
        (DARKS, FLATS, True),
        (0 * FLATS, DARKS, True),
        (0 * FLATS, None, True),
        (ON_ROWS, DARKS, False),
        (ON_ROWS, None, False),
    ],
)
def test_flats_that_are_not_brighter_cause_a_warning(tmp_path, recwarn, flats, darks, is_warned):
    write(tmp_path, flats, darks)
    maxslices.run(tmp_path / "scan.h5", ["dark_flat_field_correction"], device="cpu")
    assert [NO_BEAM in str(each.message) for each in recwarn].count(True) == is_warned


def test_made_up_flats_are_not_checked(tmp_path, recwarn):
    write(tmp_path, FLATS, DARKS)
    loader = {"data_path": "/exchange/data", "image_key_path": None, "flats": "ignore"}
    loader["darks"] = {"file": "input_data", "data_path": "/exchange/data_dark"}
    steps = [{"method": "standard_tomo", "parameters": loader}, "dark_flat_field_correction"]
    maxslices.run(tmp_path / "scan.h5", steps, device="cpu")
    assert NO_BEAM not in str([each.message for each in recwarn])


def test_a_scan_without_darks_is_noted_in_its_plan(tmp_path):
    write(tmp_path, FLATS, None)
    planned = maxslices.plan(tmp_path / "scan.h5", ["dark_flat_field_correction"], device="cpu")
    note = "has no darks: methods run without if they can"
    assert [text.partition("data ")[2] for text in planned.notes if "darks" in text] == [note]
    assert note in maxslices.check(["dark_flat_field_correction"], tmp_path / "scan.h5")
    assert "no darks" not in str(maxslices.plan(tmp_path / "scan.h5", ["minus_log"], device="cpu"))
