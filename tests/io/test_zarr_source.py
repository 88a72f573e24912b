"""Scans in Zarr and OME-Zarr."""

from __future__ import annotations

import os
import shutil

import fsspec
import h5py
import numpy as np
import pytest
import zarr

import maxslices
from maxslices import describe
from maxslices.cli.main import main
from maxslices.errors import SourceError
from maxslices.io import LoaderOptions, Preview, open_source, parse_loader

from . import scans
from .made_scans import HALF_TURN, counts, flats_and_darks

DATA = scans.frames("uint16")
PROJECTIONS = scans.projections(DATA)
DEGREES = scans.DEGREES[scans.KEYS == 0]
KINDS = {
    "v2": {"zarr_format": 2},
    "v3": {"zarr_format": 3},
    "sharded": {"zarr_format": 3, "shards": (4, 4, 10)},
}


def write_zarr(path, kind="v3", names=("exchange/data", "exchange/data_white", "exchange/theta")):
    """Write the scan in chunks that cut every axis."""
    options = dict(KINDS[kind])
    group = zarr.create_group(path, zarr_format=options.pop("zarr_format"))
    data, flats, angles = names
    group.create_array(data, data=PROJECTIONS, chunks=(2, 2, 5), **options)
    group.create_array(flats, data=DATA[scans.KEYS == 1])
    group.create_array("exchange/data_dark", data=DATA[scans.KEYS == 2])
    group.create_array(angles, data=DEGREES)
    return path


def check_whole(source):
    """Check every way of reading against the frames."""
    np.testing.assert_array_equal(scans.whole(source), PROJECTIONS)
    rows = np.empty((len(PROJECTIONS), 3, PROJECTIONS.shape[2]), PROJECTIONS.dtype)
    source.read(1, 2, 5, rows)
    np.testing.assert_array_equal(rows, PROJECTIONS[:, 2:5])
    np.testing.assert_allclose(np.rad2deg(source.angles), DEGREES, atol=1e-4)
    np.testing.assert_array_equal(source.read_side("flats", 0, 0, 1), DATA[scans.KEYS == 1])
    np.testing.assert_array_equal(source.read_side("darks", 1, 1, 2), DATA[scans.KEYS == 2][:, 1:2])


@pytest.mark.parametrize("kind", KINDS)
def test_every_version_is_read(tmp_path, kind):
    with open_source(write_zarr(tmp_path / "scan.zarr", kind)) as source:
        check_whole(source)
        assert source.reads_rows


def test_a_zip_file_is_read(tmp_path):
    write_zarr(tmp_path / "scan.zarr")
    with open_source(
        shutil.make_archive(tmp_path / "scan", "zip", tmp_path / "scan.zarr")
    ) as source:
        check_whole(source)


@pytest.fixture
def address(tmp_path):
    """A scan in memory, as in an object store: its address of fsspec."""
    local, memory = write_zarr(tmp_path / "scan.zarr"), fsspec.filesystem("memory")
    memory.put(str(local), "/bucket/scan.zarr", recursive=True)
    yield "memory://bucket/scan.zarr"
    memory.rm("/bucket", recursive=True)


def test_an_address_of_fsspec_is_read(address):
    with open_source(address) as source:
        check_whole(source)


@pytest.mark.filterwarnings("ignore:.*have no beam")  # the made-up darks are brighter
def test_a_run_and_a_description_take_an_address(address, tmp_path, capsys):
    assert f"{address}:/exchange/data" in str(describe(address))
    steps = ["dark_flat_field_correction", "minus_log"]
    report = maxslices.run(address, steps, tmp_path / "out", device="cpu")
    with open_source(write_zarr(tmp_path / "local.zarr")) as local:
        expected = maxslices.run(local, steps, device="cpu").result
    with h5py.File(report.files[-1]) as file:
        np.testing.assert_array_equal(file["entry/data/data"], expected)
        assert file["entry/raw_file"][()].decode().startswith(address)
    assert main(["info", address]) == 0
    assert "9 x 7 x 11 uint16" in capsys.readouterr().out


def test_parts_are_given_by_their_paths(tmp_path):
    names = ("raw/frames", "side/open_beam", "motor/phi")
    path = write_zarr(tmp_path / "scan.zarr", names=names)
    parameters = {
        "data_path": "raw/frames",
        "rotation_angles": {"data_path": "/motor/phi"},
        "flats": {"file": "input_data", "data_path": "/side/open_beam"},
        "darks": {"file": str(path), "data_path": "exchange/data_dark"},
    }
    options, faults = parse_loader(parameters)
    assert not faults
    with open_source(path, options) as source:
        check_whole(source)


def test_flats_from_after_the_projections_are_read_too(tmp_path):
    path = write_zarr(
        tmp_path / "scan.zarr", names=("exchange/data", "exchange/data_white_pre", "t")
    )
    zarr.open(path, mode="a").create_array("exchange/data_white_post", data=DATA[:2])
    with open_source(path) as source:
        after = source.read_side("flats", 0, 0, 1)[-2:]
        np.testing.assert_array_equal(after, DATA[:2])


def test_an_image_key_beside_the_given_frames_is_used(tmp_path):
    group = zarr.create_group(tmp_path / "scan.zarr")
    group.create_array("a/frames", data=DATA)
    group.create_array("a/image_key", data=scans.KEYS)
    with open_source(tmp_path / "scan.zarr", LoaderOptions(data_path="a/frames")) as source:
        assert source.spec.shape == PROJECTIONS.shape
    with pytest.raises(SourceError, match="no beam current is found"):
        open_source(tmp_path / "scan.zarr", LoaderOptions(beam_current="auto"))


def test_an_image_key_selects_frames(tmp_path):
    group = zarr.create_group(tmp_path / "scan.zarr")
    group.create_array("entry/data", data=DATA, chunks=(3, 7, 11))
    group.create_array("entry/image_key", data=scans.KEYS)
    group.create_array("entry/rotation_angle", data=scans.DEGREES)
    with open_source(tmp_path / "scan.zarr") as source:
        check_whole(source)
        assert not source.reads_rows
    part = LoaderOptions(preview=Preview(angle_step=2))
    np.testing.assert_array_equal(scans.whole(tmp_path / "scan.zarr", part), PROJECTIONS[::2])


def test_ome_zarr_has_its_first_level_read_and_its_pixel_size(tmp_path):
    group = zarr.create_group(tmp_path / "scan.ome.zarr")
    group.create_array("0", data=PROJECTIONS[None, None])
    group.create_array("1", data=PROJECTIONS[None, None, :, ::2, ::2])
    axes = [{"name": n, "type": "space", "unit": "micrometer"} for n in "tczyx"]
    scales = [[1, 1, 1, 0.65, 0.65], [1, 1, 1, 1.3, 1.3]]
    levels = [
        {"path": str(n), "coordinateTransformations": [{"type": "scale", "scale": scale}]}
        for n, scale in enumerate(scales)
    ]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": levels}]}
    with open_source(tmp_path / "scan.ome.zarr") as source:
        assert source.spec.shape == PROJECTIONS.shape
        assert source.pixel_size.column_um == 0.65
        np.testing.assert_array_equal(scans.whole(source), PROJECTIONS)


def test_sinograms_are_known_by_the_names_of_dimensions(tmp_path):
    group = zarr.create_group(tmp_path / "scan.zarr")
    names = ("y", "theta", "x")
    group.create_array("data", data=PROJECTIONS.swapaxes(0, 1), dimension_names=names)
    np.testing.assert_array_equal(scans.whole(tmp_path / "scan.zarr"), PROJECTIONS)


def test_one_command_makes_slices_of_a_zarr_scan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    group = zarr.create_group("scan.zarr")
    group.create_array("exchange/data", data=counts(HALF_TURN), chunks=(8, 4, 96))
    for name, side in zip(("data_white", "data_dark"), flats_and_darks(), strict=True):
        group.create_array(f"exchange/{name}", data=side)
    group.create_array("exchange/theta", data=HALF_TURN)
    assert main(["try", "scan.zarr", "out", "--device", "cpu"]) == 0
    with h5py.File("out/result.h5") as file:
        assert file["entry/data/data"].shape[1:] == (96, 96)
    assert os.path.exists("out/slices.png")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data_path": "exchange/nothing"}, "exchange/nothing is not an array.*exchange/data"),
        ({"data_path": "exchange/theta"}, r"has the shape \(9,\): a scan has three dims"),
        ({"rotation_angles": "exchange/data"}, "has 3 dims, not one angle for each projection"),
        ({"beam_current": "exchange/data"}, "3-dimensional uint16, not one beam current"),
    ],
)
def test_parts_that_are_not_there_are_named(tmp_path, options, message):
    path = write_zarr(tmp_path / "scan.zarr")
    with pytest.raises(SourceError, match=message):
        open_source(path, LoaderOptions(**options))


def test_groups_without_frames_and_places_without_groups_are_errors(tmp_path):
    zarr.create_group(tmp_path / "empty.zarr").create_array("line", data=np.ones(5))
    with pytest.raises(
        SourceError, match=r"no scan is found in it.*give data_path; 3D arrays: none"
    ):
        open_source(tmp_path / "empty.zarr")
    for wrong in ("memory://nothing/here.zarr", "nosuch://bucket/scan.zarr"):
        with pytest.raises(SourceError, match=r"there is no Zarr|cannot be opened"):
            open_source(wrong)


def test_a_damaged_chunk_is_an_error_with_the_frames(tmp_path):
    path = write_zarr(tmp_path / "scan.zarr")
    chunk = path / "exchange/data/c/0/0/0"
    chunk.write_bytes(b"\xff" * 20)
    with pytest.raises(SourceError, match="exchange/data: frames 0:9: is damaged"):
        scans.whole(path)
