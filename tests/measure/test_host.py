import re
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from maxslices.measure import measure_peak
from maxslices.tuning.heap import installed_allocators

MB = 1_000_000
OBJECTS_BYTES = 8192
"""Bytes of Python objects alive during such a block. Arrays are counted to the byte."""


def ones(n_mb):
    return np.ones(n_mb * MB, np.uint8)


def close(measured, expected):
    return expected <= measured <= expected + OBJECTS_BYTES


@pytest.fixture(autouse=True)
def not_tracing():
    yield
    assert not tracemalloc.is_tracing()


def test_counts_the_most_alive_at_once():
    with measure_peak("cpu") as peak:
        first = ones(2)
        second = ones(3)
        del first
        third = ones(1)
    assert close(peak.numpy_bytes, 5 * MB)
    assert peak.peak_bytes == peak.counted_bytes == peak.numpy_bytes
    assert str(peak).startswith(f"NumPy: 5.00 MB ({peak.numpy_bytes:,} bytes)")
    assert peak.cupy_in_use_bytes is None
    assert peak.torch_allocated_bytes is None
    assert second.size + third.size == 4 * MB


def test_what_was_alive_before_is_not_counted_even_when_freed_inside():
    before = ones(20)
    with measure_peak() as peak:
        del before
        ones(1)
    assert close(peak.numpy_bytes, MB)


def test_nested_measurements_keep_each_their_peak():
    with measure_peak() as outer:
        kept = ones(2)
        ones(9)
        with measure_peak() as inner:
            ones(11)
        with measure_peak() as second:
            ones(1)
        ones(4)
    assert close(outer.numpy_bytes, 13 * MB)
    assert close(inner.numpy_bytes, 11 * MB)
    assert close(second.numpy_bytes, MB)
    assert kept.size == 2 * MB


def in_force():
    return [bytes(each) for each in installed_allocators()]


def test_arrays_alone():
    before = in_force()
    with measure_peak() as peak:
        assert in_force() == before
        kept = ones(2)
        text = bytearray(5 * MB)
        ones(3)
    assert close(peak.numpy_bytes, 5 * MB)
    assert in_force() == before
    assert kept.size + len(text) == 7 * MB


def test_what_the_code_switched_off_is_not_put_back():
    before = in_force()
    with measure_peak() as lost:
        tracemalloc.stop()
    with measure_peak() as peak:
        ones(1)
    assert lost.numpy_bytes is lost.peak_bytes is None
    assert lost.unseen == ["the code switched tracemalloc off"]
    assert close(peak.numpy_bytes, MB)
    assert in_force() == before


def test_tracing_that_was_on_stays_on_and_keeps_its_peak():
    tracemalloc.start()
    try:
        ones(30)
        with measure_peak() as peak:
            ones(4)
        assert tracemalloc.is_tracing()
        assert tracemalloc.get_traced_memory()[1] >= 30 * MB
    finally:
        tracemalloc.stop()
    assert close(peak.numpy_bytes, 4 * MB)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's maximum is Linux's")
def test_memory_outside_numpy_is_reported():
    # In a process of its own: C's allocator may reuse pages that other tests left resident.
    code = """
import ctypes, numpy as np
from maxslices.measure import measure_peak
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
with measure_peak() as peak:
    ones = np.ones(1_000_000, np.uint8)
    block = libc.malloc(200_000_000)
    ctypes.memset(block, 1, 200_000_000)
    libc.free(block)
assert peak.numpy_bytes < 1_100_000, peak
# The kernel counts pages in batches, one a processor: a few MB are not there yet.
assert 180_000_000 < peak.device_bytes < 240_000_000, peak
assert peak.peak_bytes is None
print(peak.unseen[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.match(r"resident memory grew by (1[89]|2[0-3])\d MB, but NumPy took", done.stdout)
    assert "elsewhere" in done.stdout


def double_and_add(data):
    result = np.empty_like(data)
    work = data * 2
    np.add(work, data * 3, out=result)
    work = None
    return result


def test_a_recorded_peak_has_what_was_alive_with_lines_and_names():
    with measure_peak(record=(100, 0)) as peak:
        data = np.ones((100, 100, 100), np.float32)
        double_and_add(data)
    assert [(row.n_bytes, row.where.code) for row in peak.alive] == [
        (4 * MB, "data = np.ones((100, 100, 100), np.float32)"),
        (4 * MB, "result = np.empty_like(data)"),
        (4 * MB, "work = data * 2"),
        (4 * MB, "np.add(work, data * 3, out=result)"),
    ]
    assert peak.alive[-1].where.function == "double_and_add"
    assert peak.sequence.peak_bytes(1) == 16 * MB
    assert close(peak.numpy_bytes, 16 * MB)
