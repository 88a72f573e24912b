"""Saved files: results, by default and on demand, angles, and provenance."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest

from maxslices import Pipeline, Registry, run
from maxslices.errors import StoreError
from tests.io import scans
from tests.runner.resumable import results_in

N_ANGLES = int((scans.KEYS == 0).sum())
FRAMES = np.random.default_rng(4).integers(500, 3000, (scans.KEYS.size, 6, 16), np.uint16)
FRAMES[scans.KEYS == 1] += 3000
FRAMES[scans.KEYS == 2] //= 100
RECON = {"method": "fbp", "parameters": {"center": 7.5}}
STEPS = ["dark_flat_field_correction", "minus_log", RECON, "median_filter"]
OPTIONS = {"device": "cpu", "memory": "100MB"}


@pytest.fixture
def scan(tmp_path):
    return scans.write_dls(tmp_path / "scan.nxs", FRAMES)


def two(slice_dim, other_dims, dtype, available_memory):
    return available_memory // (other_dims[0] * other_dims[1] * 24), np.float32


def data(path):
    with h5py.File(path) as file:
        return file["entry/data/data"][()]


def test_reconstruction_is_saved_in_addition_to_the_last_result(tmp_path, scan):
    run(scan, STEPS, tmp_path / "out", **OPTIONS)
    assert results_in(tmp_path / "out") == {"03_fbp.h5", "result.h5"}
    alone = run(scan, STEPS[:3], **OPTIONS)
    saved = data(tmp_path / "out" / "03_fbp.h5")
    assert saved.dtype == np.float32
    assert np.array_equal(saved, alone.result.swapaxes(0, 1))  # slices first


def test_step_can_exclude_its_reconstruction(tmp_path, scan):
    steps = [*STEPS[:2], {**RECON, "save_result": False}, STEPS[3]]
    run(scan, steps, tmp_path / "out", **OPTIONS)
    assert results_in(tmp_path / "out") == {"result.h5"}


def test_all_is_saved_on_demand(tmp_path, scan):
    find = {"method": "find_center_vo", "id": "c", "side_outputs": {"cor": "cor"}}
    steps = [*STEPS[:2], find, {**RECON, "save_result": False}, STEPS[3]]
    run(scan, steps, tmp_path / "out", **OPTIONS, save_all=True)
    assert results_in(tmp_path / "out") == {
        "01_dark_flat_field_correction.h5", "02_minus_log.h5", "04_fbp.h5", "result.h5"
    }  # fmt: skip


def test_data_before_the_reconstruction_are_a_scan_again(tmp_path, scan):
    run(scan, STEPS, tmp_path / "out", **OPTIONS, save_all=True)
    run(tmp_path / "out" / "02_minus_log.h5", STEPS[2:], tmp_path / "rest", **OPTIONS)
    assert np.array_equal(*(data(tmp_path / f / "result.h5") for f in ("out", "rest")))
    with h5py.File(tmp_path / "out" / "02_minus_log.h5") as file:
        assert len(file["entry/data/rotation_angle"]) == N_ANGLES
    with h5py.File(tmp_path / "out" / "03_fbp.h5") as file:
        assert "rotation_angle" not in file["entry/data"]


class TestProvenance:
    def test_the_folder_says_how_its_results_were_made(self, tmp_path, scan):
        report = run(scan, STEPS, tmp_path / "out", **OPTIONS)
        written = json.loads((tmp_path / "out" / "report.json").read_text())["provenance"]
        assert written["scan"] == str(scan)
        assert {"Python", "maxslices", "numpy", "maxslices_methods"} <= set(written["versions"])
        assert written["date"] == report.provenance.date
        log = (tmp_path / "out" / "run.log").read_text()
        assert "Plan for" in log
        assert "Ran on cpu in" in log

    def test_the_pipeline_as_run_has_all_defaults_and_runs_again(self, tmp_path, scan):
        run(scan, STEPS, tmp_path / "out", **OPTIONS)
        path = tmp_path / "out" / "pipeline_as_run.yaml"
        text = path.read_text()
        assert "filter_type: shepp-logan" in text  # a default that the steps do not give
        run(scan, path, tmp_path / "again", **OPTIONS)
        assert results_in(tmp_path / "again") == results_in(tmp_path / "out")
        assert np.array_equal(*(data(tmp_path / f / "result.h5") for f in ("out", "again")))

    # As in httomo, darks count as projections without the path of their keys.
    @pytest.mark.filterwarnings("ignore:.*have no beam")
    @pytest.mark.parametrize("module", ["maxslices.io", "httomo.data.hdf.loaders"])
    def test_loader_is_written_unchanged(self, tmp_path, scan, module):
        loader = {
            "method": "standard_tomo",
            "module_path": module,
            "parameters": {"preview": {"detector_y": {"start": 1, "stop": 4}}},
        }
        run(scan, [loader, *STEPS], tmp_path / "out", **OPTIONS)
        again = Pipeline.from_file(tmp_path / "out" / "pipeline_as_run.yaml")
        assert again.loader == Pipeline.from_steps([loader, *STEPS]).loader

    def test_foreign_file_is_not_replaced(self, tmp_path, scan):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "run.log").write_text("mine")
        with pytest.raises(StoreError, match=r"run\.log already exists"):
            run(scan, STEPS, tmp_path / "out", **OPTIONS)
        assert (tmp_path / "out" / "run.log").read_text() == "mine"

    def test_warnings_are_in_the_log_and_are_still_shown(self, tmp_path, scan):
        registry = Registry()

        def warns(data):
            import warnings

            warnings.warn("look out", stacklevel=1)
            return data

        registry.register(warns, pattern="projection", output_dtype="uint16")
        with pytest.warns(UserWarning, match="look out"):
            run(scan, Pipeline.from_steps(["warns"], registry), tmp_path / "out", device="cpu")
        assert "warning: look out" in (tmp_path / "out" / "run.log").read_text()
