"""Memory outside a GPU's pool: what stays, and what comes and goes; on a GPU that is made up."""

from __future__ import annotations

import pytest

from maxslices.core.block_memory import MODULES_BYTES

from .made_up_gpu import ALONE, INPUT_BYTES, MB, check, needs_of, probed_on


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.3, 0.5])
def test_textures_that_come_and_go_are_a_slope_from_the_first_slice(gpu, seconds):
    def take(n):
        return {"inside": 120 * MB * n, "outside": 26.2 * MB * n, "seconds": seconds * (1 + n / 99)}

    found = probed_on(gpu, take, 24 * 10**9)
    check(found, needs_of(take), 24 * 10**9)
    assert any("were outside the pool: counted" in note for note in found.notes)
    assert gpu.now_s <= (3.0 if seconds < 0.25 else 10.0)


@pytest.mark.parametrize("call", [2, 3, 4, 5, 7, 8])
def test_what_a_library_loads_once_is_counted_once(gpu, call):
    def take(n):
        stays = 514 * MB if len(gpu.counts) + 1 == call else 0
        return {"inside": 150 * MB * n, "stays": stays, "seconds": 0.01}

    found = probed_on(gpu, take, 24 * 10**9)
    counted = 514 * MB - MODULES_BYTES
    check(found, lambda n: INPUT_BYTES * n + 150 * MB * n + counted, 24 * 10**9)
    assert any("stay outside the pool" in note for note in found.notes)


def test_kernels_that_other_slice_counts_load_are_what_the_reserve_is_for(gpu):
    def take(n):  # as raven_filter and remove_stripe_ti on an H200: 17 to 60 MB in all
        stays = 0 if n in gpu.counts else 12 * MB
        return {"inside": 150 * MB * n, "stays": stays, "seconds": 0.01}

    found = probed_on(gpu, take, 24 * 10**9)
    check(found, lambda n: INPUT_BYTES * n + 150 * MB * n, 24 * 10**9, least=1.0)
    assert found.notes == (ALONE,)


def test_a_librarys_cache_that_grows_with_the_slices_is_a_slope(gpu):
    def take(n):
        stays = max(0, 40 * MB * n - gpu.outside)
        return {"inside": 100 * MB * n, "stays": stays, "seconds": 0.01}

    found = probed_on(gpu, take, 24 * 10**9)

    def needs(n):
        return INPUT_BYTES * n + 100 * MB * n + max(0, 40 * MB * n - MODULES_BYTES)

    check(found, needs, 24 * 10**9, least=0.95)
    assert any("stay outside the pool" in note for note in found.notes)


def test_a_jump_that_a_repeated_call_does_not_show_is_not_counted(gpu):
    def take(n):
        outside = 500 * MB if len(gpu.counts) == 6 else 0
        return {"inside": 100 * MB * n, "outside": outside, "seconds": 0.01}

    found = probed_on(gpu, take, 24 * 10**9)
    check(found, lambda n: INPUT_BYTES * n + 100 * MB * n, 24 * 10**9, least=0.99)
    assert found.notes == (ALONE,)


@pytest.mark.parametrize("n", [23, 61])
def test_a_workspace_that_is_replaced_by_a_larger_one_counts_once(gpu, n):
    """It is freed before the larger one is allocated, and stays in the pool."""

    def take(k):
        larger = INPUT_BYTES * k > gpu.kept
        gpu.freed = gpu.kept if larger else 0
        gpu.kept = max(gpu.kept, INPUT_BYTES * k)
        return {"inside": INPUT_BYTES * k + (gpu.kept if larger else 0)}

    found = probed_on(gpu, take, 3 * INPUT_BYTES * n)
    assert found.answer == n


@pytest.mark.parametrize("n", [23, 61])
def test_the_entry_of_the_first_call_in_a_cache_is_no_constant(gpu, n):
    entries = set()

    def take(k):
        fresh = k not in entries
        entries.add(k)
        gpu.kept = sum(INPUT_BYTES // 3 * each for each in entries)
        return {"inside": INPUT_BYTES * k + fresh * INPUT_BYTES // 3 * k}

    found = probed_on(gpu, take, (2 * INPUT_BYTES + INPUT_BYTES // 3) * n)
    assert found.answer == n


@pytest.mark.parametrize("n", [23, 61])
def test_a_leak_is_counted_for_all_blocks_of_a_scan(gpu, n):
    lost = INPUT_BYTES // 40

    def take(k):
        gpu.kept += lost * k
        return {"inside": (INPUT_BYTES + lost) * k}

    further_blocks = -(-2160 // n) - 1
    found = probed_on(gpu, take, (2 * INPUT_BYTES + lost) * n + lost * n * further_blocks)
    assert n - 1 <= found.answer <= n
    assert any(note.startswith("each call loses memory") for note in found.notes)


@pytest.mark.parametrize("n", [61, 130, 240])
def test_a_leak_of_each_call_is_counted_for_as_many_blocks_as_the_answer_makes(gpu, n):
    lost = 30 * MB

    def take(k):
        gpu.kept += lost
        return {"inside": INPUT_BYTES * k + lost}

    def needs(k):
        return 2 * INPUT_BYTES * k + lost * -(-2160 // k)

    found = probed_on(gpu, take, needs(n))
    assert found.model().bytes(found.answer) == needs(found.answer)
    assert found.answer == n
