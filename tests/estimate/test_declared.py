from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxslices import Registry, from_ledger, method
from maxslices.errors import EstimatorError
from maxslices.estimate import ModelRequest
from maxslices.estimate.model_resolver import declared_model, supports_device


def model_of(estimator, device="cuda", dims=(10, 20), dtype="float32", **parameters):
    return declared_model(
        ModelRequest(meta_of(estimator), 0, dims, np.dtype(dtype), parameters, 100), device
    )


def meta_of(estimator):
    def example(data, *, size: int = 3): ...

    return method("all", calc_max_slices=estimator, registry=Registry())(example).meta


@given(st.integers(0, 2**40), st.integers(2, 2**35), st.integers(1, 3000))
def test_a_hand_written_estimator_is_inverted_exactly(fixed, per_slice, n):
    def estimate(slice_dim, other_dims, dtype, available_memory, **kwargs):
        return (available_memory - fixed) // per_slice, dtype  # below 0 for little memory

    model = model_of(estimate)
    assert model.bytes(n) == fixed + n * per_slice
    assert model.max_slices(fixed + n * per_slice) == n
    assert model.max_slices(fixed + n * per_slice - 1) == n - 1


def test_it_is_asked_with_a_dtype_parameters_and_defaults():
    def estimate(slice_dim, other_dims, dtype, available_memory, size):
        assert type(slice_dim) is int
        assert type(available_memory) is int
        assert isinstance(dtype, np.dtype)
        return available_memory // (other_dims[0] * other_dims[1] * dtype.itemsize * size), dtype

    assert model_of(estimate).bytes(7) == 7 * 10 * 20 * 4 * 3
    assert model_of(estimate, size=5).bytes(7) == 7 * 10 * 20 * 4 * 5
    assert model_of(estimate, dtype=np.float64).bytes(1) == 10 * 20 * 8 * 3


def test_an_estimator_that_names_the_device_is_told():
    def estimate(slice_dim, other_dims, dtype, available_memory, device):
        return available_memory // (100 if device == "cpu" else 300), dtype

    assert model_of(estimate, "cpu").bytes(1) == 100
    assert model_of(estimate, "cuda").bytes(1) == 300
    assert supports_device(meta_of(estimate), "cpu")


def test_one_that_does_not_speaks_of_cuda():
    def estimate(slice_dim, other_dims, dtype, available_memory, **kwargs):
        assert "device" not in kwargs
        return available_memory // 100, dtype

    assert model_of(estimate, "cpu").bytes(1) == 100
    assert supports_device(meta_of(estimate), "cuda")
    assert not supports_device(meta_of(estimate), "cpu")
    assert not supports_device(meta_of(None), "cuda")


def test_a_ledger_gives_its_model_directly():
    calls = []

    @from_ledger
    def needs(m, shape, dtype, size, slice_dim):
        calls.append(shape)
        m.alloc(shape, dtype)
        m.alloc_bytes(size + slice_dim)

    model = model_of(needs, "cpu", size=7)
    assert [model.bytes(n) for n in (1, 2, 1000)] == [807, 1607, 800_007]
    assert calls == [(1, 10, 20), (2, 10, 20), (1000, 10, 20)]
    assert model_of(needs, "cuda").bytes(1) == 1024 + 512
    assert supports_device(meta_of(needs), "cpu")


def test_what_a_ledger_keeps_is_in_the_model():
    @from_ledger
    def needs(m, shape, dtype):
        m.alloc(shape, dtype)
        m.fft(shape, "float32", (2,), "r2c")

    model = model_of(needs, dims=(64, 2560))
    assert model.kept_bytes(3) == 3 * 64 * 1280 * 8
    assert model.bytes(3) == 3 * 64 * 2560 * 4 + model.kept_bytes(3)


def test_an_estimator_that_counts_up_is_not_asked_about_far_more_than_it_takes():
    amounts = []

    def counting(slice_dim, other_dims, dtype, available_memory, **kwargs):
        amounts.append(available_memory)
        return available_memory // 10**6, dtype

    model_of(counting).max_slices(10**9, limit=2000)
    assert max(amounts) <= 16 * 2000 * 10**6


def answering(value):
    return lambda slice_dim, other_dims, dtype, available_memory, **kwargs: value


def shrinking(slice_dim, other_dims, dtype, available_memory, **kwargs):
    return (available_memory if available_memory < 2**30 else 2**20) // 1000, dtype


def fragile(slice_dim, other_dims, dtype, available_memory, **kwargs):
    if available_memory > 2**30:
        raise OverflowError("too much")
    return available_memory // 1000, dtype


@from_ledger
def broken(m, shape, dtype, size):
    m.alloc(shape, dtype)
    if shape[0] > 10:
        m.alloc_bytes(1.5)


@from_ledger
def choosy(m, shape, dtype, size):
    raise ValueError("size must be odd, not 4")


@from_ledger
def ending(m, shape, dtype):
    raise SystemExit(4)


@from_ledger
def empty(m, shape, dtype): ...


ASKED = r"\(slice_dim=0, other_dims=\(10, 20\), dtype=float32, size=4\) \(.*test_declared.py:\d+\)"


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        *(
            (answering((n, "f4")), f"{ASKED} returns {n} slices however much")
            for n in (0, -(10**9))
        ),
        (answering((50, "f4")), "says that 50 slices fit in 1 byte"),
        *(
            (answering(wrong), r"example: calc_max_slices <lambda>\(0, \(10, 20\)")
            for wrong in ((9.5, "f4"), (float("nan"), "f4"), (None, "f4"), None, 9)
        ),
        (shrinking, r"shrinking\(.*slices for \d+ bytes, but 1048 for \d+: more memory"),
        (fragile, r"fragile\(.* raised OverflowError: too much"),
        (broken, r"example: calc_max_slices broken\(<ledger on cuda>, \(\d+, .*raised TypeError"),
        (choosy, r"choosy\(.*size=4\) raised ValueError: size must be odd, not 4 \(.*py:\d+\)$"),
        (ending, r"ending\(.*\) raised SystemExit: 4"),
        (empty, r"its ledger empty \(.*test_declared.py:\d+\) counts no mem"),
    ],
)
def test_an_estimator_that_fails_is_named_with_what_it_was_asked(estimator, message):
    with pytest.raises(EstimatorError, match=message):
        model_of(estimator, size=4).bytes(10**6)
