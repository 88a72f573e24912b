"""Reading and writing in blocks never holds the whole."""

from __future__ import annotations

import subprocess
import sys

import h5py
import numpy as np
import pytest
import tifffile

SMALL = """
import sys, numpy as np, psutil
from pathlib import Path
from maxslices.core.arrays import ArraySpec
from maxslices.io import LoaderOptions, ScratchStore, Sink, open_source
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
    with Sink(path, spec) as sink:
        through(lambda start: sink.write(slice_dim, start, block))
elif kind == "scratch":
    with ScratchStore(spec, path, band_rows=slab) as store:
        through(lambda start: store.write(slice_dim, start, block))
        through(lambda start: store.read(slice_dim, start, start + slab, block))
else:
    data_path = "auto" if kind in ("npy", "tiffs") else "data"
    options = LoaderOptions(data_path=data_path)
    with open_source(path, options) as source:
        through(lambda start: source.read(slice_dim, start, start + slab, block))
print(max(sizes) - sizes[1])
"""


@pytest.mark.parametrize("slice_dim", [0, 1])
@pytest.mark.parametrize("kind", ["contiguous", "gzip", "npy", "tiffs", "sink", "scratch"])
def test_the_process_stays_small_while_large_data_go_through_it(tmp_path, kind, slice_dim):
    """By its resident size: tracemalloc does not see what libraries and memory maps hold."""
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
    elif kind in ("scratch", "tiffs"):
        path = tmp_path
    if kind == "tiffs":
        for i in range(shape[0]):
            frame = np.zeros(shape[1:], np.float32)
            tifffile.imwrite(path / f"{i}.tif", frame, compression="zlib")
    ended = subprocess.run(
        [sys.executable, "-c", SMALL, kind, str(path), str(slice_dim)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert int(ended.stdout) < 16 * 2**20
