"""TIFF and OME-Zarr as tifffile, zarr and the libraries of viewers read them."""

import json

import numpy as np
import pytest
import tifffile

from maxslices import run
from maxslices.errors import UsageError
from maxslices.runner.sweep_pictures import ContactSheet
from tests.results.conftest import STEPS, pipeline


def test_a_stack_opens_in_imagej_with_its_voxels(result, volume):
    with tifffile.TiffFile(result("tiff-stack")) as file:
        assert file.is_imagej
        assert file.series[0].axes == "ZYX"
        np.testing.assert_array_equal(file.asarray(), volume)
        assert file.imagej_metadata["unit"] == "um"
        assert file.imagej_metadata["spacing"] == 2.0
        across = file.pages[0].tags["XResolution"].value
        assert across[1] / across[0] == pytest.approx(3.25, rel=1e-6)
        assert "scan.nxs" in file.imagej_metadata["Info"]


def test_eight_bits_keep_their_values_as_imagejs_calibration(result, volume):
    with tifffile.TiffFile(result("tiff-stack:8:0-100")) as file:
        numbers, metadata = file.asarray(), file.imagej_metadata
    assert (numbers.min(), numbers.max()) == (0, 255)
    assert np.abs(metadata["c0"] + metadata["c1"] * numbers - volume).max() <= 0.51 * metadata["c1"]


def test_large_stacks_are_bigtiff_with_ome(result, volume, monkeypatch):
    monkeypatch.setattr("maxslices.io.results.exports.LARGEST_TIFF_BYTES", 100)
    with tifffile.TiffFile(result("tiff-stack")) as file:
        assert file.is_bigtiff
        assert 'PhysicalSizeX="3.25"' in file.ome_metadata
        assert 'PhysicalSizeZ="2.0"' in file.ome_metadata
        np.testing.assert_array_equal(file.asarray(), volume)


@pytest.mark.parametrize("format", ["tiff", "tiff:compressed", "hdf5,tiff"])
def test_a_folder_has_a_slice_in_each_file(result, volume, format):
    folder = result(format)
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"result_{n:05d}.tif" for n in range(5)]
    with tifffile.TiffFile(folder / names[3]) as file:
        np.testing.assert_array_equal(file.asarray(), volume[3])
        across, down = (file.pages[0].tags[f"{axis}Resolution"].value for axis in "XY")
        assert across[1] / across[0] == pytest.approx(3.25, rel=1e-6)
        assert down[1] / down[0] == pytest.approx(3.25, rel=1e-6)
        assert file.imagej_metadata["unit"] == "um"


def test_several_formats_come_of_one_run(tmp_path, scan):
    report = run(
        scan, pipeline(), tmp_path / "out", device="cpu", format=["hdf5", "tiff-stack:16", "tiff"]
    )
    assert [path.name for path in report.files] == ["result.h5", "result_16bit.tif", "result"]
    assert not list((tmp_path / "out").glob(".*"))


def test_what_is_streamed_is_removed_if_nobody_asked_for_it(tmp_path, result):
    path = result("tiff-stack:8")
    assert [each.name for each in path.parent.glob("*result*")] == ["result_8bit.tif"]
    assert not list(path.parent.glob(".*"))


def test_a_run_replaces_one_of_other_formats(tmp_path, scan):
    for format in ("tiff-stack,tiff:8", "hdf5"):
        run(scan, pipeline(), tmp_path / "out", device="cpu", format=format, overwrite=True)
    assert [path.name for path in (tmp_path / "out").glob("result*")] == ["result.h5"]


@pytest.mark.parametrize(
    ("format", "steps", "rows", "wanted"),
    [
        ("hdf5", STEPS, "1:4", ["row 1", "row 2", "row 3"]),
        ("tiff", STEPS, "3:5", ["row 3", "row 4"]),
        ("tiff-stack,tiff:8", STEPS, None, ["row 1", "row 2", "row 3"]),
        ("hdf5", ["halve"], "3:5", ["projection 1", "projection 3", "projection 4"]),
    ],
)
@pytest.mark.filterwarnings("ignore:results from halve on have no pixel size")
def test_pictures_name_the_rows_of_the_scan(
    tmp_path, scan, monkeypatch, format, steps, rows, wanted
):
    labels = []
    monkeypatch.setattr(ContactSheet, "save", lambda sheet, path, _: path.write_bytes(b""))
    monkeypatch.setattr(ContactSheet, "add", lambda sheet, image, label: labels.append(label))
    options = {"device": "cpu", "format": format, "picture": True}
    run(scan, pipeline(steps), tmp_path / "out", rows=rows, **options)
    assert labels == wanted
    assert f", {wanted[len(wanted) // 2]}" in (tmp_path / "out/report.html").read_text()


@pytest.mark.parametrize(
    ("format", "message"),
    [
        ("jpeg", "'jpeg' is not a format"),
        ("tiff:12", "'12' in the format tiff:12"),
        ("tiff:8:99-1", "LOW < HIGH"),
        ("tiff:1-99", "add :8"),
        ("tiff,tiff:compressed", "same name"),
    ],
)
def test_formats_that_cannot_be_are_refused_before_the_scan_is_read(tmp_path, format, message):
    with pytest.raises(UsageError, match=message):
        run(tmp_path / "none.nxs", pipeline(), tmp_path / "out", format=format)


def test_a_pixel_size_without_a_unit_is_refused_before_the_scan_is_read(tmp_path):
    with pytest.raises(UsageError, match="'3' is not a length"):
        run(tmp_path / "none.nxs", pipeline(), tmp_path / "out", pixel_size="3")


@pytest.fixture
def zarr_result(tmp_path):
    """A run of a volume that needs levels, with its OME-Zarr."""
    pytest.importorskip("zarr")

    def make(format="ome-zarr"):
        scan = np.ones((6, 3, 600), np.uint16)
        steps = [STEPS[0], {**STEPS[1], "parameters": {**STEPS[1]["parameters"], "size": 301}}]
        options = {"device": "cpu", "format": format, "pixel_size": 3.25}
        return run(scan, pipeline(steps), tmp_path / "out", **options).files[-1]

    return make


def expected():
    z, y, x = (np.arange(n, dtype=np.float32) for n in (3, 301, 600))
    return z[:, None, None] * 10000 + y[:, None] * 100 + x


def test_ome_zarr_has_a_pyramid_of_means(zarr_result):
    import zarr

    group = zarr.open_group(zarr_result(), mode="r")
    shapes = [group[str(level)].shape for level in range(3)]
    assert shapes == [(3, 301, 600), (2, 151, 300), (1, 76, 150)]
    whole = expected()
    np.testing.assert_array_equal(group["0"], whole)
    np.testing.assert_allclose(group["1"][0, 4, 9], whole[:2, 8:10, 18:20].mean(), rtol=1e-6)
    assert group["1"][1, 0, 0] == whole[2, :2, :2].mean()  # the last slice counts twice


def test_ome_zarr_says_where_each_level_is(zarr_result):
    ome = json.loads((zarr_result() / "zarr.json").read_text())["attributes"]["ome"]
    assert ome["version"] == "0.5"
    image = ome["multiscales"][0]
    assert [axis["name"] for axis in image["axes"]] == ["z", "y", "x"]
    assert {axis["unit"] for axis in image["axes"]} == {"micrometer"}
    scale, shift = image["datasets"][1]["coordinateTransformations"]
    assert scale["scale"] == [6.5] * 3
    assert shift["translation"] == [1.625] * 3


def test_ome_zarr_is_valid_by_its_models(zarr_result):
    models = pytest.importorskip("yaozarrs")
    models.validate_zarr_store(str(zarr_result()))


def test_ome_zarr_of_eight_bits(zarr_result):
    import zarr

    group = zarr.open_group(zarr_result("ome-zarr:8:0-100"), mode="r")
    metadata = group.attrs["maxslices"]
    assert group["0"].dtype == group["2"].dtype == np.uint8
    values = group["0"][()] * metadata["scaling_factor"] + metadata["offset"]
    assert np.abs(values - expected()).max() <= 0.51 * metadata["scaling_factor"]
