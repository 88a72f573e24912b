from __future__ import annotations

import errno
import os
import resource

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxslices.core.arrays import ArraySpec
from maxslices.errors import LostResultError, StoreError, UsageError
from maxslices.io import Sink
from maxslices.io.results import sink as sinks
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


def stored(path):
    with h5py.File(path) as file:
        return file["entry/data/data"][()]


@settings(max_examples=60, deadline=None)
@given(
    order=st.permutations(range(4)),
    slice_dim=st.sampled_from([0, 1]),
    size=st.integers(1, 7),
)
def test_hdf5_takes_blocks_along_either_dim_in_any_order(tmp_path_factory, order, slice_dim, size):
    folder = tmp_path_factory.mktemp("sink")
    pieces = list(blocks(DATA, slice_dim, size))
    rank = {i: r for r, i in enumerate(order)}
    pieces.sort(key=lambda piece: rank[piece[0] % 4])
    with Sink(folder / "result.h5", SPEC) as sink:
        for start, block in pieces:
            sink.write(slice_dim, start, block)
        path = sink.path
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["entry/data/data"][...], DATA)


def count_calls(monkeypatch, name):
    """Count the calls that sinks make of an imported function."""
    calls, function = [], getattr(sinks, name)
    monkeypatch.setattr(sinks, name, lambda *args: calls.append(args) or function(*args))
    return calls


@pytest.mark.parametrize("slice_dim", [0, 1])
@pytest.mark.parametrize("is_safe", [True, False])
def test_large_blocks_are_written_by_calls_and_by_maps(tmp_path, monkeypatch, slice_dim, is_safe):
    data = np.random.default_rng(3).random((40, 40, 301), np.float32)
    monkeypatch.setattr(sinks, "is_safe_to_map", lambda path: is_safe)
    monkeypatch.setattr(sinks, "LARGE_BYTES", data.nbytes // 10)
    maps, writes = (count_calls(monkeypatch, name) for name in ("file_map", "write_rows"))
    with Sink(tmp_path / "a", ArraySpec(data.shape, "f4")) as sink:
        for start, block in blocks(data, slice_dim, 5):
            sink.write(slice_dim, start, block)
    assert stored(sink.path).tobytes() == data.tobytes()
    assert writes
    assert bool(maps) == (is_safe and slice_dim == 0)  # along dim 1 slices have gaps in the file


@pytest.mark.parametrize("is_safe", [True, False])
def test_processes_that_share_a_file_write_by_maps_alone(tmp_path, monkeypatch, is_safe):
    monkeypatch.setattr(sinks, "is_safe_to_map", lambda path: is_safe)
    monkeypatch.setattr(sinks, "LARGE_BYTES", DATA[0].nbytes)
    maps, writes = (count_calls(monkeypatch, name) for name in ("file_map", "write_rows"))
    with Sink(tmp_path / "a", SPEC), Sink(tmp_path / "a", SPEC, "join") as joined:
        for start, block in blocks(DATA, 0, 2):
            joined.write(0, start, block)
    assert stored(joined.path).tobytes() == DATA.tobytes()
    assert (bool(maps), bool(writes)) == (is_safe, not is_safe)


@pytest.mark.parametrize(("type", "is_safe"), [("ext4", True), ("xfs", True), ("zfs", False)])
def test_a_file_is_memory_only_where_its_room_is_sure(tmp_path, monkeypatch, type, is_safe):
    device = tmp_path.stat().st_dev
    lines = (
        "22 1 0:9999 / /other rw shared:1 - zfs pool rw\n"
        f"23 1 {os.major(device)}:{os.minor(device)} / / rw shared:2 - {type} /dev/vda rw\n"
    )
    monkeypatch.setattr("pathlib.Path.read_text", lambda path: lines)
    assert is_safe_to_map(tmp_path) is is_safe


def test_a_closed_result_takes_no_more_blocks(tmp_path):
    with Sink(tmp_path / "a", SPEC) as sink:
        sink.write(0, 0, DATA)
        sink.close()
        sink.close()
        with pytest.raises(StoreError, match="takes no more blocks"):
            sink.write(0, 0, DATA)
    assert list(tmp_path.iterdir()) == [sink.path]


def test_nothing_is_overwritten(tmp_path):
    Sink(tmp_path / "a", SPEC).close()
    with pytest.raises(StoreError, match="already exists"):
        Sink(tmp_path / "a", SPEC)


def test_a_place_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="a file has the name of its folder"):
        Sink(tmp_path / "file" / "a", SPEC)


def test_a_folder_without_permission(tmp_path, unprivileged):
    tmp_path.chmod(0o555)
    with unprivileged(), pytest.raises(StoreError, match=r"cannot write .* \(Permission denied"):
        Sink(tmp_path / "a", SPEC)
    tmp_path.chmod(0o755)


def test_too_little_room_is_said_before(tmp_path, monkeypatch):
    usage = type("usage", (), {"free": 1500})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(StoreError, match=r"a.*: needs .* kB, but the disk has 1.50 kB free"):
        Sink(tmp_path / "sub" / "a", SPEC)
    check_free_space(tmp_path, 1500)
    with pytest.raises(StoreError):
        check_free_space(tmp_path / "not" / "there", 1501)


def test_a_file_that_may_not_be_so_large(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(StoreError, match=r"a.*: files .* limited to 100 kB. Raise the limit"):
            Sink(tmp_path / "a", ArraySpec((10, 200, 200), "float32")).write(
                0, 0, np.ones((10, 200, 200), np.float32)
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errno.ENOSPC, "the disk is full: .* are needed, and .* are free"),
        (errno.EDQUOT, "full within its quota"),
    ],
)
def test_a_disk_that_fills_up(tmp_path, monkeypatch, error, message):
    def no_space(*args: object, **kwargs: object) -> None:
        raise OSError(error, os.strerror(error))

    def run() -> None:
        with Sink(tmp_path / "a", SPEC) as sink:
            sink.write(0, 0, DATA[:2])
            monkeypatch.setattr(os, "pwrite", no_space)
            sink.write(0, 2, DATA[2:4])

    with pytest.raises(StoreError, match=f"a.*{message}"):
        run()


def test_a_block_that_does_not_fit_in(tmp_path):
    with Sink(tmp_path / "a", SPEC) as sink:
        with pytest.raises(UsageError, match="4:6 are not within the 5 slices"):
            sink.write(0, 4, DATA[:2])
        with pytest.raises(UsageError, match="float64"):
            sink.write(0, 0, DATA[:2].astype("f8"))


def test_a_file_that_hdf5_had_open_when_it_was_killed_opens_again(tmp_path):
    """A run opens it for its notes, and later versions of the format have a mark that stays."""
    path = tmp_path / "a"
    Sink(path, SPEC).close()
    with h5py.File(path, "r+") as file:
        file.attrs["note"] = "text"
        file.flush()
        killed = path.read_bytes()
    path.write_bytes(killed)
    with Sink(path, SPEC, "resume") as sink:
        sink.write(0, 0, DATA)
    assert stored(path).tobytes() == DATA.tobytes()


def test_the_place_of_the_data_is_taken_first(tmp_path):
    """A full disk is found before anything is computed."""
    spec = ArraySpec((16, 256, 256), "float32")
    with Sink(tmp_path / "a", spec):
        (part,) = tmp_path.iterdir()
        assert part.stat().st_size >= spec.nbytes
        taken_bytes = part.stat().st_blocks * 512
    with (tmp_path / "other").open("xb") as file:
        if not preallocate(file.fileno(), spec.nbytes):
            pytest.skip("this file system allocates nothing in advance")
    assert taken_bytes >= spec.nbytes


def test_a_result_that_another_process_left_is_continued(tmp_path):
    first = Sink(tmp_path / "a", SPEC)
    first.write(0, 0, DATA[:2])
    first.close()
    with pytest.raises(StoreError, match="takes no more blocks"):
        first.write(0, 2, DATA[2:])
    with Sink(tmp_path / "a", SPEC, "resume") as sink:
        sink.write(0, 2, DATA[2:])
    assert stored(sink.path).tobytes() == DATA.tobytes()


def test_only_an_unfinished_result_is_resumed(tmp_path):
    path = tmp_path / "a"
    with pytest.raises(LostResultError, match="the unfinished result is missing: start anew"):
        Sink(path, SPEC, "resume")
    (tmp_path / "other").write_text("mine")
    path.symlink_to(tmp_path / "other")
    with pytest.raises(LostResultError, match="the unfinished result is missing: start anew"):
        Sink(path, SPEC, "resume")
    path.unlink()
    Sink(path, SPEC).close()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(LostResultError, match=r"is not an unfinished result .*: start anew"):
        Sink(path, SPEC, "resume")
    for other in (ArraySpec((5, 7, 12), "f4"), ArraySpec(DATA.shape, "f8")):
        path.unlink()
        Sink(path, other).close()
        with pytest.raises(LostResultError, match="is not an unfinished result"):
            Sink(path, SPEC, "resume")
