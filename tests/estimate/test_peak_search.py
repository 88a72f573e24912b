"""Probes by peaks alone, on a GPU that is made up and records no allocations."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from .conftest import install_gpu
from .made_up_gpu import ALONE, INPUT_BYTES, MB, Gpu, needs_of, probed_on
from .measured_teeth import MIB, teeth

TOTAL = 2160
shared_fixture = [HealthCheck.function_scoped_fixture]


def right_answer(needs, available):
    """Most slices of which that many, and any fewer, fit."""
    return next((n for n in range(TOTAL) if needs(n + 1) > available), TOTAL)


def searched(monkeypatch, take, available, seconds=lambda n: 0.005, **kw):
    gpu = install_gpu(monkeypatch, Gpu())
    found = probed_on(gpu, lambda n: take(n) | {"seconds": seconds(n)}, int(available), **kw)
    return gpu, found


lines = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 16)), min_size=1, max_size=4)


@example(pairs=[(0, 2), (20, 1)], n=43)
@settings(max_examples=200, deadline=None, suppress_health_check=shared_fixture)
@given(lines, st.integers(1, 1500))
def test_the_largest_of_several_lines_is_found(monkeypatch, pairs, n):
    def take(k):
        return {"inside": max(a + b * k for a, b in pairs) * 3 * MB}

    needs = needs_of(take)
    available = needs(n) + MB
    gpu, found = searched(monkeypatch, take, available)
    right = right_answer(needs, available)
    assert min(0.98 * right, right - 1) <= found.answer <= right
    assert ALONE in found.notes
    model = found.model()
    assert [r.n_slices for r in found.rungs if model.bytes(r.n_slices) < needs(r.n_slices)] == []
    assert gpu.most <= max(available, needs(1))


@example(fixed=0, a=1, b=4, period=0, n=8)  # what no formula tells
@settings(max_examples=200, deadline=None, suppress_health_check=shared_fixture)
@given(
    st.integers(0, 50),
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from([0, 2, 3, 4, 5, 7, 8, 10, 16, 32]),
    st.integers(8, 600),
)
def test_slices_rounded_up_are_safe_and_close(monkeypatch, fixed, a, b, period, n):
    def take(k):
        rounded = -(-k // period) * period if period else 1 << (k - 1).bit_length()
        return {"inside": (fixed + a * k + b * rounded) * 9 * MB}

    needs = needs_of(take)
    available = needs(n) + MB
    _, found = searched(monkeypatch, take, available)
    right = right_answer(needs, available)
    assert min(0.95 * right, right - 1) <= found.answer <= right


@pytest.mark.parametrize("n", [*range(8, 73, 3), 96, 100, 150, 200])
def test_memory_that_rises_and_falls_never_gives_too_many(monkeypatch, n):
    def take(k):
        return {"inside": int(teeth(k) * MIB) - INPUT_BYTES * k}

    available = teeth(n) * MIB
    _, found = searched(monkeypatch, take, available)
    right = right_answer(needs_of(take), available)
    assert 0.75 * right <= found.answer <= right


@pytest.mark.parametrize("seconds", [0.1, 0.4, 2.0])
@pytest.mark.parametrize("n", [9, 40, 200, 1000])
def test_what_there_was_no_time_for_is_said_and_not_too_much(monkeypatch, n, seconds):
    def take(k):
        return {"inside": 900 * MB + 10 * MB * k + MB * k * k // 4}

    needs = needs_of(take)
    gpu, found = searched(monkeypatch, take, needs(n), lambda k: seconds * (0.5 + k / 20))
    assert found.answer <= n
    assert gpu.now_s <= 45
    if found.answer not in gpu.counts:
        assert not found.sure
        assert any("slices were not run, which takes" in note for note in found.notes)


def test_a_line_is_followed_four_times_as_far_as_it_was_called(monkeypatch):
    def take(k):
        return {"inside": 800 * MB + 22 * MB * k}

    def answered(n):
        gpu, found = searched(monkeypatch, take, needs_of(take)(n), lambda k: 0.05 * k)
        return max(gpu.counts), found.answer

    most, answer = answered(3 * answered(2000)[0])
    assert answer == 3 * most
    most, answer = answered(8 * most)
    assert answer < 8 * most


@pytest.mark.parametrize("n", [17, 18, 20, 33])
def test_what_was_not_called_as_it_might_take_too_much_is_not_proven(monkeypatch, n):
    def take(k):
        return {"inside": 20 * MB * k, "outside": 7 * MB * (-(-k // 16) * 16)}

    needs = needs_of(take)
    _, found = searched(monkeypatch, take, needs(n) + MB)
    if found.answer > right_answer(needs, needs(n) + MB):
        assert not found.sure
        assert any("might take too much: not proven" in note for note in found.notes)


def test_calls_of_many_seconds_are_few(monkeypatch):
    def take(k):
        return {"inside": 22 * MB * k}

    gpu, found = searched(monkeypatch, take, needs_of(take)(100), lambda k: 15.0 * k)
    assert gpu.counts == [1, 1, 2]
    assert "a call takes 15.0 s, so that few were made" in found.notes
    assert found.answer <= 8
    assert not found.sure
