"""Probes by peaks alone, on a simulated GPU that does not record allocations.

Memory in use stays within the budget, and memory outside the pool counts.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from maxslices.core.block_memory import MODULES_BYTES

from .conftest import install_gpu
from .made_up_gpu import ALONE, INPUT_BYTES, MB, Gpu, check, needs_of, probed_on
from .measured_teeth import MIB, teeth

TOTAL = 2160
shared_fixture = [HealthCheck.function_scoped_fixture]


def right_answer(needs, available):
    """Largest number of slices such that it and all smaller numbers fit."""
    return next((n for n in range(TOTAL) if needs(n + 1) > available), TOTAL)


def searched(monkeypatch, take, available, seconds=lambda n: 0.005, **kw):
    gpu = install_gpu(monkeypatch, Gpu())
    probe = probed_on(gpu, lambda n: take(n) | {"seconds": seconds(n)}, int(available), **kw)
    return gpu, probe


lines = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 16)), min_size=1, max_size=4)


@example(pairs=[(0, 2), (20, 1)], n=43)
@settings(max_examples=200, deadline=None, suppress_health_check=shared_fixture)
@given(lines, st.integers(1, 1500))
def test_the_largest_of_several_lines_is_found(monkeypatch, pairs, n):
    def take(k):
        return {"inside": max(a + b * k for a, b in pairs) * 3 * MB}

    needs = needs_of(take)
    available = needs(n) + MB
    gpu, probe = searched(monkeypatch, take, available)
    right = right_answer(needs, available)
    assert min(0.98 * right, right - 1) <= probe.answer <= right
    assert ALONE in probe.notes
    model = probe.model()
    assert [r.n_slices for r in probe.rungs if model.bytes(r.n_slices) < needs(r.n_slices)] == []
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
    _, probe = searched(monkeypatch, take, available)
    right = right_answer(needs, available)
    assert min(0.95 * right, right - 1) <= probe.answer <= right


@pytest.mark.parametrize("n", [*range(8, 73, 3), 96, 100, 150, 200])
def test_memory_that_rises_and_falls_never_gives_too_many(monkeypatch, n):
    def take(k):
        return {"inside": int(teeth(k) * MIB) - INPUT_BYTES * k}

    available = teeth(n) * MIB
    gpu, probe = searched(monkeypatch, take, available)
    assert gpu.most <= available
    right = right_answer(needs_of(take), available)
    assert 0.75 * right <= probe.answer <= right


@pytest.mark.parametrize("seconds", [0.1, 0.4, 2.0])
@pytest.mark.parametrize("n", [9, 40, 200, 1000])
def test_what_there_was_no_time_for_is_said_and_not_too_much(monkeypatch, n, seconds):
    def take(k):
        return {"inside": 900 * MB + 10 * MB * k + MB * k * k // 4}

    needs = needs_of(take)
    gpu, probe = searched(monkeypatch, take, needs(n), lambda k: seconds * (0.5 + k / 20))
    assert probe.answer <= n
    assert gpu.now_s <= 45
    if probe.answer not in gpu.counts:
        assert not probe.sure
        assert any("slices were not run, which takes" in note for note in probe.notes)


def test_a_line_is_followed_four_times_as_far_as_it_was_called(monkeypatch):
    def take(k):
        return {"inside": 800 * MB + 22 * MB * k}

    def answered(n):
        gpu, probe = searched(monkeypatch, take, needs_of(take)(n), lambda k: 0.05 * k)
        return max(gpu.counts), probe.answer

    most, answer = answered(3 * answered(2000)[0])
    assert answer == 3 * most
    most, answer = answered(8 * most)
    assert answer < 8 * most


@pytest.mark.parametrize("n", [17, 18, 20, 33])
def test_an_answer_beyond_the_calls_that_may_be_made_is_not_proven(monkeypatch, n):
    def take(k):
        return {"inside": 20 * MB * k, "outside": 7 * MB * (-(-k // 16) * 16)}

    needs = needs_of(take)
    _, probe = searched(monkeypatch, take, needs(n) + MB)
    if probe.answer > right_answer(needs, needs(n) + MB):
        assert not probe.sure
        assert any("might need too much memory: not proven" in note for note in probe.notes)


def test_calls_of_many_seconds_are_few(monkeypatch):
    def take(k):
        return {"inside": 22 * MB * k}

    gpu, probe = searched(monkeypatch, take, needs_of(take)(100), lambda k: 15.0 * k)
    assert gpu.counts == [1, 1, 2]
    assert "a call takes 15.0 s, so only a few were made" in probe.notes
    assert probe.answer <= 8
    assert not probe.sure


def toothed(n):
    """LPRec3d_tomobar without its options that save memory."""
    inside = int(teeth(n) * MIB) - INPUT_BYTES * n
    return {"inside": inside, "seconds": 0.035 + 0.0037 * n}


@pytest.mark.parametrize("flats", [442, 2300, 2450, 2500, 2560])
def test_what_flats_and_darks_leave_is_answered_as_if_it_were_all(gpu, flats):
    def take(n):
        return {"inside": 44 * MB + 22 * MB * n, "seconds": 0.004}

    available = needs_of(take)(64)
    room = available - flats * MB
    alone = probed_on(gpu, take, room)
    assert alone.model().bytes(1) == needs_of(take)(1)
    gpu.flats_bytes = flats * MB
    probe = probed_on(gpu, take, available)
    assert gpu.most <= max(available, flats * MB + needs_of(take)(1))
    assert probe.model().max_slices(room, 2160) == alone.answer
    assert alone.answer <= probe.answer <= 64
    assert probe.model().bytes(1) == needs_of(take)(1)


def test_one_slice_that_is_too_large_is_told_with_its_bytes(gpu):
    def take(n):
        return {"inside": 900 * MB * n}

    probe = probed_on(gpu, take, 500 * MB)
    assert probe.answer == 0
    assert probe.model().bytes(1) == needs_of(take)(1)
    assert set(gpu.counts) == {1}
    assert probe.notes == (ALONE,)


@pytest.mark.parametrize("n", [64, 70, 74])
def test_memory_outside_the_pool_which_nothing_limits_is_not_overrun(gpu, n):
    def take(k):
        outside = 26.2 * MB * k + 300 * MB * ((k - 1) % 8)
        return {"inside": 228.1 * MB * k, "outside": outside, "seconds": 0.02 + 0.01 * k}

    available = int(needs_of(take)(n)) + 3 * MB
    probe = probed_on(gpu, take, available)
    assert gpu.most <= available
    assert 0.6 * n <= probe.answer < right_answer(needs_of(take), available) + 1


@pytest.mark.parametrize("slices", [3, 2, 1, 0])
def test_data_that_take_more_than_the_budget_are_what_it_is_estimated_with(gpu, slices):
    def take(n):
        times = 1 if gpu.kind_of_data == "even" else 3
        return {"inside": 200 * MB * n * times}

    one = 600 * MB + INPUT_BYTES
    available = slices * one + 50 * MB if slices else one // 2
    probe = probed_on(gpu, take, available)
    assert probe.answer == slices
    assert probe.model().bytes(1) == one
    assert any("its memory depends on the data" in note for note in probe.notes)


def test_what_was_stopped_says_nothing_of_more_memory(gpu):
    available = int(teeth(61) * MIB)
    probe = probed_on(gpu, toothed, available)
    assert probe.covers(available, 2160)
    assert probe.covers(available // 2, 2160)
    assert not probe.covers(2 * available, 2160)


def test_one_fewer_is_tried_at_once_where_the_pool_loses_less_than_a_slice(gpu):
    def take(n):
        return {"inside": 2000 * MB + 150 * MB * n, "lost": 20 * MB, "seconds": 0.01}

    available = needs_of(take)(64)
    probe = probed_on(gpu, take, available)
    assert gpu.most <= available
    assert probe.answer == 63
    assert gpu.counts[-2:] == [64, 63]


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.3, 0.5])
def test_textures_that_come_and_go_are_a_slope_from_the_first_slice(gpu, seconds):
    def take(n):
        return {"inside": 120 * MB * n, "outside": 26.2 * MB * n, "seconds": seconds * (1 + n / 99)}

    probe = probed_on(gpu, take, 24 * 10**9)
    check(probe, needs_of(take), 24 * 10**9)
    assert any("were outside the pool: counted" in note for note in probe.notes)
    assert gpu.now_s <= (3.0 if seconds < 0.25 else 10.0)


@pytest.mark.parametrize("call", [2, 3, 4, 5, 7, 8])
def test_what_a_library_loads_once_is_counted_once(gpu, call):
    def take(n):
        stays = 514 * MB if len(gpu.counts) + 1 == call else 0
        return {"inside": 150 * MB * n, "stays": stays, "seconds": 0.01}

    probe = probed_on(gpu, take, 24 * 10**9)
    counted = 514 * MB - MODULES_BYTES
    check(probe, lambda n: INPUT_BYTES * n + 150 * MB * n + counted, 24 * 10**9)
    assert any("stay outside the pool" in note for note in probe.notes)


def test_kernels_that_other_slice_counts_load_are_what_the_reserve_is_for(gpu):
    def take(n):  # as raven_filter and remove_stripe_ti on an H200: 17 to 60 MB in all
        stays = 0 if n in gpu.counts else 12 * MB
        return {"inside": 150 * MB * n, "stays": stays, "seconds": 0.01}

    probe = probed_on(gpu, take, 24 * 10**9)
    check(probe, lambda n: INPUT_BYTES * n + 150 * MB * n, 24 * 10**9, least=1.0)
    assert probe.notes == (ALONE,)


def test_a_librarys_cache_that_grows_with_the_slices_is_a_slope(gpu):
    def take(n):
        stays = max(0, 40 * MB * n - gpu.outside)
        return {"inside": 100 * MB * n, "stays": stays, "seconds": 0.01}

    probe = probed_on(gpu, take, 24 * 10**9)

    def needs(n):
        return INPUT_BYTES * n + 100 * MB * n + max(0, 40 * MB * n - MODULES_BYTES)

    check(probe, needs, 24 * 10**9, least=0.95)
    assert any("stay outside the pool" in note for note in probe.notes)


def test_a_jump_that_a_repeated_call_does_not_show_is_not_counted(gpu):
    def take(n):
        outside = 500 * MB if len(gpu.counts) == 6 else 0
        return {"inside": 100 * MB * n, "outside": outside, "seconds": 0.01}

    probe = probed_on(gpu, take, 24 * 10**9)
    check(probe, lambda n: INPUT_BYTES * n + 100 * MB * n, 24 * 10**9, least=0.99)
    assert probe.notes == (ALONE,)


@pytest.mark.parametrize("n", [23, 61])
def test_a_workspace_that_is_replaced_by_a_larger_one_counts_once(gpu, n):
    """It is freed before the larger one is allocated, and stays in the pool."""

    def take(k):
        larger = INPUT_BYTES * k > gpu.kept
        gpu.freed = gpu.kept if larger else 0
        gpu.kept = max(gpu.kept, INPUT_BYTES * k)
        return {"inside": INPUT_BYTES * k + (gpu.kept if larger else 0)}

    probe = probed_on(gpu, take, 3 * INPUT_BYTES * n)
    assert probe.answer == n


@pytest.mark.parametrize("n", [23, 61])
def test_the_entry_of_the_first_call_in_a_cache_is_no_constant(gpu, n):
    entries = set()

    def take(k):
        fresh = k not in entries
        entries.add(k)
        gpu.kept = sum(INPUT_BYTES // 3 * each for each in entries)
        return {"inside": INPUT_BYTES * k + fresh * INPUT_BYTES // 3 * k}

    probe = probed_on(gpu, take, (2 * INPUT_BYTES + INPUT_BYTES // 3) * n)
    assert probe.answer == n


@pytest.mark.parametrize("n", [23, 61])
def test_a_leak_is_counted_for_all_blocks_of_a_scan(gpu, n):
    lost = INPUT_BYTES // 40

    def take(k):
        gpu.kept += lost * k
        return {"inside": (INPUT_BYTES + lost) * k}

    further_blocks = -(-2160 // n) - 1
    probe = probed_on(gpu, take, (2 * INPUT_BYTES + lost) * n + lost * n * further_blocks)
    assert n - 1 <= probe.answer <= n
    assert any(note.startswith("each call loses memory") for note in probe.notes)


@pytest.mark.parametrize("n", [61, 130, 240])
def test_a_leak_of_each_call_is_counted_for_as_many_blocks_as_the_answer_makes(gpu, n):
    lost = 30 * MB

    def take(k):
        gpu.kept += lost
        return {"inside": INPUT_BYTES * k + lost}

    def needs(k):
        return 2 * INPUT_BYTES * k + lost * -(-2160 // k)

    probe = probed_on(gpu, take, needs(n))
    assert probe.model().bytes(probe.answer) == needs(probe.answer)
    assert probe.answer == n
