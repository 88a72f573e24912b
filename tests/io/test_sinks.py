from __future__ import annotations

import errno
import os
import resource
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st

from maxslices.core.arrays import ArraySpec
from maxslices.errors import LostResultError, StoreError, UsageError
from maxslices.io import create_sink
from maxslices.io.results import hdf5_sink
from maxslices.system.disk_space import check_free_space, preallocate
from maxslices.tuning.file_transfer import is_safe_to_map

pytestmark = pytest.mark.usefixtures("small_parts")

DATA = np.arange(5 * 7 * 11, dtype="f4").reshape(5, 7, 11)
SPEC = ArraySpec(DATA.shape, DATA.dtype)


def take(data: np.ndarray, slice_dim: int, start: int, stop: int) -> np.ndarray:
    return data[start:stop] if slice_dim == 0 else data[:, start:stop]


def blocks(data: np.ndarray, slice_dim: int, size: int):
    for start in range(0, data.shape[slice_dim], size):
        yield start, take(data, slice_dim, start, start + size)


def written(path, format, slice_dim: int, data=DATA):
    with create_sink(path, ArraySpec(data.shape, data.dtype), slice_dim, format) as sink:
        for start, block in blocks(data, slice_dim, 2):
            sink.write(slice_dim, start, block)
        return sink.path


@settings(max_examples=60, deadline=None)
@given(
    viewed=st.sampled_from([0, 1]),
    order=st.permutations(range(4)),
    slice_dim=st.sampled_from([0, 1]),
    size=st.integers(1, 7),
)
def test_hdf5_takes_blocks_along_either_dim_in_any_order(
    tmp_path_factory, viewed, order, slice_dim, size
):
    folder = tmp_path_factory.mktemp("sink")
    pieces = list(blocks(DATA, slice_dim, size))
    rank = {i: r for r, i in enumerate(order)}
    pieces.sort(key=lambda piece: rank[piece[0] % 4])
    with create_sink(folder / "result.h5", SPEC, viewed) as sink:
        for start, block in pieces:
            sink.write(slice_dim, start, block)
        path = sink.path
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["entry/data/data"][...], DATA)


@pytest.mark.parametrize("slice_dim", [0, 1])
@pytest.mark.parametrize("is_safe", [True, False])
def test_large_blocks_are_written_in_the_way_that_was_faster(
    tmp_path, monkeypatch, slice_dim, is_safe
):
    data = np.random.default_rng(3).random((40, 40, 301), np.float32)
    used, clock = [], [0.0]

    def noting(name):
        write = getattr(hdf5_sink.Hdf5Sink, name)

        def noted(sink, *args):
            used.append(name)
            write(sink, *args)
            clock[0] += 2.0 if name == slower else 1.0

        noted.__name__ = name
        return noted

    monkeypatch.setattr(hdf5_sink, "is_safe_to_map", lambda path: is_safe)
    monkeypatch.setattr(hdf5_sink, "_LARGE_BYTES", data.nbytes // 10)
    monkeypatch.setattr(hdf5_sink, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    for slower, faster in (("_write_map", "_write_calls"), ("_write_calls", "_write_map")):
        used.clear()
        with monkeypatch.context() as patched:
            for name in ("_write_map", "_write_calls"):
                patched.setattr(hdf5_sink.Hdf5Sink, name, noting(name))
            with create_sink(tmp_path / slower, ArraySpec(data.shape, "f4"), slice_dim) as sink:
                sink.write(slice_dim, 0, take(data, slice_dim, 0, 1))  # too small to tell
                for start in range(1, 36, 5):
                    sink.write(slice_dim, start, take(data, slice_dim, start, start + 5))
                sink.write(slice_dim, 36, take(data, slice_dim, 36, 40))
                path = sink.path
        with h5py.File(path) as file:
            np.testing.assert_array_equal(file["entry/data/data"][...], data)
        first = ["_write_calls"] * 2
        if not is_safe or slice_dim == 1:  # whose slices have gaps in the file
            assert set(used) == {"_write_calls"}
        else:
            assert used == [*first, "_write_map", *[faster] * 6]


@pytest.mark.parametrize("is_safe", [True, False])
def test_processes_that_share_a_file_write_by_maps_alone(tmp_path, monkeypatch, is_safe):
    monkeypatch.setattr(hdf5_sink, "is_safe_to_map", lambda path: is_safe)
    monkeypatch.setattr(hdf5_sink, "_LARGE_BYTES", DATA[0].nbytes)
    way = "_write_calls" if is_safe else "_write_map"
    monkeypatch.setattr(hdf5_sink.Hdf5Sink, way, lambda *args: pytest.fail(f"used {way}"))
    with create_sink(tmp_path / "result", SPEC, 0) as whole:
        with create_sink(tmp_path / "result", SPEC, 0, start="join") as joined:
            for start, block in blocks(DATA, 0, 2):
                joined.write(0, start, block)
            joined.close()
        path = whole.path
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["entry/data/data"][...], DATA)


@pytest.mark.parametrize(("type", "is_safe"), [("ext4", True), ("xfs", True), ("zfs", False)])
def test_a_file_is_memory_only_where_its_room_is_sure(tmp_path, monkeypatch, type, is_safe):
    device = tmp_path.stat().st_dev
    lines = (
        "22 1 0:9999 / /other rw shared:1 - zfs pool rw\n"
        f"23 1 {os.major(device)}:{os.minor(device)} / / rw shared:2 - {type} /dev/vda rw\n"
    )
    monkeypatch.setattr("pathlib.Path.read_text", lambda path: lines)
    assert is_safe_to_map(tmp_path) is is_safe


@pytest.mark.parametrize("slice_dim", [0, 1])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_tiffs_hold_what_was_written(tmp_path, slice_dim, dtype):
    data = DATA.astype(dtype)
    path = written(tmp_path / "slices", "tiff", slice_dim, data)
    files = sorted(path.iterdir())
    assert [f.name for f in files[:2]] == ["slices_00000.tif", "slices_00001.tif"]
    stack = np.stack([tifffile.imread(f) for f in files], axis=slice_dim)
    np.testing.assert_array_equal(stack, data)


def test_a_tiff_is_not_written_in_parts(tmp_path):
    with create_sink(tmp_path / "a", SPEC, 0, "tiff") as sink, pytest.raises(UsageError):
        sink.write(1, 0, DATA[:, :2])


FORMATS = pytest.mark.parametrize("format", ["hdf5", "tiff"])


@FORMATS
def test_a_closed_result_takes_no_more_blocks(tmp_path, format):
    with create_sink(tmp_path / "a", SPEC, 0, format) as sink:
        sink.write(0, 0, DATA)
        sink.close()
        sink.close()
        with pytest.raises(StoreError, match="takes no more blocks"):
            sink.write(0, 0, DATA)
    assert list(tmp_path.iterdir()) == [sink.path]


@FORMATS
def test_nothing_is_overwritten(tmp_path, format):
    written(tmp_path / "a", format, 0)
    with pytest.raises(StoreError, match="already exists"):
        create_sink(tmp_path / "a", SPEC, 0, format)


@FORMATS
def test_a_place_that_cannot_be_made(tmp_path, format):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="a file has the name of its folder"):
        create_sink(tmp_path / "file" / "a", SPEC, 0, format)


@FORMATS
def test_a_folder_without_permission(tmp_path, format, unprivileged):
    tmp_path.chmod(0o555)
    with unprivileged(), pytest.raises(StoreError, match=r"cannot write .* \(Permission denied"):
        create_sink(tmp_path / "a", SPEC, 0, format)
    tmp_path.chmod(0o755)


def test_too_little_room_is_said_before(tmp_path, monkeypatch):
    usage = type("usage", (), {"free": 1500})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    for format in ("hdf5", "tiff"):
        with pytest.raises(StoreError, match=r"a.*: needs .* kB, but the disk has 1.50 kB free"):
            create_sink(tmp_path / "sub" / "a", SPEC, 0, format)
    check_free_space(tmp_path, 1500)
    with pytest.raises(StoreError):
        check_free_space(tmp_path / "not" / "there", 1501)


@FORMATS
def test_a_file_that_may_not_be_so_large(tmp_path, format):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(StoreError, match=r"a.*: files .* limited to 100 kB. Raise the limit"):
            create_sink(tmp_path / "a", ArraySpec((10, 200, 200), "float32"), 0, format).write(
                0, 0, np.ones((10, 200, 200), np.float32)
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@FORMATS
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errno.ENOSPC, "the disk is full: .* are needed, and .* are free"),
        (errno.EDQUOT, "full within its quota"),
    ],
)
def test_a_disk_that_fills_up(tmp_path, monkeypatch, format, error, said):
    def no_space(*args: object, **kwargs: object) -> None:
        raise OSError(error, os.strerror(error))

    def run() -> None:
        with create_sink(tmp_path / "a", SPEC, 0, format) as sink:
            sink.write(0, 0, DATA[:2])
            monkeypatch.setattr(os, "pwrite", no_space)
            sink.write(0, 2, DATA[2:4])

    with pytest.raises(StoreError, match=f"a.*{said}"):
        run()


@FORMATS
def test_a_block_that_does_not_fit_in(tmp_path, format):
    with create_sink(tmp_path / "a", SPEC, 0, format) as sink:
        with pytest.raises(UsageError, match="4:6 are not within the 5 slices"):
            sink.write(0, 4, DATA[:2])
        with pytest.raises(UsageError, match="float64"):
            sink.write(0, 0, DATA[:2].astype("f8"))


def test_a_file_that_hdf5_had_open_when_it_was_killed_opens_again(tmp_path):
    """A run opens it for its notes, and later versions of the format have a mark that stays."""
    sink = create_sink(tmp_path / "a", SPEC, 0)
    sink.close()
    (part,) = tmp_path.iterdir()
    with h5py.File(part, "r+") as file:
        file.attrs["note"] = "text"
        file.flush()
        killed = part.read_bytes()
    part.write_bytes(killed)
    with create_sink(tmp_path / "a", SPEC, 0, start="resume") as sink:
        sink.write(0, 0, DATA)
        path = sink.path
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["entry/data/data"], DATA)


def test_the_place_of_the_data_is_taken_first(tmp_path):
    """A full disk is found before anything is computed."""
    spec = ArraySpec((16, 256, 256), "float32")
    with create_sink(tmp_path / "a", spec, 0):
        (part,) = tmp_path.iterdir()
        assert part.stat().st_size >= spec.nbytes
        taken_bytes = part.stat().st_blocks * 512
    with (tmp_path / "other").open("xb") as file:
        if not preallocate(file.fileno(), spec.nbytes):
            pytest.skip("this file system allocates nothing in advance")
    assert taken_bytes >= spec.nbytes


@pytest.mark.parametrize("format", ["hdf5", "tiff"])
def test_a_result_that_another_process_left_is_continued(tmp_path, format):
    data = np.random.default_rng(0).random((20, 7, 30), np.float32)
    spec = ArraySpec(data.shape, data.dtype)
    first = create_sink(tmp_path / "r", spec, 0, format)
    first.write(0, 0, data[:8])
    first.close()
    with pytest.raises(StoreError, match="takes no more blocks"):
        first.write(0, 8, data[8:])
    sink = create_sink(tmp_path / "r", spec, 0, format, "resume")
    sink.write(0, 8, data[8:])
    sink.close()
    whole = create_sink(tmp_path / "whole", spec, 0, format)
    whole.write(0, 0, data)
    whole.close()
    path = whole.path
    if format == "hdf5":
        for each in (sink.path, path):
            with h5py.File(each) as file:
                np.testing.assert_array_equal(file["entry/data/data"], data)
    else:
        pairs = zip(sorted(sink.path.iterdir()), sorted(path.iterdir()), strict=True)
        assert all(one.read_bytes() == other.read_bytes() for one, other in pairs)


@pytest.mark.parametrize("format", ["hdf5", "tiff"])
def test_what_is_no_unfinished_result_is_not_gone_on_with(tmp_path, format):
    spec = ArraySpec((4, 3, 2), "f4")
    part = tmp_path / "r"
    with pytest.raises(StoreError, match="the unfinished result is not there: start anew"):
        create_sink(tmp_path / "r", spec, 0, format, "resume")
    (tmp_path / "other").write_text("mine")
    part.symlink_to(tmp_path / "other")
    with pytest.raises(StoreError, match="the unfinished result is not there: start anew"):
        create_sink(tmp_path / "r", spec, 0, format, "resume")
    part.unlink()
    if format == "hdf5":
        create_sink(tmp_path / "r", spec, 0).close()
        part.write_bytes(part.read_bytes()[:100])
        with pytest.raises(LostResultError, match=r"no unfinished result .*: start anew"):
            create_sink(tmp_path / "r", spec, 0, format, "resume")
        part.unlink()
        for other in (ArraySpec((4, 3, 3), "f4"), ArraySpec((4, 3, 2), "f8")):
            create_sink(tmp_path / "r", other, 0).close()
            with pytest.raises(StoreError, match="is no unfinished result"):
                create_sink(tmp_path / "r", spec, 0, "hdf5", "resume")
            part.unlink()
