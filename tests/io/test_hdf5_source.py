from __future__ import annotations

import warnings

import h5py
import hdf5plugin
import numpy as np
import pytest

from maxslices.errors import SourceError
from maxslices.io import AngleRange, LoaderOptions, Preview, SideData, open_source

from . import scans

DATA = scans.frames()


@pytest.fixture
def dls(tmp_path):
    return scans.write_dls(tmp_path / "scan.nxs", DATA)


def test_filters_of_plugins_are_read_in_a_file_of_another_suffix(tmp_path):
    path = scans.write_dls(tmp_path / "a.tomo", DATA, chunks=(1, 7, 11), **hdf5plugin.Blosc())
    np.testing.assert_array_equal(scans.whole(path), scans.projections(DATA))


def with_angles(path, angles, units=None):
    """Give a scan an angle for each frame."""
    with h5py.File(path, "r+") as file:
        stored = file["entry1/tomo_entry/data/rotation_angle"]
        stored[...] = angles
        if units is not None:
            stored.attrs["units"] = units
    return path


@pytest.mark.parametrize(
    ("units", "expected"),
    [("rad", 1.0), ("radians", 1.0), (b"deg", 0.5), (np.array(["degrees"], "S"), 0.5), ("", 0.5)],
)
def test_units_of_angles(dls, units, expected):
    angles = np.arange(15) * (1.0 if expected == 1.0 else np.rad2deg(0.5))
    with open_source(with_angles(dls, angles, units)) as source:
        assert not source.angles.flags.writeable
        turned = expected * np.flatnonzero(scans.KEYS == 0)
        np.testing.assert_allclose(source.angles, turned, rtol=1e-6)


@pytest.mark.parametrize(
    ("angles", "units", "message"),
    [
        (np.linspace(0, 2 * np.pi, 15), None, r"its 9 projections lie within 5\.39 degrees of"),
        (np.linspace(0, 2 * np.pi, 15), "deg", r"its 9 projections lie within 5\.39 degrees of"),
        (np.linspace(0, 180, 15), "rad", r"angles in radians cover 24\.6 turns: if they are deg"),
        (np.full(15, 7.0), None, "its 9 projections all have the same angle"),
        (np.linspace(0, 105, 15), None, "its 9 projections lie within 90 degrees of a half turn"),
    ],
)
def test_angles_that_are_likely_to_be_wrong_are_warned_of(dls, angles, units, message):
    with pytest.warns(UserWarning, match=message):
        open_source(with_angles(dls, angles, units)).close()


def test_angles_of_a_preview_of_few_degrees_are_not_warned_of(dls):
    path = with_angles(dls, np.linspace(0, 40, scans.KEYS.size))
    part = LoaderOptions(preview=Preview(angles=(2, 5)))
    with warnings.catch_warnings(), open_source(path, part) as source:
        warnings.simplefilter("error")
        assert np.rad2deg(np.ptp(source.angles)) < 6


def test_angles_of_flats_and_darks_may_be_nan(dls):
    angles = np.where(scans.KEYS == 0, scans.DEGREES, np.nan)
    with open_source(with_angles(dls, angles)) as source:
        np.testing.assert_allclose(source.angles, np.deg2rad(angles[scans.KEYS == 0]), rtol=1e-6)


@pytest.mark.parametrize("count", [9, 15])
def test_angles_may_be_given_as_a_range(dls, count):
    with open_source(dls, LoaderOptions(rotation_angles=AngleRange(0, 315, count))) as source:
        degrees = np.linspace(0, 315, count)
        expected = degrees if count == 9 else degrees[scans.KEYS == 0]
        np.testing.assert_array_equal(source.angles, np.deg2rad(expected).astype(np.float32))


@pytest.mark.parametrize("is_alone", [True, False])
def test_the_key_of_alignment_frames(tmp_path, is_alone):
    path = scans.write_nxtomo(tmp_path / "a.nx", DATA)
    with h5py.File(path, "a") as file:
        detector, control = file["entry0000/instrument/detector"], scans.KEYS.copy()
        control[12] = -1
        detector["image_key_control"] = control
        if is_alone:
            del detector["image_key"]
    with open_source(path) as source:
        assert source.spec.shape[0] == source.angles.size == 8
        assert source.flats is not None


def test_the_first_layout_in_order_is_taken(tmp_path):
    path = scans.write_exchange(tmp_path / "a.h5", DATA)
    with h5py.File(path, "a") as file:
        file["entry1/tomo_entry/data/data"] = DATA[:5]
    with open_source(path) as source:
        assert source.spec.shape[0] == 5
        assert source.flats is None


def test_flats_from_before_and_after_the_projections_are_taken(tmp_path):
    path = scans.write_exchange(tmp_path / "a.h5", DATA)
    with h5py.File(path, "a") as file:
        before = file["exchange/data_white"][()]
        file["exchange"].move("data_white", "data_white_pre")
        file["exchange/data_white_post"] = before + np.uint16(1)
    with open_source(path) as source:
        assert source.flats is not None
        both = np.concatenate([before, before + np.uint16(1)])
        np.testing.assert_array_equal(source.read_side("flats", 0, 0, 1), both)
        np.testing.assert_array_equal(source.read_side("flats", 1, 1, 3), both[:, 1:3])


def test_a_data_path_that_auto_would_find_keeps_its_layout(dls):
    with open_source(dls, LoaderOptions(data_path="/entry1/tomo_entry/data/data")) as source:
        assert source.name == f"{dls}:/entry1/tomo_entry/data/data"
        assert source.spec.shape[0] == 9
        assert source.angles is not None


@pytest.mark.parametrize(
    "side",
    [
        SideData(None, "auto"),
        SideData(None, "entry0000/instrument/detector/data", "entry1/tomo_entry/unused"),
    ],
)
def test_sides_in_another_scan(tmp_path, dls, side):
    other = scans.write_nxtomo(tmp_path / "other.nx", DATA + 1)
    key = None if side.image_key_path is None else "entry0000/instrument/detector/image_key"
    options = LoaderOptions(flats=SideData(other, side.data_path, key), darks="ignore")
    with open_source(dls, options) as source:
        np.testing.assert_array_equal(source.read_side("flats", 0, 0, 0), DATA[scans.KEYS == 1] + 1)
        assert source.dummies == ("darks",)


@pytest.mark.parametrize("n_frames", [15, 14])
def test_a_layout_helps_out_other_data_of_as_many_frames(dls, n_frames):
    with h5py.File(dls, "a") as file:
        file["processed/data"] = DATA[:n_frames] * 2
    with open_source(dls, LoaderOptions(data_path="processed/data")) as source:
        as_many = n_frames == scans.KEYS.size
        assert source.spec.shape[0] == (9 if as_many else n_frames)
        assert (source.angles is not None) == as_many
        assert (source.flats is not None) == as_many


def test_a_scan_behind_links_is_found(tmp_path, dls):
    path = tmp_path / "master.h5"
    with h5py.File(path, "w") as file:
        file["raw"] = h5py.ExternalLink(dls.name, "entry1")
        file["runs/one/scan"] = h5py.SoftLink("/raw/tomo_entry")
        file["runs/loop"] = h5py.SoftLink("/")
    with h5py.File(dls, "a") as file:
        file["entry1/tomo_entry/definition"] = "NXtomo"
    with open_source(path) as source, open_source(dls) as expected:
        assert source.spec == expected.spec
        assert (source.flats, source.darks) == (expected.flats, expected.darks)


def test_stacks_behind_links_are_listed(tmp_path, dls):
    path = tmp_path / "master.h5"
    with h5py.File(path, "w") as file:
        file["somewhere"] = h5py.ExternalLink(dls.name, "entry1/tomo_entry/data/data")
        file["nowhere"] = h5py.ExternalLink("lost.h5", "data")
    with pytest.raises(SourceError, match=r"3D data sets in the file: /somewhere \(15x7x11 uint16"):
        open_source(path)


def test_further_scans_of_a_file_are_told(tmp_path, caplog):
    path = scans.write_nxtomo(tmp_path / "series.nx", DATA)
    with h5py.File(path, "a") as file:
        for number in range(1, 9):
            file[f"entry{number:04d}"] = file["entry0000"]
        file["entry0000x/definition"] = "NXtomo"  # without data
    with open_source(path):
        pass
    (record,) = caplog.records
    assert "entry0000/instrument/detector/data is read" in record.getMessage()
    assert "further scans, entry0001, entry0002," in record.getMessage()
    assert "entry0006 and 2 more: give data_path" in record.getMessage()
    caplog.clear()
    with open_source(path, LoaderOptions(data_path="/entry0003/instrument/detector/data")):
        assert not caplog.records
