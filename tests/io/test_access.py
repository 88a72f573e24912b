"""Slices in memory, and whether the rows of a scan are read without the rest of its frames."""

import h5py
import numpy as np
import pytest
import tifffile

from maxslices.core.arrays import ArraySpec
from maxslices.devices import select_backend
from maxslices.devices.in_place import slices_in_place
from maxslices.io import MemoryStore, SupportsWindow, open_source

SPEC = ArraySpec((4, 6, 5), np.dtype("uint16"))
DATA = np.arange(4 * 6 * 5, dtype=np.uint16).reshape(SPEC.shape)


@pytest.mark.parametrize("slice_dim", [0, 1])
def test_windows_are_the_memory_itself_and_methods_on_the_cpu_cannot_write_to_it(slice_dim):
    with open_source(DATA) as source, MemoryStore(SPEC) as store:
        store.write(0, 0, DATA)
        for each in (source, store):
            assert isinstance(each, SupportsWindow)
            window = each.window(slice_dim, 1, 3)
            np.testing.assert_array_equal(window, DATA.take((1, 2), axis=slice_dim))
            view = slices_in_place(each, select_backend("cpu"), slice_dim, 1, 3)
            if slice_dim == 1:
                assert view is None  # the rows of several projections have gaps between them
            else:
                assert not view.flags.writeable
                assert np.shares_memory(view, window)


def test_a_file_has_no_windows(tmp_path):
    np.save(tmp_path / "scan.npy", DATA)
    with open_source(tmp_path / "scan.npy") as source:
        assert source.window(1, 0, 2) is None
        assert source.side_window("flats", 0, 0, 2) is None


FRAMES = np.random.default_rng(3).integers(0, 4000, (17, 64, 80), np.uint16)


def hdf5(path, **options):
    with h5py.File(path, "w") as file:
        file.create_dataset("exchange/data", data=FRAMES, **options)
        file["exchange/theta"] = np.linspace(0, 180, len(FRAMES))


def virtual(path):
    hdf5(path.with_name("parts.h5"))
    layout = h5py.VirtualLayout(FRAMES.shape, FRAMES.dtype)
    layout[:] = h5py.VirtualSource(path.with_name("parts.h5"), "exchange/data", FRAMES.shape)
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("exchange/data", layout)
        file["exchange/theta"] = np.linspace(0, 180, len(FRAMES))


CASES = {
    "contiguous.h5": (hdf5, True),
    "frames.h5": (lambda path: hdf5(path, chunks=(1, 64, 80)), True),
    "blocks.h5": (lambda path: hdf5(path, chunks=(17, 32, 40)), False),
    "small blocks.h5": (lambda path: hdf5(path, chunks=(3, 2, 4)), False),
    "deflate.h5": (lambda path: hdf5(path, chunks=(1, 64, 80), compression="gzip"), False),
    "shuffled.h5": (lambda path: hdf5(path, chunks=(17, 32, 40), shuffle=True), False),
    "lzf.h5": (lambda path: hdf5(path, chunks=(1, 64, 80), compression="lzf"), False),
    "virtual.h5": (virtual, False),
    "array.npy": (lambda path: np.save(path, FRAMES), True),
    "plain.tif": (lambda path: tifffile.imwrite(path, FRAMES), True),
    "deflate.tif": (lambda path: tifffile.imwrite(path, FRAMES, compression="zlib"), False),
    "tiles.tif": (lambda path: tifffile.imwrite(path, FRAMES, tile=(16, 16)), False),
}


@pytest.mark.parametrize("name", CASES)
def test_a_scan_says_whether_its_rows_are_read_alone(tmp_path, name):
    write, expected = CASES[name]
    write(tmp_path / name)
    with open_source(tmp_path / name) as source:
        assert source.reads_rows is expected
        rows = np.empty((17, 2, 80), np.uint16)
        source.read(1, 2, 4, rows)
    assert np.array_equal(rows, FRAMES[:, 2:4])
