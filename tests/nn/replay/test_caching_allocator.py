"""The caching allocator's rules, one by one; sizes are chosen so that each decides alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxslices.nn.replay import CachingAllocator, least_limit

MIB = 2**20
RECORDED = json.loads((Path(__file__).parent / "h200_requests.json").read_text())
TOTAL_BYTES = 150109880320
"""Of the card on which they were recorded."""


def held(*steps, limit=None):
    allocator = CachingAllocator(limit)
    assert allocator.run(steps)
    return allocator.reserved_bytes


def test_small_requests_share_segments_of_2_mib():
    assert held((0, 1)) == 2 * MIB
    assert held((0, MIB), (1, MIB)) == 2 * MIB
    assert held((0, MIB), (1, MIB - 511), (2, 1)) == 4 * MIB


def test_requests_below_10_mib_share_segments_of_20():
    assert held((0, MIB + 1)) == 20 * MIB
    assert held((0, 9 * MIB), (1, 9 * MIB)) == 20 * MIB
    assert held((0, 9 * MIB), (1, 9 * MIB), (2, 3 * MIB)) == 40 * MIB


def test_larger_requests_take_their_own_in_steps_of_2_mib():
    assert held((0, 10 * MIB)) == 10 * MIB
    assert held((0, 11 * MIB)) == 12 * MIB


def test_a_freed_part_is_reused_and_split_if_more_than_1_mib_remains():
    # 100 freed; 60 and 38 fit in it, 3 more does not.
    assert held((0, 100 * MIB), (0, -1), (1, 60 * MIB), (2, 38 * MIB)) == 100 * MIB
    # 99 of 100 taken: the 1 MiB left is not split off, so it stays with the 99.
    assert held((0, 100 * MIB), (0, -1), (1, 99 * MIB), (2, MIB + 1)) == 120 * MIB


def test_the_smallest_free_part_that_fits_is_taken():
    steps = [(0, 100 * MIB), (1, 50 * MIB), (0, -1), (1, -1), (2, 40 * MIB), (3, 100 * MIB)]
    assert held(*steps) == 150 * MIB


def test_free_neighbours_become_one():
    steps = [(0, 100 * MIB), (0, -1), (1, 40 * MIB), (2, 40 * MIB), (1, -1), (2, -1)]
    assert held(*steps, (3, 100 * MIB)) == 100 * MIB


def test_what_is_between_two_parts_keeps_them_apart():
    steps = [(0, 90 * MIB), (0, -1), (1, 30 * MIB), (2, 30 * MIB), (3, 30 * MIB)]
    assert held(*steps, (1, -1), (3, -1), (4, 60 * MIB)) == 150 * MIB


def test_whole_unused_segments_are_given_back_before_it_fails():
    steps = [(0, 60 * MIB), (0, -1), (1, 70 * MIB)]
    assert held(*steps) == 130 * MIB
    assert held(*steps, limit=100 * MIB) == 70 * MIB
    # Half of the first segment is in use: it cannot go.
    split = [(0, 60 * MIB), (0, -1), (1, 30 * MIB), (2, 70 * MIB)]
    assert not CachingAllocator(100 * MIB).run(split)
    assert CachingAllocator(130 * MIB).run(split)


def test_the_least_limit_lies_between_handed_out_and_held():
    steps = [(0, 60 * MIB), (0, -1), (1, 70 * MIB)]
    assert least_limit(steps, 70 * MIB, 130 * MIB) == 70 * MIB


def test_limits_above_the_least_do_as_well_where_more_room_is_worse():
    # The first two leave a hole that is kept if there is room, and then too small for the last.
    steps = [(0, 40 * MIB), (0, -1), (1, 30 * MIB), (2, 50 * MIB), (2, -1), (3, 60 * MIB)]
    runs = [CachingAllocator(n * MIB).run(steps) for n in range(90, 180, 2)]
    least = least_limit(steps, 90 * MIB, 180 * MIB)
    assert CachingAllocator(least).run(steps)
    assert all(runs[(least // MIB - 90) // 2 :])


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 40 * MIB)), max_size=60))
def test_accounts_never_lose_memory(requests):
    allocator, live = CachingAllocator(), {}
    for key, n_bytes in requests:
        if key in live:
            allocator.free(key)
            del live[key]
        else:
            assert allocator.allocate(key, n_bytes)
            live[key] = n_bytes
        assert allocator.allocated_bytes <= allocator.reserved_bytes
        rounded = sum(-(-n // 512) * 512 for n in live.values())
        assert 0 <= allocator.allocated_bytes - rounded <= len(live) * MIB
    for key in live:
        allocator.free(key)
    assert allocator.allocated_bytes == 0
    assert sum(size for pool in allocator._free for size, _, _ in pool) == allocator.reserved_bytes
    allocator.give_back()
    assert allocator.reserved_bytes == 0


@pytest.mark.parametrize("case", RECORDED)
def test_recorded_requests_are_served_and_refused_as_they_were(case):
    """Steps next to their limit: what was asked for, in units of 512 bytes; "x" was refused."""
    recorded = RECORDED[case]
    allocator = CachingAllocator(int(recorded["part_of_card"] * TOTAL_BYTES))
    for key, size in recorded["steps"]:
        if size < 0:
            allocator.free(key)
        else:
            assert allocator.allocate(key, 512 * size) is (key != "x")
    assert allocator.peak_reserved_bytes == recorded["held_at_most"]
    assert allocator.reserved_bytes == recorded["held_at_end"]


def test_of_two_free_segments_the_one_at_the_lower_address_is_taken():
    """The third, which is given back for the fourth, leaves a gap that the fifth comes into."""
    steps = [(k, size * MIB) for k, size in enumerate((100, 200, 300))]
    allocator = CachingAllocator(950 * MIB)
    assert allocator.run([*steps, (1, -1), (3, 400 * MIB), (4, 100 * MIB)])
    segments = {key: block.address for key, block in allocator._live.items()}
    assert segments[0] > segments[4] > segments[2] > segments[3]
    # A part of either would do for 90: the one below is taken, and the other remains whole.
    assert allocator.run([(0, -1), (4, -1), (5, 90 * MIB)])
    assert allocator._live[5].address == segments[4]
