"""Large arrays stay in the heap while memory is ample, and return to the system after a run."""

from __future__ import annotations

import mmap
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import maxslices
from maxslices import method
from maxslices.devices.cpu import CpuBackend
from maxslices.tuning.heap import LARGE_BYTES, is_glibc, libc

N_BYTES = 2**26
ROOT = Path(__file__).parents[2]
MMAP_MAX = -4
"""Parameter of mallopt: how many arrays may be taken from the system by themselves."""

needs_glibc = pytest.mark.skipif(not is_glibc(), reason="another C library than glibc")


def fill():
    np.empty(N_BYTES, np.uint8)[:] = 1


def faults_of(call):
    """Pages that the system makes during a call."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def resident_bytes():
    with open("/proc/self/statm") as file:
        return mmap.PAGESIZE * int(file.read().split()[1])


@pytest.fixture
def is_retained(monkeypatch):
    """Function that tells whether the heap retains freed memory, by the last setting."""
    settings = {MMAP_MAX: 1}
    before = libc().mallopt

    def note(parameter, value):
        settings[parameter] = value
        return before(parameter, value)

    monkeypatch.setattr(libc(), "mallopt", note)
    return lambda: settings[MMAP_MAX] == 0


def makes_pages_once_and_gives_them_back():
    backend = CpuBackend()
    with backend.limited(2**40):
        backend.retain_freed(N_BYTES)
        backend.retain_freed(N_BYTES)
        fill()
        before = resident_bytes()
        assert faults_of(fill) < 8
    assert before - resident_bytes() > N_BYTES // 2
    assert faults_of(fill) >= 16  # pages of 4 MiB at most


@needs_glibc
def test_small_arrays_are_not_retained(is_retained):
    backend = CpuBackend()
    backend.retain_freed(LARGE_BYTES - 1)
    assert not is_retained()
    backend.retain_freed(LARGE_BYTES)
    assert is_retained()
    backend.release()
    assert not is_retained()


def is_left_to_another_run():
    first, second = CpuBackend(), CpuBackend()
    first.retain_freed(N_BYTES)
    second.retain_freed(N_BYTES)
    first.release()
    fill()
    assert faults_of(fill) < 8
    second.release()
    second.release()
    assert faults_of(fill) >= 16


@needs_glibc
@pytest.mark.parametrize("part", [makes_pages_once_and_gives_them_back, is_left_to_another_run])
def test_a_heap_that_keeps(part):
    """In a process of its own: a first thread that once ran out of memory has another heap."""
    code = f"from tests.tuning import test_malloc_retain; test_malloc_retain.{part.__name__}()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@needs_glibc
def test_heap_after_memory_ran_out(is_retained):
    backend = CpuBackend()
    with backend.limited(2**40):
        backend.retain_freed(N_BYTES)
        with pytest.raises(MemoryError):
            np.empty(2**46, np.uint8)
        backend.release()
        backend.retain_freed(N_BYTES)
        fill()
    assert not is_retained()


def two_arrays(slice_dim, other_dims, dtype, available_memory, device="cuda"):
    return available_memory // (8 * other_dims[0] * other_dims[1]), dtype


@needs_glibc
def test_section_with_little_memory_retains_nothing(monkeypatch, is_retained):
    monkeypatch.setattr("maxslices.devices.cpu.LARGE_BYTES", 1)
    kept = []

    @method("all", calc_max_slices=two_arrays)
    def looks(data):
        kept.append(is_retained())
        return data + 1

    data = np.zeros((3, 30, 40), np.float32)
    for memory in ("1GB", "5.15MB"):
        maxslices.run(data, [{"method": "looks"}], device="cpu", block=1, memory=memory)
    assert kept == [True, True, True, False, False, False]
    assert not is_retained()


@needs_glibc
def test_run_restores_the_heap_settings_of_the_environment(monkeypatch):
    """`MALLOC_*` of a job script hold after a run, for what else the process does."""
    code = (
        "import numpy as np\n"
        "from maxslices.devices.cpu import CpuBackend\n"
        "from maxslices.tuning.heap import libc\n"
        "set_to, mallopt = {}, libc().mallopt\n"
        "def note(name, value): set_to[name] = value; mallopt(name, value)\n"
        "libc().mallopt = note\n"
        "with CpuBackend().limited(2**40): assert set_to[-3] == 2**17\n"
        "assert (set_to[-1], set_to[-3], set_to[-4]) == (2**21, 2**20, 7), set_to\n"
    )
    values = {"TRIM_THRESHOLD_": 2**21, "MMAP_THRESHOLD_": 2**20, "MMAP_MAX_": 7}
    for name, value in values.items():
        monkeypatch.setenv(f"MALLOC_{name}", str(value))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
