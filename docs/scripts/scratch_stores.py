"""Stores between two sections: projections in from two processes, then sinograms out.

    pip install tensorstore h5py
    python docs/scripts/scratch_stores.py FOLDER --blocks 8 32 128

Each store takes the same array from two processes at once, a half of the projections each, and
gives it to two processes, a half of the rows each, in blocks of as many slices. What is read is
checked against what was written. "write" and "read" are into and from the page cache, whose pages
were used just before (a virtual machine's first use of a page takes far longer); "disk" is reading
after all was synced and dropped from the page cache. Times are the least of all rounds, in which
the stores take turns at being first: seconds by the clock, of the slower process, and of processor
time, of both; with the ratio to that of the scratch files.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np
from numpy.typing import NDArray

from maxslices import ArraySpec
from maxslices.io.stores.scratch import ScratchStore
from maxslices.system import threads
from maxslices.system.positional_io import bytes_of, pwrite_all
from maxslices.tuning.batched_reads import pread_pieces

N_PROCESSES = 2
STAGES = ("write", "read", "disk")


class _Opened(Protocol):
    """A store, as one process has it open."""

    def write(self, start: int, block: NDArray[Any]) -> None:
        """Write projections from `start` on."""

    def read(self, start: int, out: NDArray[Any]) -> None:
        """Read rows from `start` on, of all projections."""


class _Scratch:
    """The runner's scratch files: bands of rows."""

    def __init__(self, folder: Path, spec: ArraySpec, k: int, process: int | None) -> None:
        names = [f"{i}.scratch" for i in range(threads.N_THREADS)]
        if process is None:
            ScratchStore(spec, folder, band_rows=k, names=names).suspend()
            return
        self.store = ScratchStore(spec, folder, band_rows=k, names=names, is_there=True)

    def write(self, start: int, block: NDArray[Any]) -> None:
        self.store.write(0, start, block)

    def read(self, start: int, out: NDArray[Any]) -> None:
        self.store.read(1, start, start + out.shape[1], out)


class _Offsets:
    """One contiguous dataset of HDF5, by offset: projections one after the other."""

    def __init__(self, folder: Path, spec: ArraySpec, k: int, process: int | None) -> None:
        self.spec, path = spec, folder / "whole.h5"
        if process is None:
            with h5py.File(path, "w") as file:
                made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                made.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
                made.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
                space = h5py.h5s.create_simple(spec.shape)
                h5py.h5d.create(file.id, b"data", h5py.h5t.NATIVE_FLOAT, space, made)
            return
        with h5py.File(path) as file:
            self.begin = file["data"].id.get_offset()
        self.fd = os.open(path, os.O_RDWR)

    def write(self, start: int, block: NDArray[Any]) -> None:
        pwrite_all(self.fd, [bytes_of(block)], self.begin + start * block[0].nbytes)

    def read(self, start: int, out: NDArray[Any]) -> None:
        _, rows, columns = self.spec.shape
        first = np.arange(out.shape[0], dtype=np.int64) * rows + start
        pread_pieces(self.fd, out, self.begin + first * columns * out.itemsize)


class _Virtual:
    """A file of HDF5 for each process, in chunks, behind a virtual dataset."""

    def __init__(self, folder: Path, spec: ArraySpec, k: int, process: int | None) -> None:
        share = spec.shape[0] // N_PROCESSES
        part = (share, *spec.shape[1:])
        paths = [folder / f"part{i}.h5" for i in range(N_PROCESSES)]
        if process is None:
            layout = h5py.VirtualLayout(spec.shape, spec.dtype)
            for i, path in enumerate(paths):
                layout[i * share : (i + 1) * share] = h5py.VirtualSource(path, "data", part)
            with h5py.File(folder / "whole.h5", "w") as file:
                file.create_virtual_dataset("data", layout)
            return
        self.begin, self.path, self.whole = process * share, paths[process], folder / "whole.h5"
        self.part, self.chunks, self.data = part, (k, k, spec.shape[2]), None

    def write(self, start: int, block: NDArray[Any]) -> None:
        if self.data is None:
            file = h5py.File(self.path, "w", locking=False)
            self.data = file.create_dataset("data", self.part, block.dtype, chunks=self.chunks)
        at = start - self.begin
        self.data.write_direct(block, dest_sel=np.s_[at : at + len(block)])
        if at + len(block) == self.part[0]:
            self.data.file.close()

    def read(self, start: int, out: NDArray[Any]) -> None:
        if self.data is None:
            self.data = h5py.File(self.whole, locking=False)["data"]
        self.data.read_direct(out, np.s_[:, start : start + out.shape[1]])


class _Zarr:
    """tensorstore's Zarr, uncompressed: a file for each chunk."""

    def __init__(self, folder: Path, spec: ArraySpec, k: int, process: int | None) -> None:
        import tensorstore

        where = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{folder}/zarr"}}
        if process is None:
            chunks = [k, k, spec.shape[2]]
            what = {"shape": spec.shape, "chunks": chunks, "dtype": "<f4", "compressor": None}
            tensorstore.open({**where, "metadata": what}, create=True).result()
            return
        self.store = tensorstore.open(where, open=True).result()

    def write(self, start: int, block: NDArray[Any]) -> None:
        self.store[start : start + len(block)].write(block).result()

    def read(self, start: int, out: NDArray[Any]) -> None:
        import tensorstore

        into = tensorstore.array(out, copy=False)
        into.write(self.store[:, start : start + out.shape[1]].translate_to[0]).result()


STORES: dict[str, Callable[..., Any]] = {
    "scratch files": _Scratch,
    "HDF5 by offset": _Offsets,
    "HDF5, virtual": _Virtual,
    "tensorstore": _Zarr,
}


def work(
    name: str,
    folder: Path,
    spec: ArraySpec,
    k: int,
    process: int,
    writes: bool,
    barrier: Any,
    out: Any,
) -> None:
    """Write or read the share of a process; the seconds of its clock and of its processor time."""
    opened: _Opened = STORES[name](folder, spec, k, process)
    n_angles, n_rows, n_columns = spec.shape
    total = n_angles if writes else n_rows
    share = total // N_PROCESSES
    shape = (k, n_rows, n_columns) if writes else (n_angles, k, n_columns)
    block = np.ones(shape, spec.dtype)  # touched, as the runner's buffers are
    stamps = np.arange(n_angles * n_rows, dtype=spec.dtype).reshape(n_angles, n_rows)
    took_s = cpu_s = 0.0
    barrier.wait()
    for start in range(process * share, (process + 1) * share, k):
        if writes:
            block[:, :, 0] = block[:, :, -1] = stamps[start : start + k]
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        if writes:
            opened.write(start, block)
        else:
            opened.read(start, block)
        took_s += time.perf_counter() - began_s
        cpu_s += time.process_time() - began_cpu_s
        if not writes:
            for column in (0, -1):
                assert np.array_equal(block[:, :, column], stamps[:, start : start + k]), name
            assert (block[:, :, n_columns // 2] == 1).all(), name
    out.put((took_s, cpu_s))


def both(name: str, folder: Path, spec: ArraySpec, k: int, *, writes: bool) -> tuple[float, float]:
    """Have two processes write or read; seconds of the slower one, processor time of both."""
    context = multiprocessing.get_context("fork")  # with all modules imported
    barrier, out = context.Barrier(N_PROCESSES), context.Queue()
    given = [(name, folder, spec, k, i, writes, barrier, out) for i in range(N_PROCESSES)]
    processes = [context.Process(target=work, args=each) for each in given]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit(f"{name}: a process failed")
    found = [out.get() for _ in processes]
    return max(each[0] for each in found), sum(each[1] for each in found)


def drop(folder: Path) -> None:
    """Put all files of a folder on disk, and out of the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def warm(folder: Path, n_bytes: int) -> None:
    """Have as many pages as a store takes used, and freed."""
    path, part = folder / "warm", np.ones(2**24, np.uint8)
    with path.open("wb", buffering=0) as file:
        for _ in range(0, n_bytes + 2**28, part.nbytes):
            file.write(part.data)
    path.unlink()


def one(name: str, folder: Path, spec: ArraySpec, k: int) -> dict[str, tuple[float, float]]:
    """Write with a store, read from the page cache, then from the disk."""
    folder.mkdir(parents=True)
    try:
        # In a process of its own: tensorstore's threads would keep this one from forking.
        created = multiprocessing.get_context("fork").Process(
            target=STORES[name], args=(folder, spec, k, None)
        )
        created.start()
        created.join()
        warm(folder, spec.nbytes)
        found = {"write": both(name, folder, spec, k, writes=True)}
        found["read"] = both(name, folder, spec, k, writes=False)
        drop(folder)
        found["disk"] = both(name, folder, spec, k, writes=False)
    finally:
        shutil.rmtree(folder)
        os.sync()  # what was removed is not written beside the next one
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", type=int, nargs=3, default=(512, 256, 1024))
    parser.add_argument("--blocks", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    spec = ArraySpec(tuple(given.shape), "float32")
    print(f"{spec}, {spec.nbytes / 1e9:.2f} GB; {threads.N_THREADS} threads in each process")
    print("block  store           " + "".join(f"{stage:>30}" for stage in STAGES))
    for k in given.blocks:
        least = {name: {stage: [math.inf, math.inf] for stage in STAGES} for name in STORES}
        for number in range(given.rounds):
            names = list(STORES)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                for stage, times in one(name, given.folder / "store", spec, k).items():
                    least[name][stage] = list(map(min, least[name][stage], times))
        for name, stages in least.items():
            line = f"{k:5}  {name:16}"
            for stage, times in stages.items():
                for own, first in zip(times, least["scratch files"][stage], strict=True):
                    line += f"  {own:5.2f} s {own / first:5.2f}x"
            print(line, flush=True)


if __name__ == "__main__":
    main()
