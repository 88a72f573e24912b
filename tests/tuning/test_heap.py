import ctypes
import mmap
import resource
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import maxslices
from maxslices import method
from maxslices.devices.cpu import CpuBackend
from maxslices.tuning import malloc_retain as heap
from maxslices.tuning import page_prefault as pages
from maxslices.tuning.page_prefault import PagesAhead

N_BYTES = 2**26
THREAD = "maxslices pages"
ROOT = Path(__file__).parents[2]

needs_glibc = pytest.mark.skipif(not heap._is_glibc(), reason="another C library than glibc")


def faults():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def faults_of(call):
    before = faults()
    call()
    return faults() - before


def fill():
    np.empty(N_BYTES, np.uint8)[:] = 1


def resident_bytes():
    with open("/proc/self/statm") as file:
        return mmap.PAGESIZE * int(file.read().split()[1])


@pytest.fixture
def is_kept_now(monkeypatch):
    """Whether the heap keeps what is freed, as the C library was told last."""
    told = [False]
    before = heap._set

    def note(is_kept):
        told[0] = is_kept
        before(is_kept)

    monkeypatch.setattr(heap, "_set", note)
    return lambda: told[0]


def can_populate():
    place = np.empty(2**24, np.uint8)
    first = -(-place.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    return heap._is_glibc() and pages.libc().madvise(first, mmap.PAGESIZE, 23) == 0


def makes_pages_once_and_gives_them_back():
    backend = CpuBackend()
    with backend.limited(2**40):
        backend.reserve(N_BYTES, N_BYTES)
        backend.reserve(N_BYTES, N_BYTES)
        fill()
        before = resident_bytes()
        assert faults_of(fill) < 8
    assert heap._n_keepers == 0
    assert before - resident_bytes() > N_BYTES // 2
    assert faults_of(fill) >= 16  # pages of 4 MiB at most


@needs_glibc
def test_small_arrays_are_left_as_they_are():
    backend = CpuBackend()
    backend.reserve(N_BYTES, heap.LARGE_BYTES - 1)
    assert heap._n_keepers == 0
    backend.reserve(N_BYTES, heap.LARGE_BYTES)
    assert heap._n_keepers == 1
    backend.release()
    assert heap._n_keepers == 0


def is_left_to_another_run():
    first, second = CpuBackend(), CpuBackend()
    first.reserve(N_BYTES, N_BYTES)
    second.reserve(N_BYTES, N_BYTES)
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
    code = f"from tests.tuning import test_heap; test_heap.{part.__name__}()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@needs_glibc
def test_where_memory_ran_out_once_nothing_is_wrong():
    backend = CpuBackend()
    with backend.limited(2**40):
        backend.reserve(N_BYTES, N_BYTES)
        with pytest.raises(MemoryError):
            np.empty(2**46, np.uint8)
        backend.release()
        backend.reserve(N_BYTES, N_BYTES)
        fill()
    assert heap._n_keepers == 0


@pytest.mark.skipif(not can_populate(), reason="the system makes no pages ahead")
def test_pages_are_there_before_they_are_written_to():
    place = np.empty(N_BYTES, np.uint8)
    place[: 2**20] = 7
    PagesAhead(place.ctypes.data, place.nbytes).wait()
    assert (place[: 2**20] == 7).all()
    assert faults_of(lambda: place.fill(1)) < 8


def test_pages_that_cannot_be_made_ahead_are_made_when_written_to(monkeypatch):
    monkeypatch.setattr(pages, "_POPULATE_WRITE", 12345)
    place = np.empty(N_BYTES, np.uint8)
    asked = pages.libc().madvise(place.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE, 1, 12345)
    assert asked == -1
    PagesAhead(place.ctypes.data, place.nbytes).wait()
    assert faults_of(lambda: place.fill(1)) >= 16  # pages of 4 MiB at most
    assert (place == 1).all()


def test_memory_that_is_gone_is_left_alone():
    place = np.empty(N_BYTES, np.uint8)
    ahead = PagesAhead(place.ctypes.data, place.nbytes)
    del place
    ahead.stop()
    assert THREAD not in [thread.name for thread in threading.enumerate()]


def two_arrays(slice_dim, other_dims, dtype, available_memory, device="cuda"):
    return available_memory // (8 * other_dims[0] * other_dims[1]), dtype


@needs_glibc
@pytest.mark.parametrize("is_kept", [True, False])
def test_what_a_c_library_takes_is_seen_in_a_run(monkeypatch, is_kept, is_kept_now):
    malloc = pages.libc().malloc
    malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    pages.libc().free.argtypes = [ctypes.c_void_p]
    kept = []

    @method("all", calc_max_slices=two_arrays)
    def takes_memory(data):
        kept.append(is_kept_now())
        place = malloc(N_BYTES)
        ctypes.memset(place, 1, N_BYTES)
        pages.libc().free(place)
        return data + 1

    monkeypatch.setattr(heap, "LARGE_BYTES", 0 if is_kept else 2**60)
    data = np.zeros((32, 30, 40), np.float32)
    report = maxslices.run(data, [{"method": "takes_memory"}], device="cpu", block=4)
    assert kept == [is_kept, False, *[is_kept] * 6]
    assert "were allocated elsewhere" in report.sections[0].unseen[0]
    assert (report.result == 1).all()
    assert heap._n_keepers == 0


@needs_glibc
def test_a_section_without_much_room_keeps_nothing(monkeypatch, is_kept_now):
    monkeypatch.setattr(heap, "LARGE_BYTES", 1)
    kept = []

    @method("all", calc_max_slices=two_arrays)
    def looks(data):
        kept.append(is_kept_now())
        return data + 1

    data = np.zeros((3, 30, 40), np.float32)
    for memory in ("1GB", "2MB"):
        maxslices.run(data, [{"method": "looks"}], device="cpu", block=1, memory=memory)
    assert kept == [True, False, True, False, False, False]  # the second block is measured
