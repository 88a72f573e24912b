"""Reading and writing in blocks never holds the whole."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc

import h5py
import numpy as np
import pytest
import tifffile

from maxslices.core.arrays import ArraySpec
from maxslices.io import ScratchStore, create_sink, open_source

SPEC = ArraySpec((64, 128, 512), np.float32)
CHUNK_BYTES = SPEC.with_slices(0, 1).nbytes
SLACK_BYTES = 40_000
"""Most bytes that h5py and tifffile allocate for themselves."""


def peak_bytes(work) -> int:
    """Peak of Python's allocations during a call of `work` after the first: the least of three.

    What `work` holds it holds in every call; what the threads of earlier tests allocate meanwhile
    (those of a cluster go on to the end of the session) is counted in one of them.

    A TIFF that is decoded leaves 10 kB of garbage in cycles. So that Python collects it as soon in
    every version and test, what earlier tests left is put aside, and its first threshold is set.
    """
    work()
    gc.collect()
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    peaks = []
    try:
        for _ in range(3):
            tracemalloc.start()
            work()
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        return min(peaks)
    finally:
        tracemalloc.stop()
        gc.set_threshold(*thresholds)
        gc.unfreeze()


@pytest.mark.parametrize("slice_dim", [0, 1])
@pytest.mark.parametrize("kind", ["hdf5", "hdf5-big-endian", "npy", "tiffs", "tiffs-deflate"])
def test_reading_holds_some_frames_beside_the_block_at_most(tmp_path, slice_dim, kind):
    data = np.zeros(SPEC.shape, SPEC.dtype)
    path = tmp_path / "scan.h5"
    if kind.startswith("hdf5"):
        with h5py.File(path, "w") as file:
            dtype = ">f4" if kind.endswith("endian") else "f4"
            file.create_dataset("exchange/data", data=data, dtype=dtype, chunks=(1, 128, 512))
    elif kind == "npy":
        path = tmp_path / "scan.npy"
        np.save(path, data)
    else:
        path = tmp_path
        for i, frame in enumerate(data):
            compression = "zlib" if kind.endswith("deflate") else None
            tifffile.imwrite(path / f"{i}.tif", frame, compression=compression)
    half = SPEC.shape[slice_dim] // 2
    out = np.empty(SPEC.with_slices(slice_dim, half).shape, SPEC.dtype)
    with open_source(path) as source:

        def read_all() -> None:
            source.read(slice_dim, 0, half, out)
            source.read(slice_dim, half, 2 * half, out)

        peak = peak_bytes(read_all)
    frames = 5 if kind == "tiffs-deflate" else 1  # tifffile decodes in several copies of a frame
    assert peak <= frames * CHUNK_BYTES + SLACK_BYTES < out.nbytes


@pytest.mark.parametrize("format", ["hdf5", "tiff"])
@pytest.mark.parametrize("slice_dim", [0, 1])
def test_writing_holds_at_most_a_slice_beside_the_block(tmp_path, slice_dim, format):
    block = np.zeros(SPEC.with_slices(slice_dim, 16).shape, SPEC.dtype)
    with create_sink(tmp_path / "a", SPEC, slice_dim, format) as sink:

        def write_all() -> None:
            for start in range(0, SPEC.shape[slice_dim], 16):
                sink.write(slice_dim, start, block)

        assert peak_bytes(write_all) <= 2 * CHUNK_BYTES + SLACK_BYTES < block.nbytes


@pytest.mark.parametrize("slice_dim", [0, 1])
def test_a_scratch_store_holds_nothing(tmp_path, slice_dim):
    block = np.zeros(SPEC.with_slices(slice_dim, 16).shape, SPEC.dtype)
    with ScratchStore(SPEC, tmp_path) as store:

        def pass_through() -> None:
            for start in range(0, SPEC.shape[slice_dim], 16):
                store.write(slice_dim, start, block)
                store.read(slice_dim, start, start + 16, block)

        assert peak_bytes(pass_through) <= SLACK_BYTES


SMALL = """
import sys, numpy as np, psutil
from pathlib import Path
from maxslices.core.arrays import ArraySpec
from maxslices.io import LoaderOptions, ScratchStore, create_sink, open_source
from maxslices.system import threads
threads.N_THREADS = threads.N_DECODERS = 4
spec, slab = ArraySpec((512, 256, 512), np.float32), 16  # 256 MiB
kind, path, slice_dim = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
block = np.ones(spec.with_slices(slice_dim, slab).shape, spec.dtype)
process, sizes = psutil.Process(), []
def through(work):
    for start in range(0, spec.shape[slice_dim], slab):
        work(start)
        sizes.append(process.memory_info().rss)
if kind == "sink":
    with create_sink(path, spec, 0) as sink:
        through(lambda start: sink.write(slice_dim, start, block))
elif kind == "scratch":
    with ScratchStore(spec, path, band_rows=slab) as store:
        through(lambda start: store.write(slice_dim, start, block))
        through(lambda start: store.read(slice_dim, start, start + slab, block))
else:
    data_path = "auto" if kind == "npy" else "data"
    options = LoaderOptions(data_path=data_path)
    with open_source(path, options) as source:
        through(lambda start: source.read(slice_dim, start, start + slab, block))
print(max(sizes) - sizes[1])
"""


@pytest.mark.parametrize("slice_dim", [0, 1])
@pytest.mark.parametrize("kind", ["contiguous", "gzip", "npy", "sink", "scratch"])
def test_the_process_stays_small_while_large_data_go_through_it(tmp_path, kind, slice_dim):
    """tracemalloc does not see what libraries and memory maps hold; the resident size does."""
    path, shape = tmp_path / "scan.h5", (512, 256, 512)  # of which the disk holds almost nothing
    if kind == "npy":
        path = tmp_path / "scan.npy"
        np.lib.format.open_memmap(path, "w+", np.float32, shape).flush()
    elif kind in ("contiguous", "gzip"):
        options = {"chunks": (1, *shape[1:]), "compression": "gzip"} if kind == "gzip" else {}
        with h5py.File(path, "w") as file:
            data = file.create_dataset("data", shape, "f4", **options)
            for i in range(0 if options else shape[0] - 1, shape[0]):
                data[i] = 0
    elif kind == "scratch":
        path = tmp_path
    ended = subprocess.run(
        [sys.executable, "-c", SMALL, kind, str(path), str(slice_dim)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert int(ended.stdout) < 16 * 2**20
