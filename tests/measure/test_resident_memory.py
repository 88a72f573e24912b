"""Resident memory of this process, by the kernel's count."""

import json
import mmap
import subprocess
import sys

import pytest

from maxslices.measure import measure_peak
from maxslices.measure.resident_memory import ResidentPeak

pytestmark = pytest.mark.skipif(ResidentPeak().before_bytes is None, reason="Linux gives it")
MB = 10**6
RUN = """
import json, sys
import numpy as np
import maxslices
from maxslices import registry
from maxslices.core.ledger import Ledger

def of_input_and_arrays(n):
    def account(m, shape, dtype):
        m.alloc(shape, dtype)
        m.alloc(shape, dtype)
        m.alloc_bytes(n)
    return maxslices.from_ledger(account)

def large(data):
    work = np.ones(200_000_000, np.uint8)
    return data + np.float32(work[-1] - 1)

def small(data):
    return data + np.float32(1)

for function, n, pattern in ((large, 200_000_000, "projection"), (small, 0, "sinogram")):
    registry.register(function, pattern=pattern, calc_max_slices=of_input_and_arrays(n))
data = np.zeros((20, 30, 40), np.float32)
report = maxslices.run(data, ["large", "small"], device="cpu", memory="500MB")
print(json.dumps([report.process_bytes, len(report.sections)]))
"""


def pages(n_bytes):
    """Memory straight from the kernel: C's allocator may reuse pages that other tests left."""
    memory = mmap.mmap(-1, n_bytes)
    memory[::4096] = b"1" * len(range(0, n_bytes, 4096))  # else there are no pages
    return memory


def test_a_later_measurement_does_not_forget_an_earlier_peak():
    peak = ResidentPeak()
    with measure_peak():
        pages(100 * MB).close()
    with measure_peak():
        pass
    later = ResidentPeak()
    assert 95 * MB < peak.grown_bytes < 130 * MB
    assert later.grown_bytes < 20 * MB


def test_the_report_of_a_run_has_the_peak_of_all_its_sections():
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    process_bytes, n_sections = json.loads(done.stdout)
    assert n_sections == 2
    assert 190 * MB < process_bytes < 300 * MB  # it was the second section's, 10 MB


FREED = """
import numpy as np
import maxslices
from maxslices import registry

small = [np.ones(64_000, np.uint8) for _ in range(1600)]
last = small[-1]  # it keeps the heap from shrinking by itself
del small
def doubled(data):
    return data + data

def account(m, shape, dtype):
    m.alloc(shape, dtype)
    m.alloc(shape, dtype)

registry.register(doubled, pattern="all", calc_max_slices=maxslices.from_ledger(account))
data = np.zeros((50, 500, 500), np.float32)
report = maxslices.run(data, ["doubled"], device="cpu", memory="500MB", block=50)
print(report.process_bytes)
"""


def test_what_was_freed_before_a_run_hides_nothing_of_its_memory():
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 45 * MB  # the result alone has 50 MB
