from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maxslices
from maxslices.core.arrays import ArraySpec
from maxslices.errors import StoreError, UsageError
from maxslices.io import MemoryStore, ScratchStore
from maxslices.io.stores import store as scratch
from maxslices.system import threads
from maxslices.system.files import pread_all

pytestmark = pytest.mark.usefixtures("small_parts")

DATA = np.arange(5 * 7 * 11, dtype="u2").reshape(5, 7, 11)
SPEC = ArraySpec(DATA.shape, DATA.dtype)


def open_store(kind: str, folder, spec: ArraySpec = SPEC):
    return MemoryStore(spec) if kind == "memory" else ScratchStore(spec, folder)


def take(slice_dim: int, start: int, stop: int) -> np.ndarray:
    return DATA[start:stop] if slice_dim == 0 else DATA[:, start:stop]


KINDS = pytest.mark.parametrize("kind", ["memory", "scratch"])


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(["memory", "scratch"]),
    written_along=st.sampled_from([0, 1]),
    read_along=st.sampled_from([0, 1]),
    sizes=st.tuples(st.integers(1, 7), st.integers(1, 7)),
)
def test_what_is_written_is_read(tmp_path_factory, kind, written_along, read_along, sizes):
    with open_store(kind, tmp_path_factory.getbasetemp()) as store:
        assert store.spec == SPEC
        for start in range(0, DATA.shape[written_along], sizes[0]):
            # a view where it is cut along dim 1: blocks need not be contiguous
            store.write(written_along, start, take(written_along, start, start + sizes[0]))
        for start in range(0, DATA.shape[read_along], sizes[1]):
            stop = min(start + sizes[1], DATA.shape[read_along])
            out = np.empty(SPEC.with_slices(read_along, stop - start).shape, "u2")
            store.read(read_along, start, stop, out)
            np.testing.assert_array_equal(out, take(read_along, start, stop))


@pytest.mark.parametrize("n_files", [1, 2, 3, 5])
@pytest.mark.parametrize("band_rows", [1, 2, 3, 7])
@pytest.mark.parametrize("unit_angles", [1, 2, 3])
def test_scratch_files_have_no_gaps(tmp_path, monkeypatch, n_files, band_rows, unit_angles):
    monkeypatch.setattr(threads, "N_THREADS", n_files)
    monkeypatch.setattr(scratch, "UNIT_BYTES", unit_angles * band_rows * DATA[0, 0].nbytes)
    with ScratchStore(SPEC, tmp_path, band_rows=band_rows) as store:
        for angle in range(5):
            store.write(0, angle, DATA[angle : angle + 1])
        out = np.empty_like(DATA[:, 2:6])
        store.read(1, 2, 6, out)
        np.testing.assert_array_equal(out, DATA[:, 2:6])
        store.write(0, 0, np.full_like(DATA, 0x0101))
        files = [np.fromfile(path, np.uint8) for path in store.layout.on_disk]
    stored = np.concatenate([np.trim_zeros(content, "b") for content in files])
    assert np.count_nonzero(stored) == DATA.nbytes  # every value has a place of its own
    # Only the last unit of a band may have fewer angles than the others, and a gap behind it.
    n_gaps = np.count_nonzero(stored == 0)
    assert n_gaps <= (-(-7 // band_rows) - 1) * DATA[0, :band_rows].nbytes * (-5 % unit_angles)


@pytest.mark.parametrize(("memory_rows", "kept_rows"), [(-1, 0), (1.9, 0), (2, 2), (5, 4), (99, 7)])
@pytest.mark.parametrize("along", [0, 1])
def test_a_part_of_a_scratch_store_is_in_memory(tmp_path, along, memory_rows, kept_rows):
    row_bytes = DATA[:, 0].nbytes
    with ScratchStore(
        SPEC, tmp_path, band_rows=2, memory_bytes=int(memory_rows * row_bytes)
    ) as store:
        assert store.memory_bytes == kept_rows * row_bytes
        for start in range(0, DATA.shape[along], 3):
            store.write(along, start, take(along, start, start + 3))
        on_disk = sum(path.stat().st_size for path in store.layout.on_disk)
        assert on_disk == -(-(7 - kept_rows) // 2) * 2 * row_bytes  # in bands of two
        for start in range(0, DATA.shape[1 - along], 2):
            stop = min(start + 2, DATA.shape[1 - along])
            out = np.empty(SPEC.with_slices(1 - along, stop - start).shape, "u2")
            store.read(1 - along, start, stop, out)
            np.testing.assert_array_equal(out, take(1 - along, start, stop))


@pytest.mark.parametrize("memory_rows", [0, 2, 7])
@pytest.mark.parametrize("names", [[], ["one", "two"]])
def test_another_process_reads_and_writes_a_store_that_is_held_here(tmp_path, memory_rows, names):
    held = {"band_rows": 2, "memory_bytes": memory_rows * DATA[:, 0].nbytes, "names": names}
    with ScratchStore(SPEC, tmp_path, **held) as store:
        store.write(0, 0, DATA)
        program = (
            "import pickle, sys, numpy as np; from maxslices.io import ScratchStore\n"
            "layout = pickle.load(sys.stdin.buffer); block = np.empty((5, 3, 11), 'u2')\n"
            "with ScratchStore.join(layout, 'reading') as there: there.read(1, 2, 5, block)\n"
            "with ScratchStore.join(layout, 'writing') as there: there.write(1, 2, block + 1)\n"
        )
        run = [sys.executable, "-c", program]
        subprocess.run(run, input=pickle.dumps(store.layout), check=True)
        out = np.empty_like(DATA)
        store.read(1, 0, 7, out)
    expected = DATA.copy()
    expected[:, 2:5] += 1
    np.testing.assert_array_equal(out, expected)
    assert list(tmp_path.iterdir()) == []


def test_a_store_whose_process_has_ended_cannot_be_joined(tmp_path):
    program = (
        "import pathlib, pickle, sys; from maxslices.io import ScratchStore\n"
        "spec = pickle.load(sys.stdin.buffer)\n"
        "store = ScratchStore(spec, pathlib.Path(sys.argv[1]), memory_bytes=spec.nbytes)\n"
        "sys.stdout.buffer.write(pickle.dumps(store.layout))\n"
    )
    run = [sys.executable, "-c", program, str(tmp_path)]
    ended = subprocess.run(run, input=pickle.dumps(SPEC), capture_output=True, check=True)
    layout = pickle.loads(ended.stdout)
    with pytest.raises(StoreError, match="No such file"):
        ScratchStore.join(layout, "reading")


@KINDS
def test_a_closed_store_says_so(tmp_path, kind):
    store = open_store(kind, tmp_path)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.write(0, 0, DATA)
    with pytest.raises(StoreError, match="is closed"):
        store.read(0, 0, 5, np.empty_like(DATA))


@KINDS
def test_a_block_that_does_not_fit_in(tmp_path, kind):
    with open_store(kind, tmp_path) as store:
        with pytest.raises(UsageError, match="6:8 are not within the 7 slices"):
            store.write(1, 6, DATA[:, :2])
        with pytest.raises(UsageError, match="5x2x11 uint16, the block given is 5x3x11"):
            store.read(1, 0, 2, np.empty((5, 3, 11), "u2"))
        with pytest.raises(UsageError, match="must be C-contiguous"):
            store.read(1, 0, 2, np.empty((5, 3, 11), "u2")[:, :2])


def test_the_scratch_file_is_gone_when_the_process_is_killed(tmp_path):
    code = (
        "import sys, os, signal, pathlib, numpy as np\n"
        "from maxslices.core.arrays import ArraySpec\n"
        "from maxslices.io import ScratchStore\n"
        "store = ScratchStore(ArraySpec((2, 2, 2), 'u2'), pathlib.Path(sys.argv[1]))\n"
        "store.write(0, 0, np.ones((2, 2, 2), 'u2'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=60)
    assert ended.returncode == -9
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up(tmp_path, monkeypatch):
    write = os.pwritev
    with ScratchStore(SPEC, tmp_path, band_rows=3) as store, open("/dev/full", "wb") as full:
        monkeypatch.setattr(os, "pwritev", lambda fd, data, at: write(full.fileno(), data, at))
        with pytest.raises(StoreError, match=r"the disk is full: 770 B are needed"):
            store.write(0, 0, DATA)


@pytest.mark.parametrize("band_rows", [1, 3, 7])
@pytest.mark.parametrize("at_once", [1, 7, 100])
def test_short_reads_and_writes_are_continued(tmp_path, monkeypatch, at_once, band_rows):
    write, writev, read = os.pwrite, os.pwritev, os.preadv
    cut = slice(None, at_once)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[cut], at))
    monkeypatch.setattr(os, "pwritev", lambda fd, data, at: writev(fd, [data[0][cut]], at))
    monkeypatch.setattr(os, "preadv", lambda fd, outs, at: read(fd, [outs[0][cut]], at))
    with ScratchStore(SPEC, tmp_path, band_rows=band_rows) as store:
        store.write(1, 0, DATA)
        out = np.empty_like(DATA)
        store.read(0, 0, 5, out)
    np.testing.assert_array_equal(out, DATA)


def test_a_file_that_ends_early(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"123")
    with path.open("rb") as file, pytest.raises(EOFError, match="2 bytes too early"):
        pread_all(file.fileno(), [memoryview(bytearray(5))], 0)


def test_more_memory_than_there_is():
    with pytest.raises(StoreError, match="TB for a result between two sections"):
        MemoryStore(ArraySpec((2**20, 2**20, 2**18), "f4"))


@pytest.mark.parametrize("band_rows", [1, 3, 7])
@pytest.mark.parametrize("n_files", [1, 3])
def test_scratch_files_with_names_stay_for_another_process(tmp_path, band_rows, n_files):
    names = [f"scratch{i}" for i in range(n_files)]
    with ScratchStore(SPEC, tmp_path, band_rows=band_rows, names=names) as store:
        store.write(0, 0, DATA)
        store.suspend()
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    again = ScratchStore(SPEC, tmp_path, band_rows=band_rows, names=names, is_there=True)
    out = np.empty_like(DATA)
    again.read(1, 0, 7, out)
    np.testing.assert_array_equal(out, DATA)
    again.close()
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_file_of_another_store_is_not_taken(tmp_path):
    ScratchStore(SPEC, tmp_path, names=["one"]).suspend()
    other = ArraySpec((5, 7, 12), "u2")
    with pytest.raises(StoreError, match="one: is not a scratch file of this run"):
        ScratchStore(other, tmp_path, names=["one"], is_there=True)
    with pytest.raises(StoreError, match="cannot write"):
        ScratchStore(SPEC, tmp_path, names=["two"], is_there=True)


class TestWithoutTemporaryFiles:
    """As in a container with a read-only root."""

    @pytest.fixture(autouse=True)
    def read_only_root(self, monkeypatch):
        def no_place():
            raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

        monkeypatch.setattr(tempfile, "gettempdir", no_place)

    def test_a_scratch_file_without_a_folder_is_refused(self):
        with pytest.raises(StoreError, match=r"No usable temporary directory .*--scratch"):
            ScratchStore(SPEC, None)

    def test_a_run_into_a_folder_needs_none(self, tmp_path):
        path = tmp_path / "scan.npy"
        np.save(path, np.ones((4, 5, 6), np.uint16))
        result = maxslices.run(path, ["minus_log"], tmp_path / "out", device="cpu")
        assert result.files[-1].parent == tmp_path / "out"
