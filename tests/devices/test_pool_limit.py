"""A pool that reaches its limit gives back what it does not use before it refuses."""

import gc

import pytest

from maxslices.devices.cuda import CudaBackend, limited_pool

from . import fake_cupy


@pytest.fixture
def cupy(monkeypatch):
    return fake_cupy.install(monkeypatch)


def unused_after(cupy, n_bytes):
    """Fill the pool, and free all of it but what was in use before."""
    before = cupy.pool.in_use
    cupy.allocator(n_bytes)
    cupy.pool.in_use = before


def test_unused_blocks_are_given_back_for_a_request_beyond_the_limit(cupy):
    with CudaBackend(0).limited(1000):
        unused_after(cupy, 600)
        assert cupy.allocator(1000) == 1000
        assert cupy.pool.held == 300 + 1000


def test_garbage_is_collected_for_it(cupy):
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


def test_what_is_beyond_the_limit_in_any_case_is_refused(cupy):
    with CudaBackend(0).limited(1000):
        cupy.allocator(400)
        with pytest.raises(fake_cupy.OutOfMemoryError):
            cupy.allocator(601)
        assert cupy.allocator(600) == 600


def test_the_allocator_is_put_back(cupy):
    before = cupy.allocator
    with CudaBackend(0).limited(1000):
        with CudaBackend(0).limited(500):
            unused_after(cupy, 300)
            assert cupy.allocator(500) == 500
        assert cupy.allocator != before
    assert cupy.allocator == before


def test_an_allocator_that_is_not_the_pools_stays(cupy):
    def own(n_bytes):
        return -n_bytes

    cupy.allocator = own
    with limited_pool(cupy, 1000):
        assert cupy.allocator is own
    assert cupy.allocator is own


def test_one_that_was_set_meanwhile_stays(cupy):
    def own(n_bytes):
        return -n_bytes

    with limited_pool(cupy, 1000):
        cupy.allocator = own
    assert cupy.allocator is own
