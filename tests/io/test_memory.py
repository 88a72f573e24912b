"""Reading and writing in blocks never holds the whole."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import h5py
import numpy as np
import pytest
import tifffile

from maxslices.arrays import ArraySpec
from maxslices.io import ScratchStore, create_sink, open_source

SPEC = ArraySpec((64, 128, 512), np.float32)
CHUNK_BYTES = SPEC.with_slices(0, 1).nbytes
SLACK_BYTES = 40_000
"""What h5py and tifffile allocate for themselves, whatever is read."""


def peak_bytes(work) -> int:
    """Return what Python allocated at most while `work` ran; it ran once before."""
    work()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


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
    out = np.empty(SPEC.with_slices(slice_dim, 16).shape, SPEC.dtype)
    with open_source(path) as source:

        def read_all() -> None:
            for start in range(0, SPEC.shape[slice_dim], 16):
                source.read(slice_dim, start, start + 16, out)

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


@pytest.mark.parametrize("kind", ["h5", "npy"])
def test_the_process_stays_small_while_it_reads_a_large_file(tmp_path, kind):
    """tracemalloc does not see what HDF5 and memory maps hold; the resident size does."""
    path = tmp_path / f"scan.{kind}"
    shape = (512, 256, 512)  # 256 MiB, of which the disk holds almost nothing
    if kind == "npy":
        np.lib.format.open_memmap(path, "w+", np.float32, shape).flush()
    else:
        with create_sink(path, ArraySpec(shape, "f4"), 0) as sink:
            sink.finish()
    code = (
        "import sys, numpy as np, psutil\n"
        "from maxslices.io import LoaderOptions, open_source\n"
        "options = LoaderOptions(data_path=sys.argv[2])\n"
        "with open_source(sys.argv[1], options) as source:\n"
        "    out = np.zeros((16, 256, 512), 'f4')\n"
        "    source.read(0, 0, 16, out)\n"
        "    process = psutil.Process()\n"
        "    before = most = process.memory_info().rss\n"
        "    for start in range(0, 512, 16):\n"
        "        source.read(0, start, start + 16, out)\n"
        "        most = max(most, process.memory_info().rss)\n"
        "print(most - before)\n"
    )
    data_path = "auto" if kind == "npy" else "entry/data/data"
    ended = subprocess.run(
        [sys.executable, "-c", code, str(path), data_path],
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(ended.stdout) < 32 * 2**20
