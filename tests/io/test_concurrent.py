"""A reader and a writer at the same time, each in one thread as the runner has them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest

from maxslices.core.arrays import ArraySpec
from maxslices.io import MemoryStore, ScratchStore, Sink, open_source

pytestmark = pytest.mark.usefixtures("small_parts")

DATA = np.random.default_rng(5).integers(0, 60000, (40, 24, 50)).astype("u2")
SPEC = ArraySpec(DATA.shape, DATA.dtype)


def take(slice_dim: int, start: int, stop: int) -> np.ndarray:
    return np.ascontiguousarray(DATA[start:stop] if slice_dim == 0 else DATA[:, start:stop])


@pytest.mark.parametrize(
    ("read_along", "write_along", "compression"), [(0, 1, None), (1, 0, "gzip"), (1, 1, "lzf")]
)
def test_a_scan_is_read_while_a_result_is_written(tmp_path, compression, write_along, read_along):
    path = tmp_path / "scan.h5"
    with h5py.File(path, "w") as file:
        chunks = (1, *DATA.shape[1:])
        file.create_dataset("exchange/data", data=DATA, chunks=chunks, compression=compression)

    def read() -> np.ndarray:
        whole = np.empty_like(DATA)
        for _ in range(3):
            for start in range(0, DATA.shape[read_along], 4):
                out = np.empty_like(take(read_along, start, start + 4))
                source.read(read_along, start, start + 4, out)
                at = (slice(None),) * read_along
                whole[(*at, slice(start, start + 4))] = out
        return whole

    def write() -> None:
        for _ in range(3):
            for start in range(0, DATA.shape[write_along], 4):
                sink.write(write_along, start, take(write_along, start, start + 4))

    with (
        open_source(path) as source,
        Sink(tmp_path / "result.h5", SPEC) as sink,
        ThreadPoolExecutor(2) as pool,
    ):
        reading, writing = pool.submit(read), pool.submit(write)
        writing.result(30)
        np.testing.assert_array_equal(reading.result(30), DATA)
    with h5py.File(sink.path) as file:
        np.testing.assert_array_equal(file["entry/data/data"][...], DATA)


@pytest.mark.parametrize("kind", ["memory", "scratch"])
@pytest.mark.parametrize("slice_dim", [0, 1])
def test_a_store_is_read_behind_its_writer(tmp_path, kind, slice_dim):
    store = MemoryStore(SPEC) if kind == "memory" else ScratchStore(SPEC, tmp_path, band_rows=5)
    written = threading.Semaphore(0)

    def write() -> None:
        for start in range(0, DATA.shape[slice_dim], 4):
            store.write(slice_dim, start, take(slice_dim, start, start + 4))
            written.release()

    with store:
        writer = threading.Thread(target=write)
        writer.start()
        for start in range(0, DATA.shape[slice_dim], 4):
            assert written.acquire(timeout=30)
            out = np.empty_like(take(slice_dim, start, start + 4))
            store.read(slice_dim, start, start + 4, out)
            np.testing.assert_array_equal(out, take(slice_dim, start, start + 4))
        writer.join(30)
        assert not writer.is_alive()
