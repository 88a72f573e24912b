"""How fast scans are read and results written, beside what the machine can do.

Run it as ``python tests/benchmarks/io_table.py [--folder DIR] [--gigabytes 4]``. What it reads
is in the system's page cache; what it writes gets there, and to the disk later. Each figure
is the best of some tries, in 10^9 bytes a second.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from maxslices.core.arrays import ArraySpec
from maxslices.io import (
    LoaderOptions,
    MemoryStore,
    ScratchStore,
    create_sink,
    open_source,
    remove_result,
)
from maxslices.system import threads

ROWS, COLUMNS = 1024, 2560
BLOCK = {0: 64, 1: 32}
"""Slices of a block, along each slice dim."""
ZIPPED = 128
"""Frames of a compressed scan, which is slower to read."""


def slab_of(n_bytes: int) -> np.ndarray:
    """Return memory as the runner has it: pinned, where there is a GPU."""
    try:
        import cupyx

        slab = cupyx.empty_pinned(n_bytes, np.uint8)
    except (ImportError, RuntimeError):
        slab = np.empty(n_bytes, np.uint8)
    slab[:] = 1
    return slab


class Table:
    def __init__(self, slab: np.ndarray) -> None:
        self.slab = slab
        self.rows: list[tuple[str, float]] = []

    def add(self, name: str, n_bytes: int, work: Callable[[], object], tries: int = 3) -> None:
        seconds = []
        for _ in range(tries):
            begin = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - begin)
        self.rows.append((name, n_bytes / min(seconds) / 1e9))
        print(f"{name:58s} {self.rows[-1][1]:7.2f} GB/s", flush=True)

    def block(self, spec: ArraySpec, slice_dim: int, n: int) -> np.ndarray:
        part = spec.with_slices(slice_dim, n)
        return self.slab[: part.nbytes].view(spec.dtype).reshape(part.shape)

    def through(self, spec: ArraySpec, slice_dim: int, work: Callable) -> None:
        for start in range(0, spec.shape[slice_dim], BLOCK[slice_dim]):
            stop = min(start + BLOCK[slice_dim], spec.shape[slice_dim])
            work(start, stop, self.block(spec, slice_dim, stop - start))

    def read(self, name: str, reader, slice_dim: int, tries: int = 3) -> None:
        spec = reader.spec
        what = "projections" if slice_dim == 0 else "sinograms"

        def work() -> None:
            self.through(spec, slice_dim, lambda a, b, out: reader.read(slice_dim, a, b, out))

        self.add(f"read {name}, {BLOCK[slice_dim]} {what}", spec.nbytes, work, tries)

    def write(self, name: str, writer, slice_dim: int, tries: int = 1) -> None:
        spec = writer.spec
        what = "projections" if slice_dim == 0 else "sinograms"

        def work() -> None:
            self.through(spec, slice_dim, lambda a, b, block: writer.write(slice_dim, a, block))

        self.add(f"write {name}, {BLOCK[slice_dim]} {what}", spec.nbytes, work, tries)


def plain(table: Table, folder: Path, n_bytes: int) -> None:
    """What pread and pwrite do by themselves."""
    part, view = 2**22, memoryview(table.slab)
    size = len(view) // part * part
    for n_threads, n_files in ((1, 1), (threads.N_THREADS, 1), (threads.N_THREADS,) * 2):
        files = [tempfile.TemporaryFile(buffering=0, dir=folder) for _ in range(n_files)]  # noqa: SIM115

        def place(i: int, files=files) -> tuple[int, memoryview, int]:
            file, at = files[i % len(files)].fileno(), i // len(files) * part
            return file, view[i * part % size :][:part], at

        def put(i: int, place=place) -> None:
            os.pwrite(*place(i))

        def get(i: int, place=place) -> None:
            fd, out, at = place(i)
            os.preadv(fd, [out], at)

        for name, work in (("pwrite", put), ("preadv", get)):
            table.add(
                f"plain {name}, {n_threads} threads, {n_files} files",
                n_bytes // part * part,
                lambda work=work, k=n_threads: threads.parallel_for(n_bytes // part, work, k),
                tries=1 if name == "pwrite" else 3,
            )
        for file in files:
            file.close()


def sources(table: Table, folder: Path, spec: ArraySpec) -> None:
    """Read every kind of scan."""
    options = LoaderOptions(data_path="data")
    contiguous = folder / "contiguous.h5"
    with h5py.File(contiguous, "w") as file:
        data = file.create_dataset("data", spec.shape, spec.dtype)
        data[-1] = 0  # so that its place is known
        offset = data.id.get_offset()
    with contiguous.open("r+b") as file:
        part = table.block(spec, 0, BLOCK[0])
        table.through(
            spec,
            0,
            lambda a, b, _: os.pwrite(
                file.fileno(), part[: b - a].data, offset + a * part[0].nbytes
            ),
        )
    with open_source(contiguous, options) as source:
        table.read("contiguous HDF5", source, 0)
        table.read("contiguous HDF5", source, 1)
    with h5py.File(contiguous) as file:
        out = table.block(spec, 0, BLOCK[0])
        table.add(
            "read contiguous HDF5 by h5py",
            out.nbytes,
            lambda: file["data"].read_direct(out, np.s_[: BLOCK[0]]),
        )
    contiguous.unlink()
    chunked = create_sink(folder / "chunked", spec, 0)
    table.through(spec, 0, lambda a, b, block: chunked.write(0, a, block))
    with open_source(chunked.path, LoaderOptions(data_path="entry/data/data")) as source:
        table.read("HDF5, a chunk a frame", source, 0)
        table.read("HDF5, a chunk a frame", source, 1)
    chunked.path.unlink()
    small = spec.with_slices(0, ZIPPED)
    zipped = folder / "zipped.h5"
    rng = np.random.default_rng(0)
    frame = rng.normal(30000, 40, small.shape[1:]).astype(spec.dtype)
    packed = zlib.compress(frame.tobytes(), 4)
    with h5py.File(zipped, "w") as file:
        data = file.create_dataset(
            "data", small.shape, small.dtype, chunks=(1, *small.shape[1:]), compression="gzip"
        )
        for i in range(ZIPPED):
            data.id.write_direct_chunk((i, 0, 0), packed)
    with open_source(zipped, options) as source:
        table.read("HDF5, gzip, a chunk a frame", source, 0, 1)
    zipped.unlink()
    tiffs = create_sink(folder / "tiffs", spec, 0, "tiff")
    table.through(spec, 0, lambda a, b, block: tiffs.write(0, a, block))
    with open_source(tiffs.path) as source:
        table.read("TIFFs", source, 0)
        table.read("TIFFs", source, 1)
    shutil.rmtree(tiffs.path)
    with open_source(np.zeros(spec.shape, spec.dtype) + spec.dtype.type(1)) as source:
        table.read("an array", source, 0)
        table.read("an array", source, 1)


def sinks(table: Table, folder: Path, spec: ArraySpec) -> None:
    """Write every kind of result."""
    for format in ("hdf5", "tiff"):
        for along in (0, 1):
            for slice_dim in (0, 1) if format == "hdf5" else (along,):
                with create_sink(folder / "result", spec, along, format) as sink:
                    kind = f"{format.upper()} of {('projections', 'sinograms')[along]}"
                    table.write(kind, sink, slice_dim)
                remove_result(sink.path)


def stores(table: Table, folder: Path, spec: ArraySpec) -> None:
    """Write and read intermediate results."""
    for written, read in ((0, 1), (1, 0)):
        with ScratchStore(spec, folder, band_rows=BLOCK[1]) as store:
            table.write("scratch", store, written)
            table.read("scratch", store, read)
    with MemoryStore(spec) as store:
        table.write("memory, first touch", store, 0)
        table.write("memory", store, 0, 3)
        table.read("memory", store, 1)


def both(table: Table, folder: Path, spec: ArraySpec) -> None:
    """Read a scan while a result is written."""
    sink = create_sink(folder / "scan", spec, 0)
    table.through(spec, 0, lambda a, b, block: sink.write(0, a, block))
    other = Table(table.slab.copy())
    with (
        open_source(sink.path, LoaderOptions(data_path="entry/data/data")) as source,
        ScratchStore(spec, folder, band_rows=BLOCK[1]) as store,
    ):
        writer = threading.Thread(
            target=lambda: other.write("(meanwhile) scratch", store, 0), daemon=True
        )
        writer.start()
        table.read("(meanwhile) HDF5, a chunk a frame", source, 0)
        writer.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    n_frames = max(2, round(arguments.gigabytes * 1e9 / (ROWS * COLUMNS * 2)))
    raw = ArraySpec((n_frames, ROWS, COLUMNS), np.uint16)
    done = ArraySpec((n_frames // 2, ROWS, COLUMNS), np.float32)
    table = Table(slab_of(max(raw.with_slices(d, BLOCK[d]).nbytes for d in (0, 1)) * 2))
    print(f"{threads.N_CORES} cores, {threads.N_THREADS} threads; {raw} and {done}")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        plain(table, folder, raw.nbytes)
        sources(table, folder, raw)
        sinks(table, folder, done)
        stores(table, folder, done)
        both(table, folder, raw)
    if arguments.json:
        arguments.json.write_text(json.dumps(dict(table.rows), indent=1))


if __name__ == "__main__":
    main()
