"""One allocator for CuPy and torch, with simulated libraries."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import pytest

from maxslices.devices.torch_shared_pool import cached_bytes, release_cache, shared_allocator


@pytest.fixture
def libraries(monkeypatch):
    """The calls in order, and the allocator of CuPy."""
    state = SimpleNamespace(happened=[], allocator="the pool's", refuses=False)

    class Allocator:
        def __init__(self, malloc, free):
            self.functions = malloc, free

        def malloc(self, n_bytes):
            return self.functions[0](n_bytes, 0)

    def set_allocator(allocator):
        if state.refuses:
            raise ValueError("inside using_allocator")
        state.allocator = allocator

    cupy, torch = ModuleType("cupy"), ModuleType("torch")
    cupy.cuda = SimpleNamespace(
        Device=lambda: SimpleNamespace(id=0),
        get_allocator=lambda: state.allocator,
        set_allocator=set_allocator,
        get_current_stream=lambda: SimpleNamespace(ptr=77),
        PythonFunctionAllocator=Allocator,
    )
    note = state.happened.append
    torch.cuda = SimpleNamespace(
        device=lambda number: nullcontext(),
        is_initialized=lambda: True,
        empty_cache=lambda: note("emptied"),
        get_device_properties=lambda number: SimpleNamespace(total_memory=1000),
        memory_reserved=lambda: 100,
        memory_allocated=lambda: 60,
        set_per_process_memory_fraction=lambda share, number: note(share),
        caching_allocator_alloc=lambda n, number, stream: note((n, number, stream)) or 4096,
        caching_allocator_delete=lambda address: note(("freed", address)),
    )
    torch._C = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return state


def test_cupy_takes_from_torch_on_its_own_stream_within_the_budget(libraries):
    with shared_allocator(300):
        assert libraries.happened == ["emptied", 0.4]
        assert libraries.allocator(5) == 4096
        assert libraries.happened[-1] == (5, 0, 77)
        assert libraries.allocator.counted_by == "torch"
    assert libraries.allocator == "the pool's"
    assert libraries.happened[-1] == 1.0


def test_a_budget_beyond_the_device_is_all_of_it(libraries):
    with shared_allocator(3000):
        assert libraries.happened[-1] == 1.0


def test_an_earlier_limit_of_torch_is_kept_and_restored(libraries):
    sys.modules["torch"].cuda.get_per_process_memory_fraction = lambda number: 0.35
    with shared_allocator(300):
        assert libraries.happened[-1] == 0.35
    assert libraries.happened[-1] == 0.35
    with shared_allocator(100):
        assert libraries.happened[-1] == 0.2
    assert libraries.happened[-1] == 0.35


def test_an_allocator_that_cupy_does_not_replace_is_kept(libraries):
    libraries.refuses = True
    with shared_allocator(300):
        assert libraries.allocator == "the pool's"


def test_the_cache_is_the_unused_memory(libraries):
    assert cached_bytes() == 40
    release_cache()
    assert libraries.happened == ["emptied"]
