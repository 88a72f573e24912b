from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxslices import MemoryModel, from_ledger
from maxslices.core.memory_model import MAX_BYTES, MAX_SLICES, UNREACHABLE_BYTES

sizes = st.one_of(st.just(0), st.integers(0, 10**4), st.integers(0, 2**45))
slopes = st.one_of(st.integers(1, 10**4), st.integers(1, 2**36))


@st.composite
def linear_models(draw):
    return MemoryModel.linear(draw(sizes), draw(slopes))


@st.composite
def piecewise_models(draw):
    points = draw(st.lists(st.tuples(st.integers(1, 5000), sizes), min_size=1, max_size=7))
    return MemoryModel.piecewise(points)


@st.composite
def stepped_models(draw):
    fixed, step, every = draw(sizes), draw(slopes), draw(st.integers(1, 500))
    return MemoryModel(lambda n: fixed + -(-n // every) * step)


@st.composite
def ledger_models(draw):
    chunk, device = draw(st.integers(1, 40)), draw(st.sampled_from(["cuda", "cpu"]))

    @from_ledger
    def needs(m, shape, dtype):
        m.alloc(shape, dtype)
        m.alloc(shape, "float32")
        part = (min(shape[0], chunk), shape[1], shape[2])
        work = m.alloc(part, "complex64")
        m.fft(part, "complex64", (1, 2), "r2c")
        m.free(work)

    dims = draw(st.tuples(st.integers(1, 3000), st.integers(1, 3000)))
    return needs.slices_model(0, dims, "uint16", device)


@st.composite
def inverted_models(draw):
    fixed, step = draw(sizes), draw(slopes)
    return MemoryModel.from_max_slices(lambda available: max(0, available - fixed) // step)


def sums(models):
    return st.one_of(
        st.tuples(models, models).map(lambda pair: pair[0] + pair[1]),
        st.lists(models, max_size=3).map(MemoryModel.maximum),
        st.tuples(models, sizes).map(lambda pair: pair[0].plus(pair[1])),
        st.tuples(models, st.integers(0, 20), st.integers(1, 5000)).map(
            lambda parts: parts[0].widened(parts[1], parts[2])
        ),
    )


simple = st.one_of(
    linear_models(), piecewise_models(), stepped_models(), ledger_models(), inverted_models()
)
models = st.one_of(simple, sums(simple))
limits = st.one_of(st.integers(0, 10), st.integers(0, 10**4), st.just(MAX_SLICES))


@given(models, st.integers(-5, 2**58), limits)
def test_max_slices_is_the_most_that_fits(model, available, limit):
    n = model.max_slices(available, limit)
    assert 0 <= n <= limit
    assert n == 0 or model.bytes(n) <= available
    assert n == limit or model.bytes(n + 1) > available


@given(models, st.lists(st.integers(0, 6000), min_size=2, max_size=20))
def test_bytes_never_decrease(model, slices):
    counts = [model.bytes(n) for n in sorted(slices)]
    assert counts == sorted(counts)
    assert all(type(n_bytes) is int for n_bytes in counts)


@pytest.mark.parametrize("available", [10**9, 10**10, 140 * 10**9])
def test_a_nearly_straight_line_is_inverted_in_a_few_calls(available):
    queries = []

    def bytes_at(n: int) -> int:
        queries.append(n)
        chunk = min(n, 16)
        return -(-n * 22_118_411 // 512) * 512 + -(-chunk * 88_473_601 // 512) * 512

    n = MemoryModel(bytes_at).max_slices(available)
    calls = len(queries)
    assert bytes_at(n) <= available < bytes_at(n + 1)
    assert calls <= 8


@pytest.mark.parametrize("fixed", [0, 10**6])
def test_a_ledger_is_called_for_few_more_slices_than_fit(fixed):
    queries = []

    @from_ledger
    def needs(m, shape, dtype):
        queries.append(shape[0])
        assert shape[0] <= 10_000
        m.alloc_bytes(fixed)
        for _ in range(shape[0]):
            m.alloc(shape[1:], dtype)

    assert needs(0, (10, 20), "float32", fixed + 800 * 1000 + 799, device="cpu") == (1000, None)
    assert max(queries) <= 4 * 1001


@given(sizes, slopes, st.integers(1, 10**4))
def test_an_inverted_estimator_is_called_rarely(fixed, step, n):
    queries = []
    model = MemoryModel.from_max_slices(
        lambda available: queries.append(available) or max(0, available - fixed) // step
    )
    assert model.bytes(n) == fixed + n * step
    assert len(queries) <= 12 + 5 * 60
    assert min(queries) >= 1
    assert max(queries) <= max(2**20, 16 * (fixed + n * step))


@pytest.mark.parametrize("most", [0, 1, 100])
def test_an_estimator_that_stops_growing_ends(most):
    queries = []
    model = MemoryModel.from_max_slices(
        lambda available: queries.append(available) or min(most, available // 1000)
    )
    assert model.bytes(most) == 1000 * most
    assert model.bytes(most + 1) == UNREACHABLE_BYTES
    assert model.max_slices(10**15) == most
    assert len(queries) < 1500
    assert max(queries) <= MAX_BYTES


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        (
            [(7, 1009), (1, 101), (4, 211)],
            {0: 0, 1: 101, 4: 211, 7: 1009, 2: 138, 8: 1275},  # lines are rounded up
        ),
        ([(5, 100), (6, 130)], {1: 100}),  # flat below the first
        ([(2, 100), (4, 90), (4, 80), (8, 140)], {2: 100, 3: 100, 4: 100, 6: 120}),  # lifted
        ([(3, 100)], {1: 100, 3: 100, 4: 134, 6: 200}),  # the average beyond a single point
    ],
)
def test_a_piecewise_model_goes_through_its_points(points, expected):
    model = MemoryModel.piecewise(points)
    assert {n: model.bytes(n) for n in expected} == expected


@pytest.mark.parametrize("points", [[], [(0, 5)], [(-1, 5)], [(2, -5)]])
def test_invalid_points_are_refused(points):
    with pytest.raises(ValueError, match="point"):
        MemoryModel.piecewise(points)


def test_numpy_integers_do_not_overflow():
    model = MemoryModel.linear(np.int64(10), np.int64(2**40))
    assert model.bytes(np.int32(2**30)) == 10 + 2**70
    assert model.max_slices(np.int64(2**62)) == 2**22 - 1


def test_the_maximum_includes_memory_kept_by_other_models():
    first = MemoryModel(lambda n: 100 * n, lambda n: 7 * n)
    second = MemoryModel(lambda n: 90 * n, lambda n: 31 * n)
    both = MemoryModel.maximum([first, second])
    assert both.bytes(2) == max(2 * (100 + 31), 2 * (90 + 7))
    assert both.kept_bytes(2) == 2 * (7 + 31)
    assert MemoryModel.maximum([]).bytes(5) == 0


def test_a_sum_adds_peaks_and_kept_memory():
    total = MemoryModel(lambda n: 2 * n, lambda n: n) + MemoryModel.linear(3, 5)
    assert total.bytes(7) == 14 + 3 + 35
    assert total.kept_bytes(7) == 7
    assert total.bytes(0) == 0
    with pytest.raises(TypeError):
        total + 5


def test_a_halo_is_limited_to_the_array():
    model = MemoryModel(lambda n: 10 * n, lambda n: n).widened(4, total=9)
    assert [model.bytes(n) for n in (1, 5, 8, 9, 12)] == [50, 90, 90, 90, 120]
    assert model.kept_bytes(2) == 6
