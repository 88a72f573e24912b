"""FFT plans that methods ask CuPy for are put into its cache while that is wanted."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from maxslices.tuning.fft_plan_cache import CUPY_FUNCTION, CUPY_MODULE, keep_fft_plans


@pytest.fixture
def cupyx(monkeypatch):
    """A simulated module of CuPy: plans by shape, cached if asked for."""
    module = ModuleType(CUPY_MODULE)
    module.cache, module.new_plans = {}, []

    def make(shape, fft_type, axes=None, order="C", out_size=None, to_cache=True):
        key = (shape, fft_type, axes, order, out_size)
        if key in module.cache:
            return module.cache[key]
        module.new_plans.append(key)
        plan = object()
        if to_cache:
            module.cache[key] = plan
        return plan

    setattr(module, CUPY_FUNCTION, make)
    module.get_fft_plan = lambda shape: getattr(module, CUPY_FUNCTION)(
        shape, 41, axes=(1, 2), order="C", out_size=None, to_cache=False
    )
    monkeypatch.setitem(sys.modules, CUPY_MODULE, module)
    yield module
    keep_fft_plans(False)


def test_plan_is_made_once_while_plans_are_kept(cupyx):
    cupyx.get_fft_plan((4, 8, 8))
    assert cupyx.cache == {}
    keep_fft_plans(True)
    plans = {id(cupyx.get_fft_plan((4, 8, 8))) for _ in range(3)}
    keep_fft_plans(True)
    plans.add(id(cupyx.get_fft_plan((4, 8, 8))))
    assert len(plans) == len(cupyx.cache) == 1
    assert len(cupyx.new_plans) == 2
    keep_fft_plans(False)
    cupyx.get_fft_plan((2, 8, 8))
    assert len(cupyx.cache) == 1


def test_function_of_cupy_is_restored(cupyx):
    before = getattr(cupyx, CUPY_FUNCTION)
    keep_fft_plans(True)
    keep_fft_plans(True)
    assert getattr(cupyx, CUPY_FUNCTION) is not before
    keep_fft_plans(False)
    assert getattr(cupyx, CUPY_FUNCTION) is before
    keep_fft_plans(False)
    assert getattr(cupyx, CUPY_FUNCTION) is before


def test_missing_module_of_cupy_is_ignored(monkeypatch):
    monkeypatch.delitem(sys.modules, CUPY_MODULE, raising=False)
    keep_fft_plans(True)
    assert CUPY_MODULE not in sys.modules
    another = ModuleType("another")
    before = dict(vars(another))
    monkeypatch.setitem(sys.modules, CUPY_MODULE, another)
    keep_fft_plans(True)
    keep_fft_plans(False)
    assert vars(another) == before
