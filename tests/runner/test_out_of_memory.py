"""Any allocation of any block may fail without changing the result."""

from __future__ import annotations

from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import tifffile

from maxslices import Pipeline, Registry, from_ledger, run
from maxslices.errors import OutOfMemoryError
from maxslices.io import ArrayScan, Sink, Source
from maxslices.io.stores.store import MemoryStore, ScratchStore
from maxslices.system.threads import WorkThread
from tests.runner.fake_gpu import FakeGpu

SHAPE = (13, 7, 5)
BETWEEN = ["device", "memory", "scratch file"]


@from_ledger
def some(m, shape, dtype):
    for _ in range(3):
        m.alloc(shape, dtype)


def pipeline(gpu, *names):
    """Methods that report their allocations to the device."""
    registry = Registry()

    def double(data):
        gpu.allocate("double")
        twice = data + data
        gpu.allocate("double, again")
        return twice

    def correct(data, flats):
        gpu.allocate("correct")
        return data - flats[:1]

    def smooth(data):
        gpu.allocate("smooth")
        out = data.copy()
        out[:, 1:] += data[:, :-1]
        out[:, :-1] += data[:, 1:]
        return out

    def total(data):
        gpu.allocate("total")
        return int(data.sum(dtype=np.int64))

    def middle(data):
        gpu.allocate("middle")
        return int(data.sum(dtype=np.int64))

    add = registry.register
    add(double, pattern="projection", calc_max_slices=some)
    add(correct, pattern="all", calc_max_slices=some)
    add(smooth, pattern="sinogram", calc_max_slices=some, halo=1)
    add(total, pattern="all", calc_max_slices=some, side_results=("n",), combine=sum)
    add(
        middle, pattern="all", calc_max_slices=some, side_results=("n",),
        sample_slices=lambda n_slices: [n_slices // 2],
    )  # fmt: skip
    saved = [{"method": name, "save_result": name == names[-1]} for name in names]
    return Pipeline.from_steps(saved, registry)


def source(read=lambda: None):
    rng = np.random.default_rng(3)
    scan = ArrayScan(
        rng.integers(0, 99, SHAPE, np.int32), flats=rng.integers(0, 9, (2, *SHAPE[1:]), np.int32)
    )

    class CountingSource(Source):
        """Counts reads. It is not an array, which would be used in place."""

        spec, flats, darks, angles, name = scan.spec, scan.flats, None, None, "scan"

        def read(self, slice_dim, start, stop, out):
            read()
            scan.read(slice_dim, start, stop, out)

        def read_side(self, *where):
            read()
            return scan.read_side(*where)

        def close(self):
            pass

    return CountingSource()


@pytest.fixture
def on_hungry_gpu(on_fake_gpu, monkeypatch):
    """Let reads and writes report their allocations to the device too."""

    def patched(cls, name, gpu):
        original = getattr(cls, name)

        def counted(self, *args, **kwargs):
            gpu().allocate(f"{cls.__name__}.{name}")
            return original(self, *args, **kwargs)

        monkeypatch.setattr(cls, name, counted)

    current = []
    for cls in (Sink, ScratchStore, MemoryStore):
        patched(cls, "write", lambda: current[-1])
    for cls in (ScratchStore, MemoryStore):
        patched(cls, "read", lambda: current[-1])

    def go(out, names, *, block=6, memory="20MB", **kwargs):
        with on_fake_gpu(**kwargs) as gpu:
            current.append(gpu)
            scan = source(lambda: gpu.allocate("the reader"))
            report = run(
                scan, pipeline(gpu, *names), out, device="cuda", block=block, memory=memory
            )
        return report, gpu.allocated

    return go


def saved(report):
    """The last result, in the order of the scan's axes."""
    path = report.files[-1]
    if path.is_dir():
        return np.stack([tifffile.imread(tiff) for tiff in sorted(path.iterdir())], axis=1)
    with h5py.File(path) as file:
        return np.array(file["entry/data/data"])


NAMES = {
    "one section": ("middle", "correct", "double", "total"),
    "two sections": ("correct", "double", "smooth", "total"),
}


@pytest.mark.parametrize("n_failures", [1, 2])
@pytest.mark.parametrize(
    ("which", "between"), [("one section", None), *(("two sections", b) for b in BETWEEN)]
)
def test_any_allocation_on_the_device_may_fail(on_hungry_gpu, tmp_path, which, between, n_failures):
    whole, allocated = on_hungry_gpu(tmp_path / "whole", NAMES[which], between=between)
    expected, n_told = saved(whole), len(allocated)
    assert n_told > 20
    n_split = 0
    for k in range(n_told):
        fails_at = range(k, k + n_failures)
        try:
            report, allocated = on_hungry_gpu(
                tmp_path / str(k), NAMES[which], between=between, fails_at=fails_at
            )
        except OutOfMemoryError as error:
            text = str(error)
        else:
            text = ""
        if text:  # sampled slices cannot be split
            assert n_failures > 1
            assert "memory ran out before the first block, in the section of" in text
            assert not (tmp_path / str(k)).exists()
            continue
        assert len(allocated) > k
        np.testing.assert_array_equal(saved(report), expected)
        assert report.side_results == whole.side_results
        splits = sum(section.n_splits for section in report.sections)
        n_split += splits > 0
        if splits:
            assert "memory ran out: the block was halved" in str(report)
    # The first time, a block is tried again unchanged.
    assert (n_split > 0) == (n_failures > 1)


def test_run_resumes_after_memory_ran_out(on_fake_gpu, tmp_path):
    data, limit = np.random.default_rng(3).integers(0, 99, SHAPE, np.int32), SimpleNamespace(n=5)
    np.save(tmp_path / "scan.npy", data)
    registry = Registry()

    def double(data):
        return data + data

    def picky(data, first_slice):
        if first_slice + data.shape[1] > limit.n:
            raise MemoryError("Unable to allocate 1. TiB")
        return data + 1

    registry.register(double, pattern="projection", calc_max_slices=some)
    registry.register(picky, pattern="sinogram", calc_max_slices=some)
    both = [{"method": name, "save_result": True} for name in ("double", "picky")]
    steps, out = Pipeline.from_steps(both, registry), tmp_path / "out"
    with on_fake_gpu(between="scratch file"), pytest.raises(OutOfMemoryError) as caught:
        run(tmp_path / "scan.npy", steps, out, device="cuda", block=3)
    text = str(caught.value)
    assert "memory ran out on a single sinogram, number 5, in the section of picky" in text
    assert "finished slices are kept (section 2 of 2, 5 of 7 sinograms are done)" in text
    assert [path.name for path in out.iterdir()] == [".run"]
    limit.n = 99
    with on_fake_gpu(between="scratch file"):
        report = run(tmp_path / "scan.npy", steps, out, device="cuda", resume=True)
    np.testing.assert_array_equal(saved(report), 2 * data + 1)


def test_slice_that_needs_all_memory_runs_without_overlap(on_fake_gpu, tmp_path):
    """If two slices do not fit together, they run one after the other."""
    with on_fake_gpu() as gpu:
        scan = source()
        steps = pipeline(gpu, "double")
        free = gpu.allocate

        def allocate(what):
            free(what)
            if what == "double" and gpu.n_buffers() > 1:
                raise MemoryError("one buffer too many")

        gpu.allocate = allocate
        report = run(scan, steps, tmp_path / "out", device="cuda", block=4)
    assert report.sections[0].smallest_block == 1
    assert "without overlap" in str(report)
    whole = np.empty(SHAPE, np.int32)
    scan.read(0, 0, len(whole), whole)
    np.testing.assert_array_equal(saved(report), 2 * whole)


@pytest.mark.parametrize("n_failures", [1, 2])
@pytest.mark.parametrize("memory", ["20MB", "scratch"])
def test_any_allocation_on_the_host_may_fail(monkeypatch, tmp_path, memory, n_failures):
    """Without a GPU, in reads, methods and writes."""
    counter = FakeGpu()
    if memory == "scratch":
        monkeypatch.setattr(
            "maxslices.planner.planning.PlacementSearch.can_be_held",
            lambda self, *route: False,
        )

    class CountingNumPy:
        """NumPy for the reading thread, which counts allocations."""

        def __getattr__(self, name):
            return getattr(np, name)

        def empty(self, *args):
            counter.allocate("a place for blocks")
            return np.empty(*args)

    def counted(cls, name):
        original = getattr(cls, name)

        def call(self, *args):
            counter.allocate(f"{cls.__name__}.{name}")
            return original(self, *args)

        monkeypatch.setattr(cls, name, call)

    monkeypatch.setattr("maxslices.runner.blocks.block_feed.np", CountingNumPy())
    counted(Sink, "write")
    for cls in (MemoryStore, ScratchStore):
        counted(cls, "write")
        counted(cls, "read")

    def go(name, fails_at=()):
        counter.allocated, counter.fails_at = [], fails_at
        scan = source(lambda: counter.allocate("the reader"))
        steps = pipeline(counter, "correct", "double", "smooth", "total")
        return run(scan, steps, tmp_path / name, device="cpu", block=5, memory="20MB")

    whole = go("whole")
    expected, n_told = saved(whole), len(counter.allocated)
    assert n_told > 20
    n_split = 0
    for k in range(n_told):
        report = go(str(k), range(k, k + n_failures))
        np.testing.assert_array_equal(saved(report), expected)
        assert report.side_results == whole.side_results
        n_split += sum(section.n_splits for section in report.sections)
    assert n_split >= n_told // 2


@pytest.mark.parametrize("name", ["reader", "writer"])
def test_thread_that_cannot_be_started_counts_as_out_of_memory(tmp_path, name, monkeypatch):
    """The system has no memory for its stack. The run reports that, and leaves nothing behind."""
    original = WorkThread.start

    def start(thread):
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        original(thread)

    np.save(tmp_path / "scan.npy", np.ones((40, 6, 8), np.float32))
    monkeypatch.setattr(WorkThread, "start", start)
    with pytest.raises(OutOfMemoryError, match=r"memory ran out on a single .*can't start new thr"):
        run(tmp_path / "scan.npy", ["minus_log"], tmp_path / "out", device="cpu", block=4)
    assert [path.name for path in tmp_path.iterdir()] == ["scan.npy"]
