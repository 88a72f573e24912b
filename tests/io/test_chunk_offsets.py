"""Reading by offset gives the same as the HDF5 library, for all layouts."""

from __future__ import annotations

import itertools
import struct
import zlib

import h5py
import numpy as np
import pytest

from maxslices.errors import SourceError
from maxslices.io.hdf5.chunks import locate_data
from maxslices.io.hdf5.frames import Hdf5File, Hdf5Frames

SHAPE = (11, 13, 17)
CHUNKS = [(1, 13, 17), (3, 13, 17), (3, 5, 17), (2, 4, 6), (11, 1, 17), (1, 13, 6), SHAPE]
FILTERS = {
    "plain": {},
    "deflate": {"compression": "gzip"},
    "shuffle+deflate": {"compression": "gzip", "shuffle": True},
    "shuffle": {"shuffle": True},
    "fletcher32": {"fletcher32": True},
    "lzf": {"compression": "lzf"},
}
DTYPES = ["u1", "<u2", ">u2", "<i2", "<f4", ">f4", "<f8"]
WINDOWS = [
    ((0, 11), (0, 13), (0, 17)),
    ((2, 9), (0, 13), (0, 17)),
    ((0, 11), (4, 7), (0, 17)),
    ((3, 4), (12, 13), (16, 17)),
    ((1, 8), (3, 11), (5, 13)),
]


pytestmark = pytest.mark.usefixtures("small_parts")


def write(path, dtype, chunks, kind, *, libver="latest", gaps=False, **kwargs):
    values = np.random.default_rng(1).integers(0, 120, SHAPE).astype(dtype)
    with h5py.File(path, "w", libver=libver) as file:
        data = file.create_dataset(
            "data", SHAPE, dtype, chunks=chunks, fillvalue=7, **FILTERS[kind], **kwargs
        )
        where = np.s_[4:7] if gaps else np.s_[...]
        data[where] = values[where]
    return path


SOME_FRAMES = [[1, 3, 5, 7], [0, 1, 4, 5, 8], [2]]
"""Every second frame, and frames that are not evenly spaced."""


def box_of(frames: Hdf5Frames, window) -> np.ndarray:
    out = np.full([b - a for a, b in window], 99, frames.spec.dtype)
    frames.read(np.arange(*window[0]), *window[1:], out)
    return out


def left_to_hdf5(*args, **kwargs):
    raise AssertionError("was left to HDF5")


def assert_same(path) -> None:
    """Assert that all windows are read as h5py reads them, and without it where possible."""
    with h5py.File(path) as file:
        expected = file["data"][...]
        is_located = locate_data(file["data"]) is not None
    frames = Hdf5Frames(Hdf5File(path), "data")
    with pytest.MonkeyPatch.context() as patch:
        if is_located:
            patch.setattr(h5py.Dataset, "read_direct", left_to_hdf5)
        for window in WINDOWS:
            part = expected[tuple(slice(*span) for span in window)]
            np.testing.assert_array_equal(box_of(frames, window), part)
        for some in SOME_FRAMES:
            out = np.empty((len(some), 5, 7), frames.spec.dtype)
            frames.read(np.array(some), (3, 8), (2, 9), out)
            np.testing.assert_array_equal(out, expected[some, 3:8, 2:9])
    frames.close()


@pytest.mark.parametrize(("chunks", "kind"), [(None, "plain"), *itertools.product(CHUNKS, FILTERS)])
def test_every_layout(tmp_path, chunks, kind):
    for i, (dtype, gaps) in enumerate(itertools.product(DTYPES, [False, True])):
        assert_same(write(tmp_path / f"{i}.h5", dtype, chunks, kind, gaps=gaps))


@pytest.mark.parametrize("libver", ["earliest", "v108", "v110", "latest"])
@pytest.mark.parametrize("maxshape", [None, (None, 13, 17), (None, None, None)])
@pytest.mark.parametrize("chunks", [(1, 13, 17), (3, 5, 17), SHAPE, (20, 13, 17)])
def test_every_index_of_chunks(tmp_path, chunks, maxshape, libver):
    if chunks[0] > SHAPE[0] and maxshape is None:
        pytest.skip("a chunk is no larger than data that do not grow")
    for kind, gaps in itertools.product(["plain", "deflate"], [False, True]):
        path = tmp_path / f"{kind}{gaps}.h5"
        assert_same(write(path, "<u2", chunks, kind, libver=libver, gaps=gaps, maxshape=maxshape))


def test_links_into_other_files_and_what_only_hdf5_can_read(tmp_path):
    path = tmp_path / "a.h5"
    write(tmp_path / "raw.h5", "<u2", (1, 13, 17), "plain")
    with h5py.File(path, "w") as file:
        file["data"] = h5py.ExternalLink("raw.h5", "data")
    assert_same(path)
    values = np.arange(np.prod(SHAPE), dtype="u2").reshape(SHAPE)
    (tmp_path / "raw").write_bytes(values.tobytes())
    with h5py.File(path, "w", userblock_size=512) as file:
        file["data"] = values
    assert_same(path)
    with h5py.File(path, "w") as file:
        where = [(str(tmp_path / "raw"), 0, h5py.h5f.UNLIMITED)]
        file.create_dataset("data", SHAPE, "u2", external=where)
    assert_same(path)
    with h5py.File(path, "w") as file:  # 12 bits of 16
        twelve = h5py.h5t.STD_U16LE.copy()
        twelve.set_precision(12)
        space = h5py.h5s.create_simple(SHAPE)
        data = h5py.h5d.create(file.id, b"data", twelve, space)
        data.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    with h5py.File(path) as file:
        assert locate_data(file["data"]) is None
    assert_same(path)


def test_chunks_that_were_left_uncompressed(tmp_path):
    path = write(tmp_path / "a.h5", "<u2", (1, 13, 17), "shuffle+deflate")
    values = np.arange(13 * 17, dtype="u2")
    with h5py.File(path, "a") as file:
        file["data"].id.write_direct_chunk((2, 0, 0), values.tobytes(), filter_mask=3)
    assert_same(path)


@pytest.mark.parametrize(
    ("before", "value"),
    [(32, 2**40), (32, 7), (32, 3), (32, 2**63 + 5), (0, 2**63 + 2)],
    ids=["far outside", "outside", "twice", "corner", "offset"],
)
def test_a_damaged_index_of_chunks(tmp_path, before, value):
    """HDF5 says nothing of most of these: it reads zeros."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        data = file.create_dataset("d", (7, 130, 140), "u2", chunks=(1, 130, 140))
        data[:] = 1
        places = []
        data.id.chunk_iter(places.append)
    raw = path.read_bytes()
    at = raw.index(struct.pack("<Q", places[4].byte_offset)) - before
    path.write_bytes(raw[:at] + struct.pack("<Q", value) + raw[at + 8 :])
    frames = Hdf5Frames(Hdf5File(path), "d")
    with pytest.raises(SourceError, match="index of its chunks is damaged"):
        frames.read(np.arange(7), (0, 130), (0, 140), np.empty((7, 130, 140), "u2"))
    frames.close()


def test_a_missing_filter_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.h5", "<u2", (1, 13, 17), "plain")
    with h5py.File(path, "w") as file:
        how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        how.set_chunk((1, 13, 17))
        how.set_filter(30000, h5py.h5z.FLAG_OPTIONAL, (1,))
        space = h5py.h5s.create_simple(SHAPE)
        data = h5py.h5d.create(file.id, b"data", h5py.h5t.NATIVE_UINT16, space, how)
        for i in range(SHAPE[0]):
            data.write_direct_chunk((i, 0, 0), bytes(100))
    frames = Hdf5Frames(Hdf5File(path), "data")
    with pytest.raises(SourceError, match=r"\(number 30000\), which is not installed: install"):
        box_of(frames, WINDOWS[0])
    frames.close()


@pytest.mark.parametrize("some", [[0, 2, 4, 6], [0, 1, 3, 4, 6]], ids=["every second", "some"])
def test_each_chunk_is_decompressed_once(tmp_path, monkeypatch, some):
    """Whichever of its frames are read: it takes as long as all of them."""
    data = np.arange(8 * 130 * 140, dtype=np.uint16).reshape(8, 130, 140)
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=data, chunks=(4, 65, 140), compression="gzip")
    begun, begin = [], zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", lambda: begun.append(1) or begin())
    frames = Hdf5Frames(Hdf5File(path), "data")
    out = np.empty((len(some), 130, 140), "u2")
    frames.read(np.array(some), (0, 130), (0, 140), out)
    frames.close()
    np.testing.assert_array_equal(out, data[some])
    assert len(begun) == 4
