"""Results of workers have the layout, the notes and the formats of a run in one process."""

from __future__ import annotations

import importlib.util

import h5py
import numpy as np
import pytest
import tifffile

from maxslices import run
from maxslices.planner import Plan
from tests.results.conftest import SHAPE, STEPS, VOLUME, pipeline
from tests.results.conftest import scan as scan
from tests.results.conftest import volume as volume


def exported(format, module):
    is_missing = importlib.util.find_spec(module) is None
    return pytest.param(format, marks=pytest.mark.skipif(is_missing, reason=f"needs {module}"))


FORMATS = ["hdf5,tiff-stack", "tiff:16:compressed", exported("ome-zarr", "zarr")]


def contents(folder):
    """Name of each result in a folder -> its content."""
    files = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix not in (".json", ".html", ".log", ".yaml", ".txt"):
            is_array = path.suffix in (".h5", ".tif")
            files[str(path.relative_to(folder))] = (
                array_of(path).tobytes() if is_array else path.read_bytes()
            )
    return files


def array_of(path):
    if path.suffix == ".tif":
        return tifffile.imread(path)
    with h5py.File(path) as file:
        return file["entry/data/data"][()]


@pytest.mark.parametrize("format", FORMATS)
def test_a_volume_is_the_same_in_every_format(tmp_path, scan, client, volume, format):
    options = {"format": format, "scratch": tmp_path / "scratch"}
    (tmp_path / "scratch").mkdir()
    report = run(scan, pipeline(), tmp_path / "shared", engine=client, block=1, **options)
    plan = Plan.from_json(report.plan.to_json())
    run(scan, pipeline(), tmp_path / "alone", device="cpu", plan=plan, **options)
    shared, wanted = contents(tmp_path / "shared"), contents(tmp_path / "alone")
    assert shared.keys() == wanted.keys()
    assert [name for name in shared if shared[name] != wanted[name]] == []
    assert list((tmp_path / "scratch").iterdir()) == []
    for path in (tmp_path / "shared").glob("*.tif"):
        np.testing.assert_array_equal(tifffile.imread(path), volume)


def test_workers_write_a_volume_slices_first_and_frames_angles_first(
    tmp_path, scan, client, volume
):
    steps = [{"method": "halve", "save_result": True}, STEPS[0], STEPS[1]]
    with pytest.warns(UserWarning, match="results from halve on have no pixel size"):
        run(scan, pipeline(steps), tmp_path / "out", engine=client, block=2)
    with h5py.File(tmp_path / "out" / "result.h5") as file:
        data = file["entry/data/data"]
        assert data.shape == (*VOLUME[:2], 4)
        np.testing.assert_array_equal(data, volume[..., :4])
    with h5py.File(tmp_path / "out" / "01_halve.h5") as file:
        assert file["entry/data/data"].shape == (*SHAPE[:2], 4)


@pytest.mark.parametrize("part", [{"rows": "1:4"}, {"angles": "::2", "columns": "2:6"}])
def test_workers_read_the_part_that_is_asked_for(tmp_path, scan, client, part):
    run(scan, pipeline(), tmp_path / "shared", engine=client, block=1, **part)
    run(scan, pipeline(), tmp_path / "alone", device="cpu", block=1, **part)
    assert contents(tmp_path / "shared") == contents(tmp_path / "alone")
