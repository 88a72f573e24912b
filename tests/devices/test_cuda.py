"""The GPU's backend on a simulated CuPy."""

from __future__ import annotations

import ctypes
import gc
from types import SimpleNamespace

import numpy as np
import pytest

from maxslices.core.block_memory import MODULES_BYTES
from maxslices.devices.cuda import FREE_SHARE, CudaBackend, limited_pool
from maxslices.devices.cuda_copies import CopyEngine, pinned, pinned_empty
from maxslices.tuning.garbage_collection import quick_collections
from tests.devices.fake_cupy import CUDARuntimeError, OutOfMemoryError, install


@pytest.fixture
def cupy(monkeypatch, tmp_path):
    monkeypatch.setenv("MAXSLICES_RECORDS", str(tmp_path))
    return install(monkeypatch, n_devices=2)


def test_free_memory_includes_unused_memory_of_the_pool(cupy):
    reserved = 100_000 + MODULES_BYTES
    assert CudaBackend(1).free_bytes() == int(100_700 * FREE_SHARE) + reserved
    assert set(cupy.entered) == {1, None}


def test_the_pool_is_limited_to_memory_in_use_and_the_budget(cupy):
    cupy.pool.limit = 77
    with CudaBackend(1).limited(5000):
        assert cupy.pool.limit == 300 + 5000
        assert cupy.entered == [1]
    assert cupy.pool.limit == 77
    assert cupy.entered == [1, None]


@pytest.mark.usefixtures("nothing_frozen")
def test_objects_are_unfrozen_by_the_context_that_froze_them(cupy, monkeypatch):
    calls = []  # the number of frozen objects also falls if other threads free some
    for name in ("freeze", "unfreeze"):
        do = getattr(gc, name)
        monkeypatch.setattr(gc, name, lambda name=name, do=do: [calls.append(name), do()])
    backend, before = CudaBackend(0), gc.get_freeze_count()
    with backend.limited(5000):
        assert gc.get_freeze_count() > before
        with backend.limited(100):
            pass
        assert calls == ["freeze"]
        assert gc.get_freeze_count() > before
    assert calls == ["freeze", "unfreeze"]
    assert gc.get_freeze_count() == before


@pytest.mark.usefixtures("nothing_frozen")
def test_objects_frozen_by_python_itself_are_ignored(monkeypatch):
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)  # from the beginning, Python 3.12
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    monkeypatch.setattr(gc, "unfreeze", frozen.clear)
    with quick_collections():
        assert frozen
    assert not frozen


@pytest.mark.usefixtures("nothing_frozen")
def test_objects_are_unfrozen_if_limiting_the_pool_fails(cupy):
    def fails():
        raise CUDARuntimeError("cudaErrorIllegalAddress")

    cupy.pool.free_all_blocks = fails
    before = gc.get_freeze_count()
    with pytest.raises(CUDARuntimeError), CudaBackend(0).limited(5000):
        pass
    assert gc.get_freeze_count() == before


def test_memory_is_pinned_for_all_devices_and_unpinned_before_python_ends(cupy, monkeypatch):
    calls = []
    cupy.cuda.runtime.hostRegister = lambda address, n_bytes, flags: calls.append((n_bytes, flags))
    cupy.cuda.runtime.hostUnregister = lambda address: calls.append("unregistered")
    array = pinned((3, 5), np.dtype("float32"))
    assert calls == [(60, 1)]
    del array
    assert calls.pop() == "unregistered"
    array = pinned((2, 5), np.dtype("float32"))
    monkeypatch.setattr("sys.is_finalizing", lambda: True)
    del array
    assert calls == [(60, 1), (40, 1)]


def test_all_pages_of_pinned_memory_exist_before_registration(cupy):
    mincore, n_pages = ctypes.CDLL(None).mincore, []

    def register(address, n_bytes, flags):
        pages = np.zeros(-(-n_bytes // 4096), np.uint8)
        place = ctypes.c_void_p(address), ctypes.c_size_t(n_bytes)
        assert mincore(*place, pages.ctypes.data_as(ctypes.c_void_p)) == 0
        n_pages.append(int((pages & 1).sum()))

    cupy.cuda.runtime.hostRegister = register
    cupy.cuda.runtime.hostUnregister = lambda address: None
    array = pinned_empty((9, 2**20), np.float32)
    small = pinned_empty(5, np.uint8)
    assert n_pages == [array.nbytes // 4096, 1]
    assert small.shape == (5,)


def test_an_upload_without_memory_waits_for_copies_in_progress(cupy, monkeypatch):
    waited = []

    class Event:
        def record(self, stream):
            pass

        def synchronize(self):
            waited.append(self)

    class Stream:
        null = None
        ptr = 1

        def __init__(self, non_blocking):
            pass

        def wait_event(self, event):
            pass

    pieces = [np.empty(2**24, np.uint8)]

    def staging(engine, n_bytes):
        if not pieces:
            raise MemoryError
        return pieces.pop()

    cupy.cuda.Event, cupy.cuda.Stream, cupy.empty = Event, Stream, lambda *args: FakeArray(*args)
    cupy.cuda.runtime.memcpyAsync = lambda *args: None
    monkeypatch.setattr(CopyEngine, "staging", staging)
    engine = CopyEngine(0)
    waited.clear()
    with pytest.raises(MemoryError):
        engine.upload(np.zeros(2**25, np.uint8))
    assert len(waited) == 1


class FakeArray(np.ndarray):
    """An array of a simulated device, with an address as CuPy's arrays have."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


def test_the_first_error_of_a_failing_device_is_raised(cupy):
    def fails():
        raise CUDARuntimeError("cudaErrorIllegalAddress")

    def run():
        with CudaBackend(0).limited(5000):
            cupy.pool.free_all_blocks = fails
            raise ValueError("the first")

    with pytest.raises(ValueError, match="the first"):
        run()
    assert cupy.pool.limit == 0


def unused_after(cupy, n_bytes):
    """Fill the pool, and free everything that was not in use before."""
    before = cupy.pool.in_use
    cupy.allocator(n_bytes)
    cupy.pool.in_use = before


def test_unused_blocks_are_freed_for_a_request_beyond_the_limit(cupy):
    with CudaBackend(0).limited(1000):
        unused_after(cupy, 600)
        assert cupy.allocator(1000) == 1000
        assert cupy.pool.held == 300 + 1000


def test_garbage_is_collected_for_a_request_beyond_the_limit(cupy):
    class Block:
        def __init__(self):
            self.cycle = self
            self.n_bytes = cupy.allocator(600)

        def __del__(self):
            cupy.pool.in_use -= self.n_bytes

    with CudaBackend(0).limited(1000):
        gc.collect()
        Block()
        assert cupy.allocator(1000) == 1000


def test_a_request_beyond_the_limit_is_refused(cupy):
    with CudaBackend(0).limited(1000):
        cupy.allocator(400)
        with pytest.raises(OutOfMemoryError):
            cupy.allocator(601)
        assert cupy.allocator(600) == 600


def test_the_allocator_is_restored(cupy):
    before = cupy.allocator
    with CudaBackend(0).limited(1000):
        with CudaBackend(0).limited(500):
            unused_after(cupy, 300)
            assert cupy.allocator(500) == 500
        assert cupy.allocator != before
    assert cupy.allocator == before


def test_an_allocator_other_than_the_pool_is_not_replaced(cupy):
    def own(n_bytes):
        return -n_bytes

    cupy.allocator = own
    with limited_pool(cupy, 1000):
        assert cupy.allocator is own
    assert cupy.allocator is own


def test_an_allocator_that_was_set_meanwhile_is_kept(cupy):
    def own(n_bytes):
        return -n_bytes

    with limited_pool(cupy, 1000):
        cupy.allocator = own
    assert cupy.allocator is own


@pytest.mark.parametrize(
    ("text", "raised", "message"),
    [
        ("cudaErrorMemoryAllocation: out of", MemoryError, "cannot pin 60 bytes of host memory"),
        ("cudaErrorIllegalAddress: an illegal", CUDARuntimeError, "^cudaErrorIllegalAddress"),
    ],
)
def test_a_failure_to_pin_differs_from_a_failure_of_the_device(cupy, text, raised, message):
    def refuse(address, n_bytes, flags):
        raise CUDARuntimeError(text)

    cupy.cuda.runtime.hostRegister = refuse
    with pytest.raises(raised, match=message):
        pinned((3, 5), np.dtype("float32"))
