"""The machine: its device, its links and its disk."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from maxslices.devices import pinned_empty

PIECE_BYTES = 2**24


def find_cupy() -> Any:
    """Return CuPy if it can use a GPU, else None."""
    try:
        import cupy

        return cupy if cupy.cuda.runtime.getDeviceCount() else None
    except (ImportError, RuntimeError):
        return None


cp = find_cupy()
DEVICE = "cpu" if cp is None else "cuda"
xp = np if cp is None else cp


def synchronize() -> None:
    """Wait for the device."""
    if cp is not None:
        cp.cuda.Device().synchronize()


def empty_device() -> None:
    """Give back all that CuPy holds in reserve, so that a run starts as in a fresh process."""
    if cp is not None:
        cp.fft.config.get_plan_cache().clear()
        cp.get_default_memory_pool().free_all_blocks()


def pinned(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return an array in pinned memory; in any memory without a GPU."""
    return pinned_empty(shape, dtype)


def timed(
    call: Callable[[], Any],
    repeats: int = 5,
    warm: int = 1,
    before: Callable[[], Any] = lambda: None,
) -> tuple[float, list[float]]:
    """Return the median of the wall times of a call, and all of them; not of what is `before`."""
    taken = []
    for number in range(repeats + warm):
        before()
        synchronize()
        began = time.perf_counter()
        call()
        synchronize()
        if number >= warm:
            taken.append(time.perf_counter() - began)
    return statistics.median(taken), taken


class DeviceTime:
    """Adds up the device time of calls, by events around each; on the CPU by the clock."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Any, Any]] = []
        self._clock_s = 0.0

    def __call__(self, call: Callable[[], Any]) -> Any:
        if cp is None:
            began = time.perf_counter()
            result = call()
            self._clock_s += time.perf_counter() - began
            return result
        start, stop = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        result = call()
        stop.record()
        self._pairs.append((start, stop))
        return result

    @property
    def seconds(self) -> float:
        """Return the sum."""
        synchronize()
        return self._clock_s + sum(
            cp.cuda.get_elapsed_time(start, stop) / 1e3 for start, stop in self._pairs
        )


def link_rates(source: np.ndarray, target: np.ndarray, repeats: int = 5) -> tuple[float, float]:
    """Return bytes a second that pinned memory is copied at, to the device and from it."""
    if cp is None:
        return float("inf"), float("inf")
    n = min(2**30, source.nbytes, target.nbytes)
    up = source.reshape(-1).view(np.uint8)[:n]
    down = target.reshape(-1).view(np.uint8)[:n]
    there = cp.empty(n, np.uint8)
    stream = cp.cuda.Stream(non_blocking=True)
    rates = []
    for call in (
        lambda: there.set(up, stream=stream),
        lambda: there.get(out=down, stream=stream, blocking=False),
    ):
        median_s, _ = timed(call, repeats)
        rates.append(n / median_s)
    return rates[0], rates[1]


def in_pieces(n_bytes: int, n_threads: int, work: Callable[[int, int], None]) -> None:
    """Have threads work on pieces from start to stop."""
    spans = [(at, min(at + PIECE_BYTES, n_bytes)) for at in range(0, n_bytes, PIECE_BYTES)]
    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(lambda span: work(*span), spans))


def plain_write_s(path: Path, n_bytes: int, n_threads: int = 8) -> float:
    """Return seconds to write a new file of so many bytes, as fast as threads can."""
    pattern = np.random.default_rng(1).integers(0, 256, PIECE_BYTES, np.uint8).data
    path.unlink(missing_ok=True)
    began = time.perf_counter()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        in_pieces(n_bytes, n_threads, lambda a, b: write_all(handle, pattern[: b - a], a))
    finally:
        os.close(handle)
    return time.perf_counter() - began


def write_all(handle: int, data: Any, offset: int) -> None:
    """Write all of a buffer at an offset."""
    view = memoryview(data).cast("B")
    while view:
        done = os.pwrite(handle, view, offset)
        view, offset = view[done:], offset + done


def plain_read_s(path: Path, out: np.ndarray, n_threads: int = 8, offset: int = 0) -> float:
    """Return seconds to read a file into an array again and again until all of it was read."""
    n_bytes = path.stat().st_size - offset
    target = out.reshape(-1).view(np.uint8)
    began = time.perf_counter()
    handle = os.open(path, os.O_RDONLY)

    def read(start: int, stop: int) -> None:
        at = start % (target.nbytes - PIECE_BYTES + 1) if target.nbytes > n_bytes else start
        at = at if at + stop - start <= target.nbytes else 0
        os.preadv(handle, [target[at : at + stop - start]], offset + start)

    try:
        in_pieces(n_bytes, n_threads, read)
    finally:
        os.close(handle)
    return time.perf_counter() - began
