"""Options of a pipeline's loader in plans: the preview, and replaced flats and darks."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

import maxslices
from maxslices import ArraySpec
from maxslices.errors import SourceError

LOADER = {
    "method": "standard_tomo",
    "module_path": "httomo.data.hdf.loaders",
    "parameters": {"data_path": "/data", "rotation_angles": list(range(0, 180, 15))},
}


def with_preview(**preview):
    return {"method": "standard_tomo", "parameters": {"preview": preview}}


@pytest.fixture
def scan(tmp_path):
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["data"] = np.full((12, 8, 10), 3, np.uint16)
    return tmp_path / "scan.h5"


def test_a_shape_is_cut_to_the_preview():
    steps = [with_preview(detector_y="mid", angles={"stop": 900}), "minus_log"]
    plan = maxslices.plan(
        ArraySpec((1801, 2160, 2560), "uint16"), steps, device="cpu", memory="1GB"
    )
    assert plan.sections[0].output.shape == (900, 3, 2560)
    assert "the preview reads 900x3x2560 uint16 of 1801x2160x2560 uint16" in plan.notes[-1]


def test_a_preview_beyond_the_shape_is_refused():
    steps = [with_preview(detector_x={"stop": 90}), "minus_log"]
    with pytest.raises(SourceError, match="preview detector_x 0:90 is not within"):
        maxslices.plan(ArraySpec((20, 30, 40), "uint16"), steps, device="cpu", memory="1GB")


def test_replaced_frames_are_noted_if_a_method_takes_them(scan):
    report = maxslices.run(scan, [LOADER, "dark_flat_field_correction"], device="cpu")
    assert [note.split(": ")[0].rsplit(" ", 1)[1] for note in report.plan.notes] == ["ignored"] * 2
    assert "a frame of ones replaces them, as in httomo" in str(report.plan)
    np.testing.assert_allclose(report.result, 3)
    assert not maxslices.run(scan, [LOADER, "median_filter"], device="cpu").plan.notes


def test_without_a_loader_of_httomo_missing_flats_are_an_error(scan):
    options = {"data_path": "/data", "rotation_angles": list(range(0, 180, 15))}
    steps = [{"method": "standard_tomo", "parameters": options}, "dark_flat_field_correction"]
    with pytest.raises(SourceError, match="has no flats, which dark_flat_field_correction needs"):
        maxslices.plan(scan, steps, device="cpu")
    options |= {"flats": "ignore", "darks": "ignore"}
    assert len(maxslices.plan(scan, steps, device="cpu").notes) == 2


def test_an_image_key_that_httomo_ignores_is_warned_about(scan, caplog):
    with h5py.File(scan, "a") as file:
        file["image_key"] = np.repeat([2, 0], [3, 9])
    assert maxslices.plan(scan, [LOADER, "minus_log"], device="cpu").sections[0].n_slices == 12
    (message,) = caplog.messages
    assert "but /image_key marks 3 of them as flats, darks or others" in message
