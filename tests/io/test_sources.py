from __future__ import annotations

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxslices.core.arrays import ArraySpec
from maxslices.errors import SourceError, UsageError
from maxslices.io import ArrayScan, LoaderOptions, Preview, SideData, Source, open_source

from . import scans

pytestmark = pytest.mark.usefixtures("small_parts")

KINDS = (
    *("dls", "chunked", "big-endian", "esrf", "nxtomo", "exchange"),
    *("npy", "npy-big-endian", "tiffs", "tiffs-big-endian", "tiffs-deflate"),
    *("multipage", "multipage-deflate", "imagej", "array"),
)
HDF5_KINDS = KINDS[:6]
KEYED = KINDS[:5]
"""Those with flats and darks among the projections."""
DATA = scans.frames()
SCAN = scans.projections(DATA)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    written = scans.write_all(tmp_path_factory.mktemp("scans"), DATA)
    assert {*written, "array"} == set(KINDS)
    return {**written, "array": SCAN}


def block(source: Source, slice_dim: int, start: int, stop: int) -> np.ndarray:
    out = np.empty(source.spec.with_slices(slice_dim, stop - start).shape, source.spec.dtype)
    source.read(slice_dim, start, stop, out)
    return out


def span(length: int):
    return st.tuples(st.integers(0, length - 1), st.integers(1, length)).map(
        lambda ends: (min(ends[0], ends[1] - 1), max(ends[0] + 1, ends[1]))
    )


@settings(max_examples=150, deadline=None)
@given(data=st.data(), kind=st.sampled_from(KINDS), slice_dim=st.sampled_from([0, 1]))
def test_every_kind_gives_the_same_blocks(paths, data, kind, slice_dim):
    windows = [data.draw(span(n)) for n in SCAN.shape]
    scan = SCAN[tuple(slice(*w) for w in windows)]
    if kind in KEYED:  # a preview counts frames
        indices = np.flatnonzero(scans.KEYS == 0)
        windows[0] = (int(indices[windows[0][0]]), int(indices[windows[0][1] - 1]) + 1)
    start, stop = data.draw(span(scan.shape[slice_dim]))
    with open_source(paths[kind], LoaderOptions(preview=Preview(*windows))) as source:
        assert source.spec == ArraySpec(scan.shape, scan.dtype)
        assert source.detector_start == (windows[1][0], windows[2][0])
        read = block(source, slice_dim, start, stop)
    expected = scan[start:stop] if slice_dim == 0 else scan[:, start:stop]
    np.testing.assert_array_equal(read, expected)


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64"]
)
def test_every_dtype_is_read_as_it_is(tmp_path, dtype):
    data = scans.frames(dtype)
    paths = scans.write_all(tmp_path, data)
    for path in paths.values():
        with open_source(path) as source:
            assert source.spec.dtype == np.dtype(dtype)
            assert source.spec.dtype.isnative
            np.testing.assert_array_equal(scans.whole(source), scans.projections(data))


def test_an_npy_with_a_longer_header(tmp_path):
    header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': {SCAN.shape}, }}".encode()
    header = header.ljust(181) + b"\n"
    start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
    (tmp_path / "a.npy").write_bytes(start + header + SCAN.tobytes())
    np.testing.assert_array_equal(scans.whole(tmp_path / "a.npy"), SCAN)


@pytest.mark.parametrize("kind", HDF5_KINDS)
def test_hdf5_knows_flats_darks_and_angles(paths, kind):
    with open_source(paths[kind]) as source:
        assert source.flats == ArraySpec((3, 7, 11), np.uint16)
        assert source.darks == ArraySpec((2, 7, 11), np.uint16)
        expected = np.deg2rad(scans.DEGREES[scans.KEYS == 0]).astype(np.float32)
        np.testing.assert_array_equal(source.angles, expected)
        for name, kind_of in (("flats", 1), ("darks", 2)):
            side = DATA[kind_of == scans.KEYS]
            np.testing.assert_array_equal(source.read_side(name, 0, 3, 4), side)
            np.testing.assert_array_equal(source.read_side(name, 1, 2, 5), side[:, 2:5])


@pytest.mark.parametrize("kind", ["npy", "tiffs", "multipage", "array"])
def test_files_of_projections_alone_have_no_sides_and_angles(paths, kind):
    with open_source(paths[kind]) as source:
        assert source.flats is None
        assert source.darks is None
        assert source.angles is None
        with pytest.raises(SourceError, match="there are no flats in this scan"):
            source.read_side("flats", 0, 0, 1)


@pytest.mark.parametrize("kind", ["dls", "npy", "tiffs", "array"])
@pytest.mark.parametrize("side_kind", ["npy", "tiffs", "multipage", "exchange"])
def test_sides_and_angles_are_taken_from_elsewhere(paths, kind, side_kind):
    data_path = "exchange/data" if side_kind == "exchange" else "auto"
    elsewhere = SideData(paths[side_kind], data_path)
    options = LoaderOptions(
        flats=elsewhere,
        darks="ignore",
        rotation_angles=list(range(9)),
        preview=Preview(detector_y=(1, 5), detector_x=(2, None), angles=(3, 6)),
    )
    with open_source(paths[kind], options) as source:
        assert source.dummies == ("darks",)
        np.testing.assert_array_equal(source.read_side("darks", 1, 1, 3), np.zeros((1, 2, 9), "u2"))
        assert source.flats == ArraySpec((9, 4, 9), np.uint16)
        np.testing.assert_array_equal(source.read_side("flats", 1, 1, 3), SCAN[:, 2:4, 2:])
        first = 1 if kind == "dls" else 3  # frames are counted, and two before are none
        expected = np.arange(first, first + len(source.angles))
        np.testing.assert_array_equal(source.angles, np.deg2rad(expected).astype(np.float32))
        read = block(source, 0, 0, len(expected))
        np.testing.assert_array_equal(read, SCAN[expected, 1:5, 2:])


def test_array_source_takes_sides_and_radians():
    with ArrayScan(SCAN, flats=DATA[:2], darks=DATA[3], angles=np.arange(9) / 3) as source:
        assert source.flats == ArraySpec((2, 7, 11), np.uint16)
        assert source.darks == ArraySpec((1, 7, 11), np.uint16)
        np.testing.assert_array_equal(source.angles, np.arange(9, dtype=np.float32) / 3)
        np.testing.assert_array_equal(source.read_side("darks", 1, 1, 2)[0], DATA[3, 1:2])


def test_an_open_source_is_passed_through_and_a_list_is_not_one():
    source = ArrayScan(SCAN)
    assert open_source(source) is source
    with pytest.raises(SourceError, match="a scan is a path, a NumPy array or a Source, not list"):
        open_source([1, 2, 3])


def test_a_closed_source_says_so(paths):
    for kind in ("dls", "array"):
        source = open_source(paths[kind])
        source.close()
        source.close()
        with pytest.raises(SourceError, match="is closed"):
            block(source, 0, 0, 1)


@pytest.mark.parametrize(
    ("slice_dim", "start", "stop", "out", "message"),
    [
        (2, 0, 1, np.empty((9, 7, 1), "u2"), "slice_dim is 0"),
        (0, 5, 10, np.empty((5, 7, 11), "u2"), "5:10 are not within the 9 slices"),
        (0, 5, 5, np.empty((0, 7, 11), "u2"), "5:5 are not within"),
        (1, 0, 2, np.empty((9, 7, 11), "u2"), "are 9x2x11 uint16, the block given is 9x7x11"),
        (1, 0, 2, np.empty((9, 2, 11), "f4"), "the block given is 9x2x11 float32"),
        (1, 0, 2, np.empty((9, 7, 11), "u2")[:, :2], "must be C-contiguous"),
    ],
)
def test_a_block_that_is_none_is_refused(slice_dim, start, stop, out, message):
    with pytest.raises(UsageError, match=message):
        ArrayScan(SCAN).read(slice_dim, start, stop, out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": SCAN[0]}, "three dims"),
        ({"data": SCAN[np.newaxis]}, "three dims"),
        ({"data": SCAN[:0]}, "at least 1"),
        ({"data": SCAN.astype(complex)}, "complex128, which is not grey values"),
        ({"data": SCAN.astype(str)}, "not grey values"),
        ({"data": SCAN, "angles": np.arange(8)}, "8 rotation angles for 9 projections"),
        ({"data": SCAN, "angles": ["a"] * 9}, "not numbers"),
        ({"data": SCAN, "angles": np.full(9, np.nan)}, "9 of 9 rotation angles are not numbers"),
        ({"data": SCAN, "angles": [1e300, *range(8)]}, "1 of 9 rotation angles are not numbers"),
        ({"data": SCAN, "angles": np.ones((9, 1))}, "must be a list, not 2-dimensional"),
        ({"data": SCAN, "flats": SCAN[:, :6]}, "flats of 6x11 pixels do not fit .* 7x11"),
        ({"data": SCAN[..., np.newaxis]}, r"save it without its dims of 1 \(numpy.squeeze\)"),
    ],
)
def test_arrays_that_are_no_scan_are_refused(arguments, message):
    with pytest.raises(SourceError, match=message):
        ArrayScan(**arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (LoaderOptions(data_path="/entry/data"), "is not an HDF5 file, so it has no data_path"),
        (LoaderOptions(rotation_angles="/theta"), "rotation angles cannot be at /theta"),
        (LoaderOptions(flats=SideData(None)), "flats cannot be in it: give their file"),
        (LoaderOptions(rotation_angles=[1.0]), "1 rotation angles for 9 projections"),
        (LoaderOptions(preview=Preview(angles=(4, 4))), "preview angles 4:4 is not within"),
        (LoaderOptions(preview=Preview(detector_y=(0, 8))), "preview detector_y 0:8 .* 7"),
        (LoaderOptions(preview=Preview(detector_x=(-1, 8))), "preview detector_x -1:8 .* 11"),
    ],
)
@pytest.mark.parametrize("kind", ["npy", "tiffs", "array"])
def test_options_that_do_not_go_with_a_plain_file(paths, kind, options, message):
    with pytest.raises(SourceError, match=message):
        open_source(paths[kind], options)


@pytest.mark.parametrize("kind", ["exchange", "data_path", "npy"])
def test_one_frame_of_flats_or_darks_may_have_two_dims(tmp_path, kind):
    data = scans.frames()
    flat, dark = data[1], data[0]
    options = LoaderOptions()
    path = scans.write_exchange(tmp_path / "a.h5", data)
    with h5py.File(path, "r+") as file:
        del file["exchange/data_white"], file["exchange/data_dark"]
        names = ("data_white", "data_dark") if kind == "exchange" else ("w", "d")
        for name, frame in zip(names, (flat, dark), strict=True):
            file[f"exchange/{name}"] = frame
    if kind == "data_path":
        options = LoaderOptions(
            flats=SideData(path, "/exchange/w"), darks=SideData(path, "/exchange/d")
        )
    if kind == "npy":
        for name, frame in (("w", flat), ("d", dark)):
            np.save(tmp_path / f"{name}.npy", frame)
        options = LoaderOptions(
            flats=SideData(tmp_path / "w.npy"), darks=SideData(tmp_path / "d.npy")
        )
    with open_source(path, options) as source:
        for name, frame in (("flats", flat), ("darks", dark)):
            assert np.array_equal(source.read_side(name, 0, 0, 1), [frame])
            assert np.array_equal(source.read_side(name, 1, 2, 5), [frame[2:5]])
