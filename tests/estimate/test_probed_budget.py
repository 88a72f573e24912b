"""Probes that are told to keep within a budget, on a GPU that is made up."""

from __future__ import annotations

import pytest

from .made_up_gpu import ALONE, INPUT_BYTES, MB, needs_of, probed_on
from .measured_teeth import MIB, teeth


def toothed(n):
    """LPRec3d_tomobar without its options that save memory."""
    inside = int(teeth(n) * MIB) - INPUT_BYTES * n
    return {"inside": inside, "seconds": 0.035 + 0.0037 * n}


def first_that_does_not_fit(take, available):
    needs = needs_of(take)
    return next(n for n in range(1, 2161) if needs(n) > available)


@pytest.mark.parametrize("n", [11, 20, 26, 28, 32, 47, 53, 61, 64, 66])
def test_what_is_in_use_stays_within_the_budget_and_the_answer_is_as_good(gpu, n):
    available = int(teeth(n) * MIB)
    found = probed_on(gpu, toothed, available)
    assert gpu.most <= available
    right = first_that_does_not_fit(toothed, available) - 1
    assert 0.9 * right <= found.answer <= right


def test_flats_and_darks_are_part_of_what_is_in_use(gpu):
    gpu.flats_bytes = 3000 * MB
    available = int(teeth(64) * MIB)
    found = probed_on(gpu, toothed, available)
    assert gpu.most <= available
    room = available - gpu.flats_bytes
    right = first_that_does_not_fit(toothed, room) - 1
    assert 0.9 * right <= found.model().max_slices(room, 2160) <= right


@pytest.mark.parametrize("flats", [442, 2300, 2450, 2500, 2560])
def test_what_flats_and_darks_leave_is_answered_as_if_it_were_all(gpu, flats):
    def take(n):
        return {"inside": 44 * MB + 22 * MB * n, "seconds": 0.004}

    available = needs_of(take)(64)
    room = available - flats * MB
    alone = probed_on(gpu, take, room)
    assert alone.model().bytes(1) == needs_of(take)(1)
    gpu.flats_bytes = flats * MB
    found = probed_on(gpu, take, available)
    assert gpu.most <= max(available, flats * MB + needs_of(take)(1))
    assert found.model().max_slices(room, 2160) == alone.answer
    assert alone.answer <= found.answer <= 64
    assert found.model().bytes(1) == needs_of(take)(1)


def test_one_slice_that_is_too_large_is_told_with_its_bytes(gpu):
    def take(n):
        return {"inside": 900 * MB * n}

    found = probed_on(gpu, take, 500 * MB)
    assert found.answer == 0
    assert found.model().bytes(1) == needs_of(take)(1)
    assert set(gpu.counts) == {1}
    assert found.notes == (ALONE,)


@pytest.mark.parametrize("n", [64, 70, 74])
def test_memory_outside_the_pool_which_nothing_limits_is_not_overrun(gpu, n):
    def take(k):
        outside = 26.2 * MB * k + 300 * MB * ((k - 1) % 8)
        return {"inside": 228.1 * MB * k, "outside": outside, "seconds": 0.02 + 0.01 * k}

    available = int(needs_of(take)(n)) + 3 * MB
    found = probed_on(gpu, take, available)
    assert gpu.most <= available
    assert 0.6 * n <= found.answer < first_that_does_not_fit(take, available)


@pytest.mark.parametrize("slices", [3, 2, 1, 0])
def test_data_that_take_more_than_the_budget_are_what_it_is_estimated_with(gpu, slices):
    def take(n):
        times = 1 if gpu.kind_of_data == "even" else 3
        return {"inside": 200 * MB * n * times}

    one = 600 * MB + INPUT_BYTES
    available = slices * one + 50 * MB if slices else one // 2
    found = probed_on(gpu, take, available)
    assert found.answer == slices
    assert found.model().bytes(1) == one
    assert any("its memory depends on the data" in note for note in found.notes)


def test_what_was_stopped_says_nothing_of_more_memory(gpu):
    available = int(teeth(61) * MIB)
    found = probed_on(gpu, toothed, available)
    assert found.covers(available, 2160)
    assert found.covers(available // 2, 2160)
    assert not found.covers(2 * available, 2160)


def test_one_fewer_is_tried_at_once_where_the_pool_loses_less_than_a_slice(gpu):
    def take(n):
        return {"inside": 2000 * MB + 150 * MB * n, "lost": 20 * MB, "seconds": 0.01}

    available = needs_of(take)(64)
    found = probed_on(gpu, take, available)
    assert gpu.most <= available
    assert found.answer == 63
    assert gpu.counts[-2:] == [64, 63]
