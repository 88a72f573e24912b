"""How long an estimator takes to answer; run with ``pytest --benchmark-only``."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from maxslices import Registry, from_ledger, method, registry

from ..methods.cases import CASES

LIMIT_S = 50e-6
MOST_CALLS = 250
"""Calls of functions that take `LIMIT_S` on a laptop: 189 take 40 to 50 us (2026-11-26)."""
REAL_SHAPE = (1801, 2160, 2560)
AVAILABLE_BYTES = 80 * 10**9


@from_ledger
def _needs(m, shape, dtype, k=3):
    data = m.alloc(shape, dtype)
    work = m.alloc(shape, "float32")
    m.alloc(shape, "float32")
    m.free(data, work)


def by_hand(slice_dim, other_dims, dtype, available_memory, **kwargs):
    return available_memory // (2 * other_dims[0] * other_dims[1] * dtype.itemsize), dtype


def ask(meta, slice_dim=0, dtype="float32", parameters=None):
    dims = tuple(n for axis, n in enumerate(REAL_SHAPE) if axis != slice_dim)
    dtype, parameters = np.dtype(dtype), parameters or {}
    return lambda: meta.calc_max_slices(slice_dim, dims, dtype, AVAILABLE_BYTES, **parameters)


def declared(estimator):
    @method("all", calc_max_slices=estimator, registry=Registry())
    def function(data, k: int = 3):
        return data

    return ask(function.meta)


def count_calls(function):
    """Count the calls of functions within one: time depends on the machine and its load."""
    function()
    counted = 0

    def count(frame, event, argument):
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize("estimator", [_needs, by_hand], ids=["ledger", "by hand"])
def test_a_declared_estimator_answers_at_once(estimator):
    assert count_calls(declared(estimator)) <= MOST_CALLS


@pytest.mark.parametrize("estimator", [_needs, by_hand], ids=["ledger", "by hand"])
def test_benchmark_declared(benchmark, estimator):
    benchmark(declared(estimator))
    assert benchmark.stats.stats.median < LIMIT_S


PACK = {case.method: case for case in reversed(CASES)}


@pytest.mark.parametrize("name", sorted(PACK))
def test_benchmark_pack(benchmark, name):
    case, meta = PACK[name], registry.get(name)
    slice_dim = meta.slice_dims()[0] if case.slice_dim is None else case.slice_dim
    benchmark(ask(meta, slice_dim, case.dtype, case.parameters))
