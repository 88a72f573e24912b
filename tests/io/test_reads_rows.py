"""Whether the rows of a scan are read without the rest of its frames."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import tifffile

from maxslices.io import open_source

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
