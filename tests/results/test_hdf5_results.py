"""HDF5 results as h5py, and the libraries of viewers, read them."""

from contextlib import nullcontext
from datetime import datetime

import h5py
import numpy as np
import pytest

import maxslices
from maxslices import Pipeline, run
from maxslices.io import open_source
from tests.results.conftest import SHAPE, VOLUME, pipeline


def test_a_volume_has_slices_first(result, volume):
    with h5py.File(result()) as file:
        np.testing.assert_array_equal(file["entry/data/data"], volume)
        assert file["entry/data/data"].chunks is None


def test_axes_say_where_voxels_are(result):
    with h5py.File(result(rows="1:4")) as file:
        group = file["entry/data"]
        assert list(group.attrs["axes"]) == ["z", "y", "x"]
        assert [group[axis].attrs["units"] for axis in "zyx"] == ["um"] * 3
        np.testing.assert_allclose(group["z"], [2, 4, 6])  # rows 1 to 3 of the detector
        np.testing.assert_allclose(group["x"], 3.25 * np.arange(7))
        assert [label.label for label in group["data"].dims] == ["z", "y", "x"]


def test_the_default_of_a_file_leads_to_the_data(result):
    """As silx and h5web follow ``default``, ``signal`` and ``interpretation``."""
    with h5py.File(result()) as file:
        entry = file[file.attrs["default"]]
        data = entry[entry.attrs["default"]]
        assert (entry.attrs["NX_class"], data.attrs["NX_class"]) == ("NXentry", "NXdata")
        assert data[data.attrs["signal"]].shape == VOLUME
        assert data[data.attrs["signal"]].attrs["interpretation"] == "image"


def test_frames_stay_in_the_order_of_a_scan_and_are_one(result, scan):
    with pytest.warns(match="results from halve on have no pixel size"):
        path = result(steps=["halve"])
    with h5py.File(path) as file:
        assert list(file["entry/data"].attrs["axes"]) == [
            "rotation_angle",
            "detector_y",
            "detector_x",
        ]
        np.testing.assert_allclose(file["entry/data/rotation_angle"], np.linspace(0, 150, 6))
        assert "x_pixel_size" not in file["entry"]  # the method changed it
    with open_source(path) as source:
        assert source.spec.shape == (6, 5, 4)
        np.testing.assert_allclose(np.rad2deg(source.angles), np.linspace(0, 150, 6), atol=1e-4)


@pytest.mark.parametrize(
    ("steps", "size"),
    [
        (["data_resampler"], None),
        (["data_resampler", "fbp"], None),
        (["fbp"], 3.25),
        (["fbp", "data_resampler"], None),
        (["sino_360_to_180"], 3.25),
        (["sino_360_to_180", "fbp"], 3.25),
    ],
)
def test_a_pixel_size_is_true_or_left_out(tmp_path, scan, steps, size):
    parameters = {
        "data_resampler": {"newshape": [6, 14] if steps[-1] == "fbp" else [4, 9]},
        "fbp": {"center": 3.0, "recon_size": 5},
        "sino_360_to_180": {"overlap": 2},
    }
    steps_made = Pipeline.from_steps([{"method": n, "parameters": parameters[n]} for n in steps])
    with (
        nullcontext()
        if size
        else pytest.warns(match="results from data_resampler on have no pixel size")
    ):
        run(scan, steps_made, tmp_path / "out", device="cpu", rows="1:5")
    with h5py.File(tmp_path / "out/result.h5") as file:
        assert ("x_pixel_size" in file["entry"]) == (size is not None)
        across = file["entry/data"][file["entry/data"].attrs["axes"][2]]
        assert across.attrs["units"] == ("pixel" if size is None else "um")
        np.testing.assert_allclose(np.diff(across), size or 1)


def test_steps_are_kept_with_the_values_that_were_found(result, scan):
    with h5py.File(scan) as file:
        largest = float(file["entry1/tomo_entry/data/data"][()].max())
    with h5py.File(result()) as file:
        entry = file["entry"]
        assert entry["title"][()].decode() == str(scan)
        step = entry["process_02"]
        assert step.attrs["NX_class"] == "NXprocess"
        assert step["method"][()].decode().endswith(".to_volume")
        assert step["sequence_index"][()] == 2
        assert step["parameters/size"][()] == 11
        assert float(step["parameters/level"][()]) == largest
        assert datetime.fromisoformat(step["date"][()].decode()).tzinfo is not None
        assert entry["raw_file"][()].decode() == str(scan)
        assert file.attrs["creator"] == f"maxslices {maxslices.__version__}"


def test_the_pixel_size_is_that_of_the_scan_or_the_given_one(result, scan, tmp_path):
    with h5py.File(result()) as file:
        assert file["entry/x_pixel_size"][()] == 3.25
        assert file["entry/y_pixel_size"].attrs["source"].count("_pixel_size") == 2
    run(scan, pipeline(), tmp_path / "given", device="cpu", pixel_size="650nm")
    with h5py.File(tmp_path / "given/result.h5") as file:
        assert file["entry/y_pixel_size"][()] == 0.65
        np.testing.assert_allclose(file["entry/data/z"][1], 0.65)


def test_without_a_pixel_size_axes_count_pixels(tmp_path):
    scan = np.ones(SHAPE, np.uint16)
    run(scan, pipeline(), tmp_path / "out", device="cpu")
    with h5py.File(tmp_path / "out/result.h5") as file:
        assert file["entry/data/y"].attrs["units"] == "pixel"
        np.testing.assert_array_equal(file["entry/data/y"], np.arange(11))


@pytest.mark.parametrize("format", ["hdf5:compressed", "hdf5:8", "hdf5:16:0-100:compressed"])
def test_other_hdf5_is_the_same_but_for_its_numbers(result, volume, format):
    with h5py.File(result(format)) as file:
        data, group = file["entry/data/data"], file["entry/data"]
        assert (data.compression == "gzip") == format.endswith("compressed")
        assert list(group.attrs["axes"]) == ["z", "y", "x"]
        assert file["entry/process_02/parameters/size"][()] == 11
        values = data[()]
        if ":8" in format or ":16" in format:
            assert values.dtype == ("u1" if ":8" in format else "u2")
            values = values * group["scaling_factor"][()] + group["offset"][()]
            step = group["scaling_factor"][()]
            inside = (volume > group["offset"][()]) & (values < values.max())
            assert np.abs(values - volume)[inside].max() <= 0.51 * step
        else:
            np.testing.assert_array_equal(values, volume)
